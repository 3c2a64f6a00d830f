"""A paired significance test of two systems, for any metric."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from regard.evaluation.metrics.metric import Array, Metric, check_lengths

TRIALS = 10_000

# Differences that are equal in theory differ in their last digits: 52/99 − 50/99, 51/99 − 49/99.
ROUNDING = 1e-9


@dataclass(frozen=True)
class PairedTest:
    """The score of the second system minus that of the first, and its p-value."""

    difference: float
    p_value: float


def system_statistics(
    metric: Metric, systems: Sequence[Sequence[Any]], references: Sequence[Any]
) -> list[Array]:
    """The statistics of several systems' predictions: [examples, counts] for each.

    They are counted in one call, because the columns of some metrics depend on the examples (the
    classes of macro F1), and paired tests need the same columns for both systems.
    """
    for predictions in systems:
        check_lengths(predictions, references)
    all_predictions = [prediction for predictions in systems for prediction in predictions]
    statistics = metric.statistics(all_predictions, list(references) * len(systems))
    return np.split(statistics, len(systems))


def approximate_randomization(
    metric: Metric, first: Array, second: Array, *, trials: int = TRIALS, seed: int = 0
) -> PairedTest:
    """Paired approximate randomization (Noreen, 1989; Riezler and Maxwell, 2005).

    If the systems are equally good, nothing changes when the predictions for an example are
    swapped. The p-value is the share of random swaps with a difference as large. It is two-sided.
    """
    first_totals = first.sum(axis=0)
    second_totals = second.sum(axis=0)
    difference = metric.score(second_totals) - metric.score(first_totals)
    threshold = abs(difference) * (1.0 - ROUNDING)
    rng = np.random.default_rng(seed)
    change = second - first  # of the first system's statistics, by swapping an example
    as_large = 0
    for _ in range(trials):
        swapped = rng.integers(2, size=len(change), dtype=np.int8)
        moved = swapped @ change
        trial = metric.score(second_totals - moved) - metric.score(first_totals + moved)
        as_large += abs(trial) >= threshold
    # The observed outcome is one of the possible ones; without it, p could be 0.
    return PairedTest(difference, (as_large + 1) / (trials + 1))


RESAMPLES = 1000


@dataclass(frozen=True)
class ConfidenceInterval:
    """The interval that contains the central part of the scores of resampled corpora."""

    low: float
    high: float
    level: float = 0.95


def confidence_interval(
    metric: Metric,
    statistics: Array,
    *,
    level: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> ConfidenceInterval:
    """The percentile bootstrap interval, from the statistics of each example."""
    totals = bootstrap_totals(statistics, resamples, seed)
    scores = [metric.score(row) for row in totals]
    tail = (1.0 - level) / 2
    low, high = np.quantile(scores, [tail, 1.0 - tail])
    return ConfidenceInterval(float(low), float(high), level)


def bootstrap_totals(statistics: Array, resamples: int, seed: int) -> Array:
    """The totals of corpora of the same size, drawn with replacement: [resamples, counts]."""
    examples = len(statistics)
    rng = np.random.default_rng(seed)
    totals = np.empty((resamples, statistics.shape[1]))
    for i in range(resamples):
        drawn = rng.integers(examples, size=examples)
        # Multinomial weights: how often each example was drawn. One resample at a time, because
        # all weights together have [resamples, examples] entries.
        weights = np.bincount(drawn, minlength=examples)
        totals[i] = weights @ statistics
    return totals
