"""Metrics of forecasts: errors of points, pinball loss and coverage of quantiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from regard.evaluation.metrics.metric import Metric
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

    def count(self, prediction: QuantileForecast, reference: ArrayLike) -> Sequence[float]:
        levels = np.array(prediction[0])
        forecast = prediction[1]
        error = np.asarray(reference, np.float64)[..., None] - forecast
        losses = np.maximum(levels * error, (levels - 1) * error)
        has_value = ~np.isnan(losses)
        return (float(losses[has_value].sum()), float(has_value.sum()))


@dataclass(frozen=True)
class Coverage(Metric):
    """Coverage: the share of values between the lowest and the highest quantile."""

    reads = "quantiles"
    name = "coverage"
    definition = "share of values from the lowest quantile to the highest"

    def count(self, prediction: QuantileForecast, reference: ArrayLike) -> Sequence[float]:
        forecast = prediction[1]
        values = np.asarray(reference, np.float64)
        # A comparison with NaN is false, and a missing value is not counted below either.
        inside = (values >= forecast[..., 0]) & (values <= forecast[..., -1])
        return (float(inside.sum()), float((~np.isnan(values)).sum()))
