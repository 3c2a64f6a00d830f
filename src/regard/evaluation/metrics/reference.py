"""References: the right answer of an example, or several of which the best match counts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any


class Reference(str):
    """A right answer, and in `alternatives` all that are as right: the best match counts.

    Whoever expects one text has the first.
    """

    alternatives: tuple[str, ...]

    def __new__(cls, texts: Sequence[str]) -> Reference:
        reference = super().__new__(cls, texts[0])
        reference.alternatives = tuple(texts)
        return reference


def alternatives(reference: Any) -> tuple[Any, ...]:
    """The right answers of an example, most of which have one."""
    return reference.alternatives if isinstance(reference, Reference) else (reference,)


def each_alternative(pairs: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """A pair for each right answer, to learn from."""
    for source, target in pairs:
        for one in alternatives(target):
            yield source, one
