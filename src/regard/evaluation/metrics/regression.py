"""Metrics of numbers: errors, correlations; of forecasts, pinball loss and coverage."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from regard.evaluation.metrics.metric import Array, Metric, ratio


class ErrorMetric(Metric):
    """An error of numbers or vectors of numbers, averaged over all of them."""

    greater_is_better = False
    unit = ""

    def score(self, totals: Array) -> float:
        return ratio(*totals)


class MeanSquaredError(ErrorMetric):
    """Mean squared error."""

    name = "mse"
    definition = "mean of (prediction − reference)²"

    def counts(self, predictions: Sequence[ArrayLike], references: Sequence[ArrayLike]) -> Array:
        return _sums(np.square(_differences(predictions, references)))


class MeanAbsoluteError(ErrorMetric):
    """Mean absolute error."""

    name = "mae"
    definition = "mean of |prediction − reference|"

    def counts(self, predictions: Sequence[ArrayLike], references: Sequence[ArrayLike]) -> Array:
        return _sums(np.abs(_differences(predictions, references)))


class MeanReturn(Metric):
    """Mean return of a policy's episodes, whatever was asked for."""

    name = "mean_return"
    unit = ""
    definition = "mean of the returns that came"

    def count(self, prediction: float, reference: float) -> Sequence[float]:
        return (prediction, 1.0)

    def score(self, totals: Array) -> float:
        return ratio(*totals)


class PearsonCorrelation(Metric):
    """Pearson's correlation of numbers, −1 to 1, by sums in float64; 0 where a side is constant."""

    name = "pearson"
    unit = ""
    definition = "Pearson's r of predictions and references, −1 to 1"

    def counts(self, predictions: Sequence[float], references: Sequence[float]) -> ArrayLike:
        x = np.asarray(predictions, dtype=np.float64)
        y = np.asarray(references, dtype=np.float64)
        return np.stack([np.ones_like(x), x, y, x * x, y * y, x * y], axis=1)

    def score(self, totals: Array) -> float:
        n, x, y, xx, yy, xy = totals
        variances = (n * xx - x * x) * (n * yy - y * y)
        if variances <= 0:  # rounding may make it negative
            return 0.0
        return float((n * xy - x * y) / math.sqrt(variances))


class SpearmanCorrelation(PearsonCorrelation):
    """Spearman's rank correlation, −1 to 1: Pearson's of ranks, equal numbers at their mean rank.

    Ranks are among the examples of the call; an interval resamples them as they are.
    """

    name = "spearman"
    definition = "Spearman's ρ of predictions and references, −1 to 1"

    def counts(self, predictions: Sequence[float], references: Sequence[float]) -> ArrayLike:
        return super().counts(_ranks(predictions).tolist(), _ranks(references).tolist())


def _ranks(numbers: ArrayLike) -> Array:
    """How many numbers are smaller than each, equal ones by half."""
    values = np.asarray(numbers, np.float64)
    order = np.sort(values)
    below = np.searchsorted(order, values)
    return (below + np.searchsorted(order, values, side="right")) / 2


def _differences(predictions: Sequence[ArrayLike], references: Sequence[ArrayLike]) -> Array:
    """Predictions minus references, one row per example: [examples, numbers]."""
    difference = np.asarray(predictions, np.float64) - np.asarray(references, np.float64)
    return difference.reshape(len(references), -1)


def _sums(errors: Array) -> Array:
    """The sum of the errors of each example, and how many they are: [examples, 2].

    What has no reference (NaN, in time series) is left out.
    """
    has_value = ~np.isnan(errors)
    return np.stack([np.where(has_value, errors, 0.0).sum(axis=1), has_value.sum(axis=1)], axis=1)


# --- forecasts of quantiles ---


# Levels, and a forecast for each of them: [..., levels].
QuantileForecast: TypeAlias = tuple[Sequence[float], NDArray[Any]]


def point_forecasts(forecasts: NDArray[Any], levels: Sequence[float] | None) -> NDArray[Any]:
    """Forecasts as points: of quantiles, the one that is nearest to the median."""
    if levels is None:
        return forecasts
    # Levels need not have a median among them.
    middle = int(np.argmin(np.abs(np.array(levels) - 0.5)))
    return forecasts[..., middle]


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
