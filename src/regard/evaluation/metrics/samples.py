"""Metrics of what a model writes by itself: how much is valid, different, and not of its corpus.

A prediction is a text, or None where it is not valid; a reference is the corpus.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from numpy.typing import ArrayLike

from regard.evaluation.metrics.metric import Metric

Corpora = Sequence[Collection[str]]


class Valid(Metric):
    """The share of samples that are valid."""

    name = "valid"
    definition = "valid samples"

    def counts(self, predictions: Sequence[str | None], references: Corpora) -> ArrayLike:
        return [[sample is not None, 1] for sample in predictions]


class Unique(Metric):
    """The share of samples that are valid and come for the first time."""

    name = "unique"
    definition = "valid samples, each text counted once"

    def counts(self, predictions: Sequence[str | None], references: Corpora) -> ArrayLike:
        earlier: set[str | None] = {None}
        rows = []
        for sample, corpus in zip(predictions, references, strict=True):
            rows.append([sample not in earlier and self.is_new(sample, corpus), 1])
            earlier.add(sample)
        return rows

    def is_new(self, sample: str | None, corpus: Collection[str]) -> bool:
        return True


class Novel(Unique):
    """The share of samples that are valid, come for the first time, and are not of the corpus."""

    name = "novel"
    definition = "valid samples that are not of the corpus, each text counted once"

    def is_new(self, sample: str | None, corpus: Collection[str]) -> bool:
        return sample not in corpus
