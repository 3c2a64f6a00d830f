"""Mixtures: training examples of several corpora, which the order of an epoch mixes by weights.

And samples of them, for what need not see all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from regard.data.corpus import Mixture
from regard.data.file_access import expand, split_location
from regard.training.recipe.schema import Recipe
from regard.training.setup import Say, Split

_NAMED_FILES = 5  # of a folder, the others are counted


@dataclass(frozen=True)
class CorporaSplit:
    """A split of several corpora, by name. Called as any split, it yields one after the other."""

    corpora: Mapping[str, Split]

    def __call__(self) -> Iterator[Any]:
        return chain.from_iterable(corpus() for corpus in self.corpora.values())


def split_of(corpora: Mapping[str, Split]) -> Split:
    """The split of one corpus or of several."""
    if len(corpora) == 1:
        return next(iter(corpora.values()))
    return CorporaSplit(corpora)


def corpora_of(split: Split) -> dict[str, Split]:
    """The corpora of a split; one without a name where it is not of several."""
    return dict(split.corpora) if isinstance(split, CorporaSplit) else {"": split}


def say_files(location: str, say: Say) -> None:
    """Says which files are read where a folder or a glob was named."""
    for path in split_location(location):
        files = expand(path)
        if files == [path]:
            continue
        names = ", ".join(Path(file).name for file in files[:_NAMED_FILES])
        unnamed = len(files) - _NAMED_FILES
        more = f" and {unnamed:,} more" if unnamed > 0 else ""
        say(f"data: {path} is read as {names}{more}")


def evenly_spaced(split: Split, most: int | None) -> Split:
    """At most so many examples of a split, from all over it."""
    if most is None:
        return split
    every = -(-sum(1 for _ in split()) // most)
    return lambda: islice(split(), 0, None, max(1, every))


def mixture(recipe: Recipe) -> Mixture | None:
    """How the recipe mixes its corpora; None: they follow one another, as one corpus."""
    temperature = recipe.data.mixture_temperature
    weights = recipe.mixture_weights
    if weights is None and temperature is None:
        return None
    return Mixture(weights, temperature)
