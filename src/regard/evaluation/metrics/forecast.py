"""Metrics of forecasts: errors of points, pinball loss and coverage of quantiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from regard.evaluation.metrics.metric import Array, Metric
from regard.evaluation.metrics.regression import ErrorMetric

# Levels, and a forecast for each of them: [..., levels].
QuantileForecast: TypeAlias = tuple[Sequence[float], NDArray[Any]]


def point_forecasts(forecasts: NDArray[Any], levels: Sequence[float] | None) -> NDArray[Any]:
    """Forecasts as points: of quantiles, the one that is nearest to the median."""
    if levels is None:
        return forecasts
    # Levels need not have a median among them.
    middle = int(np.argmin(np.abs(np.array(levels) - 0.5)))
    return forecasts[..., middle]


@dataclass(frozen=True)
class QuantileLoss(ErrorMetric):
    """Pinball loss of quantile forecasts, a mean over levels."""

    reads = "quantiles"
    name = "quantile_loss"
    definition = "mean of max(q (y − ŷ), (q − 1) (y − ŷ)) over the levels q"

    def counts(
        self, predictions: Sequence[QuantileForecast], references: Sequence[ArrayLike]
    ) -> ArrayLike:
        return [_pinball(*one, reference) for one, reference in _pairs(predictions, references)]


@dataclass(frozen=True)
class Coverage(Metric):
    """Coverage: the share of values between the lowest and the highest quantile."""

    reads = "quantiles"
    name = "coverage"
    definition = "share of values from the lowest quantile to the highest"

    def counts(
        self, predictions: Sequence[QuantileForecast], references: Sequence[ArrayLike]
    ) -> ArrayLike:
        return [_covered(*one, reference) for one, reference in _pairs(predictions, references)]


def _pairs(
    predictions: Sequence[QuantileForecast], references: Sequence[ArrayLike]
) -> list[tuple[QuantileForecast, Array]]:
    arrays = [np.asarray(reference, np.float64) for reference in references]
    return list(zip(predictions, arrays, strict=True))


def _pinball(levels: Sequence[float], forecast: NDArray[Any], reference: Array) -> list[float]:
    error = reference[..., None] - forecast
    level = np.array(levels)
    losses = np.maximum(level * error, (level - 1) * error)
    has_value = ~np.isnan(losses)
    return [float(losses[has_value].sum()), float(has_value.sum())]


def _covered(levels: Sequence[float], forecast: NDArray[Any], reference: Array) -> list[float]:
    # A comparison with NaN is false, and a missing value is not counted below either.
    inside = (reference >= forecast[..., 0]) & (reference <= forecast[..., -1])
    return [float(inside.sum()), float((~np.isnan(reference)).sum())]
