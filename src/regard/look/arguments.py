"""Checks of the arguments of analyses, which Python's annotations alone do not make.

Each check returns the checked value, or raises a `RegardError` that says what to pass instead.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence

from regard.system.errors import DataError, SettingError, did_you_mean


def require_name(what: str, name: str, options: Iterable[str]) -> str:
    """The name, which must be one of the options; `what` is its kind in messages, as in "stack"."""
    names = list(options)
    if name not in names:
        raise SettingError(f"this model has no {what} {name!r}", did_you_mean(name, names))
    return name


def require_indices(what: str, numbers: Iterable[int], count: int) -> list[int]:
    """Numbers of rows, heads or layers, of which there are `count`; one at least."""
    return _indices(what, numbers, range(count))


def require_positions(positions: Iterable[int], count: int) -> list[int]:
    """Positions of an output of `count`, counted from 0; negative ones count from the end."""
    return [number % count for number in _indices("position", positions, range(-count, count))]


def _indices(what: str, numbers: Iterable[int], allowed: range) -> list[int]:
    indices = [operator.index(number) for number in numbers]  # also of NumPy and PyTorch
    if not indices:
        raise SettingError(f"the list of {what}s is empty", "add one, or remove the argument")
    for index in indices:
        if index not in allowed:
            repair = f"use {allowed.start} to {allowed.stop - 1}"
            raise SettingError(f"{what} {index} does not exist", repair)
    return indices


def require_texts(texts: Sequence[str], targets: Sequence[str] | None) -> None:
    """At least one text, and as many targets, if any."""
    if isinstance(texts, str):  # whose letters would be taken for texts
        raise DataError("texts must be a list of strings", f"pass a list: [{texts!r}]")
    if targets is not None and len(targets) != len(texts):
        raise DataError(
            f"{len(targets)} targets for {len(texts)} texts", "pass one target per text"
        )
    if not texts:
        raise DataError("the list of texts is empty", "pass at least one text")
