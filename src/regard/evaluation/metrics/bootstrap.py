"""Bootstrap confidence intervals (Efron, 1979; the percentile method) of any metric."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from regard.evaluation.metrics.metric import Array, Metric

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
