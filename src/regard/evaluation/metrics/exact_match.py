"""Exact match: the share of predictions that equal their reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import ArrayLike

from regard.evaluation.metrics.metric import Array, Metric, percent


@dataclass(frozen=True)
class ExactMatch(Metric):
    """Predictions that equal their reference, character by character."""

    name = "exact_match"

    def signature(self) -> str:
        return "predictions that equal the reference, without normalization"

    def counts(self, predictions: Sequence[Any], references: Sequence[Any]) -> ArrayLike:
        return [(p == r, 1) for p, r in zip(predictions, references, strict=True)]

    def score(self, totals: Array) -> float:
        return percent(*totals)
