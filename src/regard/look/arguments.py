"""Checks of the arguments of analyses, which Python's annotations alone do not make.

Each check returns the checked value, or raises a `RegardError` that says what to pass instead.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from regard.errors import DataError, SettingError, did_you_mean
from regard.look.inspectable import CoreModel, Inspectable

if TYPE_CHECKING:
    from regard.data.builtin import Sentence

T = TypeVar("T")


# ------------------------------------------------------------------ models and results


def core_of(model: Inspectable) -> CoreModel:
    """The core model of a model with its tokenizer, as `regard.load` returns it."""
    core = getattr(model, "model", None)
    if isinstance(core, CoreModel):
        return core
    problem = f"{type(model).__name__} is not a loaded model"
    if isinstance(model, str | Path):
        raise SettingError(
            f"{str(model)!r} is a path, not a loaded model", f"load it: regard.load({str(model)!r})"
        )
    if isinstance(model, CoreModel):
        raise SettingError(
            f"{type(model).__name__} is a core model without a spec and a tokenizer",
            "pass the result of `regard.load(folder)`, or `regard.models.Model(core, spec)`",
        )
    # A recording holds the model that it was made with.
    if isinstance(getattr(core, "model", None), CoreModel):
        raise SettingError(problem, "pass its `.model` attribute")
    raise SettingError(problem, "pass the result of `regard.load(folder)`")


def core_or_core_of(model: CoreModel | Inspectable) -> CoreModel:
    """The core model of a loaded model, or the argument itself if it is a core model."""
    return model if isinstance(model, CoreModel) else core_of(model)


def require_instance(value: object, kind: type[T], repair: str) -> T:
    """The value, after a check that it is of a class."""
    if not isinstance(value, kind):
        raise SettingError(f"expected a {kind.__name__}, not {type(value).__name__}", repair)
    return value


# ------------------------------------------------------------------ names and numbers


def require_name(what: str, name: object, options: Iterable[str]) -> str:
    """The name, which must be one of the options; `what` is its kind in messages, as in "stack"."""
    names = list(options)
    if not isinstance(name, str) or name not in names:
        raise SettingError(f"this model has no {what} {name!r}", did_you_mean(name, names))
    return name


def require_count(name: str, value: object, least: int = 1) -> int:
    """A whole number that is large enough."""
    number = _whole_number(value)
    if number is None or number < least:
        raise SettingError(
            f"{name} = {value!r} is not an integer of at least {least}",
            f"set it, for example {name}={least + 4}",
        )
    return number


def require_indices(what: str, numbers: Iterable[int], count: int) -> list[int]:
    """Numbers of rows, heads or layers, of which there are `count`."""
    return [_index(what, number, range(count)) for number in _several(what, numbers)]


def require_positions(positions: Iterable[int], count: int) -> list[int]:
    """Positions of an output of `count`, counted from 0; negative ones count from the end."""
    allowed = range(-count, count)
    return [
        _index("position", number, allowed) % count for number in _several("position", positions)
    ]


def is_head(value: object) -> bool:
    """Whether it has the form of a head: the name of an attention, and a number."""
    if not isinstance(value, tuple) or len(value) != 2:
        return False
    return isinstance(value[0], str) and _whole_number(value[1]) is not None


def _several(what: str, numbers: Iterable[int]) -> list[int]:
    """The numbers as a list, of which there must be one at least."""
    if isinstance(numbers, str) or not isinstance(numbers, Iterable):
        raise SettingError(
            f"{numbers!r} is not a list of {what}s", f"pass a list: [0] for {what} 0"
        )
    several = list(numbers)
    if not several:
        raise SettingError(f"the list of {what}s is empty", "add one, or remove the argument")
    return several


def _index(what: str, value: object, allowed: range) -> int:
    number = _whole_number(value)
    if number is None:
        raise SettingError(f"{what} {value!r} is not an integer", f"pass [0] for {what} 0")
    if number not in allowed:
        repair = f"use 0 to {allowed.stop - 1}"
        if allowed.start < 0:
            repair += f", or -1 to {allowed.start} to count from the end"
        raise SettingError(f"{what} {number} does not exist", repair)
    return number


def _whole_number(value: object) -> int | None:
    """The value as an int, also from NumPy or PyTorch; None for floats, strings and booleans."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except (TypeError, RuntimeError):  # a tensor of several numbers is a TypeError as well
        return None


# ------------------------------------------------------------------ texts


def require_text(text: object, repair: str) -> str:
    """The text, which must be a string: other kinds of input are refused."""
    if not isinstance(text, str):
        raise SettingError(f"expected a string, not {type(text).__name__}", repair)
    return text


def require_texts(texts: Sequence[str], targets: Sequence[str] | None) -> None:
    """Lists of strings: at least one text, and as many targets, if any."""
    for several in (texts, () if targets is None else targets):
        is_list = isinstance(several, Sequence) and not isinstance(several, str)
        if not is_list or not all(isinstance(one, str) for one in several):
            raise DataError("texts and targets must be lists of strings", "pass a list of strings")
    if targets is not None and len(targets) != len(texts):
        raise DataError(
            f"{len(targets)} targets for {len(texts)} texts", "pass one target per text"
        )
    if not texts:
        raise DataError("the list of texts is empty", "pass at least one text")


def require_sentences(sentences: Sequence[Sentence]) -> Sequence[Sentence]:
    """Sentences whose parse is known, of which there must be one at least."""
    from regard.data.builtin import Sentence  # imported late: few analyses read the language

    repair = "pass a list of sentences from `regard.data.builtin.sentences` or `read_conllu`"
    for sentence in require_instance(sentences, Sequence, repair):  # type: ignore[type-abstract]
        require_instance(sentence, Sentence, repair)
    if not sentences:
        raise DataError("the list of sentences is empty", "add some, or remove the argument")
    return sentences
