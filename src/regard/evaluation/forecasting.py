"""Evaluation of forecasts: every window of a series, on standardized values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from regard.data.series import Series, windows
from regard.evaluation.metrics.forecast import point_forecasts
from regard.evaluation.task import Outputs, Settings
from regard.models import SeriesModel
from regard.system.errors import DataError


def forecast_points(model: SeriesModel, examples: Sequence[Series], settings: Settings) -> Outputs:
    """The forecasts of all windows as points, the median of quantiles: [H, C] each."""
    predicted, references = _forecasts(model, examples)
    levels = _levels(model)
    return Outputs(list(point_forecasts(predicted, levels)), list(references))


def forecast_quantiles(
    model: SeriesModel, examples: Sequence[Series], settings: Settings
) -> Outputs:
    """The levels and the quantiles [H, C, Q] of all windows."""
    # Points have no interval to cover anything.
    levels = _levels(model)
    if levels is None:
        raise DataError("this model does not forecast quantiles", "use the metrics mse and mae")
    predicted, references = _forecasts(model, examples)
    return Outputs([(levels, one) for one in predicted], list(references))


def _levels(model: SeriesModel) -> tuple[float, ...] | None:
    return model.output.levels


def _forecasts(model: SeriesModel, examples: Sequence[Series]) -> tuple[Any, Any]:
    """Forecasts [N, H, C] or [N, H, C, Q], and what came: [N, H, C]."""
    length = model.length
    horizon = model.horizon
    parts = []
    references = []
    for series in examples:
        values = model.standardized(series)
        if len(values) < length + horizon:
            raise DataError(
                f"a series of {len(values)} steps is shorter than a window of {length} plus a "
                f"horizon of {horizon}",
                "pass a longer series",
            )
        # On standardized values: errors of channels with other units could not be added.
        both = windows(values, length + horizon)
        features = model.time_features(series)
        if features is not None:
            features = windows(features, length + horizon)
        parts += list(model.forecasts(both[:, :length], features))
        references.append(both[:, length:])
    return np.concatenate(parts), np.concatenate(references)
