"""The splits of a data source from outside the package, checked: names, and each example.

What is wrong with them would otherwise be seen in the middle of a library, or not at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from functools import partial
from typing import Any

from regard.system.errors import DataError, RegardError
from regard.training.recipe.objectives import DataKind

# What an example is, by the kind of data.
_EXAMPLES: dict[DataKind, str] = {
    "pairs": 'a pair of texts, such as ("a dog", "ein Hund")',
    "text": "a text",
    "examples": "one of the examples of regard.data.labelled",
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
    try:
        for number, example in enumerate(function(), 1):
            if not _is_example(example, kind):
                raise DataError(
                    f"example {number:,} of the split {split!r} is {_short(example)}",
                    f"give {_EXAMPLES[kind]}",
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


def _is_example(example: Any, kind: DataKind) -> bool:
    if kind == "pairs":
        is_pair = isinstance(example, tuple | list) and len(example) == 2
        return is_pair and all(isinstance(side, str) for side in example)
    if kind == "text":
        return isinstance(example, str)
    if kind == "examples":
        return is_dataclass(example) and not isinstance(example, type)
    return True  # of sounds and the like, which are checked where they are decoded


def _short(example: Any) -> str:
    text = repr(example)
    return text if len(text) <= 40 else f"{text[:40]}…"
