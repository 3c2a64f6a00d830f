"""The setup of a run: its recipe, its folder, and the parts that come from outside the package."""

from __future__ import annotations

import re
import reprlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, is_dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch

from regard import spec as specs
from regard.models import Model, choose_device
from regard.system.errors import DataError, RegardError, SettingError
from regard.training.parallel.ranks import ONE_RANK, Ranks, rank_device
from regard.training.recipe.objectives import (
    DATA_KEYS,
    OBJECTIVES,
    DataKind,
    objective_settings,
)
from regard.training.recipe.schema import Recipe
from regard.training.run_folder import RunFolder

SHARDING = ("fsdp", "tensor")  # strategies
Say = Callable[[str], None]
# The examples of a split from the first one on, whenever it is called.
Split = Callable[[], Iterator[Any]]


@runtime_checkable
class DataSource(Protocol):
    """Where examples come from: files, a generator, or an object from outside the package.

    What an example is depends on the objective: a pair of texts, a piece of a text, or one of the
    examples of `regard.data.labelled`. A split may be read more than once and must yield the same
    examples each time. All are read before the first step and stored in the run folder: the
    position of a run is a number, so that it resumes exactly, and without its source.
    """

    def splits(self) -> Mapping[str, Split]:
        """`train`, perhaps `valid`; of pairs and labelled examples, also what is to be scored."""


@dataclass(frozen=True)
class Parts:
    """Parts of a run from outside the package.

    `source` takes the place of the recipe's files, `objective` that of its objective, `model` that
    of the model to fine-tune, `spec` that of a new model; `kinds` are the dataclasses of its parts.
    """

    source: DataSource | None = None
    objective: type[Any] | None = None
    kinds: Sequence[type] = ()
    model: Model | None = None
    spec: specs.Model | None = None

    @property
    def objective_name(self) -> str | None:
        return None if self.objective is None else self.objective.__qualname__

    def objective_of(self, recipe: Recipe) -> type[Any]:
        """The class of the objective: the one from outside, or the recipe's."""
        return self.objective or objective_class(recipe.objective)


NO_PARTS = Parts()


# Objectives from outside the package, by the name of the one whose place they take.
REGISTERED: dict[str, type[Any]] = {}


def objective_class(name: str) -> type[Any]:
    """The class of an objective, by its name in a recipe."""
    if name in REGISTERED:
        return REGISTERED[name]
    module, _, class_name = objective_settings(name).implementation.partition(":")
    # Imported by name: an objective brings its metrics and data formats along.
    implementation: type[Any] = getattr(
        import_module(f"regard.training.objectives.{module}"), class_name
    )
    return implementation


def objective_of_spec(description: specs.Model, settings: Mapping[str, Any]) -> str:
    """The first objective that trains such a model on the kind of data that settings name."""
    named = {key for key, value in settings.items() if value is not None}
    named &= {*DATA_KEYS.values(), "source"}
    for name, about in OBJECTIVES.items():
        keys = {DATA_KEYS[about.data], *(("source",) if about.data == "pairs" else ())}
        if not named or named & keys:
            with suppress(SettingError):
                objective_class(name).check_spec(description)
                return name
    return "translate"  # whose error says what does not fit


@dataclass(frozen=True)
class Setup:
    """What a run is assembled from; `say` receives messages, `ranks` train together."""

    run_folder: RunFolder
    recipe: Recipe
    say: Say
    parts: Parts = NO_PARTS
    ranks: Ranks = ONE_RANK
    started: float = field(default_factory=time.perf_counter)  # of the run, or where it goes on

    @property
    def objective(self) -> type[Any]:
        return self.parts.objective_of(self.recipe)

    @property
    def base(self) -> Path:
        """The folder of the model to fine-tune: of one given in Python, the copy in the run."""
        if self.run_folder.base.exists():
            return self.run_folder.base
        return Path(str(self.recipe.tune.base))

    @property
    def device(self) -> torch.device:
        # By name, not stored: a run may be resumed on another machine.
        return rank_device(choose_device(self.recipe.train.device))

    @property
    def shards_model(self) -> bool:
        """Whether no rank is to hold all parameters on its device."""
        return self.ranks.several and self.recipe.parallel.strategy in SHARDING

    @property
    def pad_to_multiple_of(self) -> int:
        """What lengths are rounded up to: on a GPU, so that few shapes occur."""
        # Tensor cores work on tiles whose sides are multiples of 8 in half precision.
        default = 8 if self.device.type == "cuda" else 1
        return self.recipe.train.pad_to_multiple_of or default

    def splits(self, from_recipe: Callable[[Setup], Mapping[str, Split]]) -> Mapping[str, Split]:
        """The examples of the given source, otherwise those that the recipe names."""
        if self.parts.source is not None:
            return source_splits(self.parts.source, self.recipe.objective_settings.data)
        return from_recipe(self)


# --- data sources from outside the package, checked -----------------------------------------------

# What an example is, by the kind of data; sounds and the like are checked where they are decoded.
_EXAMPLES: dict[DataKind, tuple[str, Callable[[Any], bool]]] = {
    "pairs": (
        'a pair of texts, such as ("a dog", "ein Hund")',
        lambda pair: (
            isinstance(pair, tuple | list)
            and len(pair) == 2
            and all(isinstance(side, str) for side in pair)
        ),
    ),
    "text": ("a text", lambda text: isinstance(text, str)),
    "examples": (
        "one of the examples of regard.data.labelled",
        lambda example: is_dataclass(example) and not isinstance(example, type),
    ),
}
# A split is stored in a file of its name.
_PLAIN_NAME = re.compile(r"\w[\w.-]*")


def source_splits(source: Any, kind: DataKind) -> dict[str, Any]:
    """The splits of a source, whose examples are checked as they are read."""
    name = type(source).__name__
    splits = source.splits() if callable(getattr(source, "splits", None)) else None
    if not isinstance(splits, Mapping):
        raise DataError(
            f"splits() of {name} does not return a dictionary",
            'return {"train": function, …}, with functions that yield examples',
        )
    for split, function in splits.items():
        if not isinstance(split, str) or _PLAIN_NAME.fullmatch(split) is None:
            raise DataError(
                f"{split!r} of {name} is not a valid split name",
                "use letters, digits, - and _: it becomes the name of a file",
            )
        if not callable(function):
            raise DataError(
                f"the split {split!r} of {name} cannot be called",
                "give a function that yields all examples each time it is called",
            )
    if "train" not in splits:
        raise DataError(f"{name} has no split 'train'", "give the training examples this name")
    return {split: partial(_checked, function, split, kind) for split, function in splits.items()}


def _checked(function: Any, split: str, kind: DataKind) -> Iterator[Any]:
    """The examples of a split; what is none, or what fails, is named by its number."""
    number = 0
    what, is_example = _EXAMPLES.get(kind, ("", lambda _: True))
    try:
        for number, example in enumerate(function(), 1):
            if not is_example(example):
                raise DataError(
                    f"example {number:,} of the split {split!r} is {reprlib.repr(example)}",
                    f"give {what}",
                )
            yield example
    except RegardError:
        raise
    except Exception as error:  # of whatever kind: it is the user's code
        raise DataError(
            f"the split {split!r} failed after {number:,} examples: "
            f"{type(error).__name__}: {error}",
            "fix the function that yields its examples",
        ) from error


# What an argument may be, by its name, and how that is said.
TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "recipe": ((str, Path), "the name or the file of a recipe, or a dictionary of settings"),
    "model": (
        (str, specs.ModelSpec, Model),
        "a name, such as 'gpt2:tiny', a spec, or a model that regard.load opened",
    ),
    "data": ((str, Path, DataSource), "a file, or an object with splits()"),
    "objective": ((str, type), "a word, such as 'causal', or a subclass of Objective"),
    "out": ((str, Path), "the path of a folder"),
    "on_step": ((Callable,), "a function of the training loop"),  # type: ignore[dict-item]
    "base": ((str, Path, Model), "the folder of a model, or a model that regard.load opened"),
    "task": ((str,), "a word, such as 'classify'"),
    "folder": ((str, Path), "the path of a run folder"),
    # What a run that is resumed is given again.
    "source": ((DataSource,), "the object with splits() that the run began with"),
    "objective_class": ((type,), "the subclass of Objective that the run began with"),
}
_REQUIRED = ("base", "task", "folder")


def check_types(**arguments: object) -> None:
    """Refuses arguments of other types than annotated, which Python does not check."""
    for name, value in arguments.items():
        kinds, repair = TYPES[name]
        is_left_out = value is None and name not in _REQUIRED
        if is_left_out or isinstance(value, kinds):
            continue
        raise SettingError(f"`{name}` cannot be of type {type(value).__name__}", f"give {repair}")
