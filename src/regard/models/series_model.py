"""A model of time series (PatchTST, linear forecasters): forecasts in the units of the data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard import spec as kinds
from regard.baselines.linear_forecaster import LinearForecaster
from regard.core.series_head import distribution_mean
from regard.core.series_patches import SeriesPatches
from regard.data.series import (
    Series,
    SeriesProcessor,
    Values,
    read_series,
    read_series_processor,
)
from regard.encoder import Encoder
from regard.errors import DataError, ModelError
from regard.models.base import Model

if TYPE_CHECKING:
    from regard.look.backdrop import Backdrop

_BATCH_VALUES = 1 << 20  # numbers in the windows of one batch


class SeriesModel(Model):
    """Forecasts time series: CSV files, `Series`, or arrays [time steps, channels].

    Made by `regard.load(folder)`.
    """

    model: Encoder | LinearForecaster
    spec: kinds.Encoder | kinds.LinearForecaster

    @property
    def length(self) -> int:
        """The steps of a window: the look-back."""
        if isinstance(self.spec, kinds.LinearForecaster):
            return self.spec.length
        return self.spec.windows.length

    @property
    def channels(self) -> int:
        """How many channels a window has."""
        if isinstance(self.spec, kinds.LinearForecaster):
            return self.spec.channels
        return self.spec.windows.channels

    @property
    def head(self) -> kinds.ForecastHead | kinds.LinearForecaster:
        """What says the horizon, and what is forecast for each step."""
        if isinstance(self.spec, kinds.LinearForecaster):
            return self.spec
        if not isinstance(self.spec.series, kinds.ForecastHead):
            raise ModelError("this model does not forecast", "give PatchTSTForPrediction")
        return self.spec.series

    @cached_property
    def processor(self) -> SeriesProcessor | None:
        """The standardization that it was trained with; None for a model without one."""
        return None if self.folder is None else read_series_processor(self.folder)

    @property
    def channel_names(self) -> list[str]:
        """The names of the channels: those of the training data, or their numbers."""
        if self.processor is not None:
            return list(self.processor.columns)
        return [f"channel {i}" for i in range(self.channels)]

    @property
    def levels(self) -> tuple[float, ...]:
        """The levels of its quantiles; none where it forecasts points."""
        output = self.head.output
        return output.levels if isinstance(output, kinds.Quantiles) else ()

    # ------------------------------------------------------------------ for `regard.look`

    def labelled_input(self, text: str) -> tuple[Tensor, tuple[str, ...]]:
        """The last window of a CSV file, [1, L, C], and the steps of each patch.

        Attention is that of the first channel: each is read by itself.
        """
        values = self.standardized(text)[-self.length :]
        names = ["class token"] if self._has_class_token else []
        names += [f"{begin}–{end - 1}" for begin, end in self._spans()]
        # 0 is the mean of standardized values: the best guess for one that is missing.
        return torch.from_numpy(np.nan_to_num(values))[None], tuple(names)

    def backdrop(self, text: str) -> Backdrop:
        """The last window of a CSV file: its first channel, and the steps of each patch."""
        from regard.look.backdrop import SeriesBackdrop

        values = self.standardized(text)[-self.length :, :1]  # [L, 1]
        spans = [(0, 0)] if self._has_class_token else []
        spans += self._spans()
        return SeriesBackdrop(self._in_units(values)[:, 0], tuple(spans), self.channel_names[0])

    def with_answer(self, backdrop: Backdrop, logits: Tensor) -> Backdrop:
        """The backdrop with the forecast of its channel; of quantiles, the middle one."""
        from regard.look.backdrop import SeriesBackdrop

        assert isinstance(backdrop, SeriesBackdrop), "series stand on themselves"
        if not isinstance(self.head, kinds.ForecastHead | kinds.LinearForecaster):
            return backdrop
        forecast = logits[0].float().cpu().numpy()  # [H, C], or [H, C, levels]
        channel = forecast[:, :1] if forecast.ndim == 2 else forecast[:, :1, forecast.shape[2] // 2]
        return replace(backdrop, forecast=self._in_units(channel)[:, 0])

    def _in_units(self, channel: NDArray[Any]) -> NDArray[Any]:
        """Values of the first channel [N, 1] as they were before standardization."""
        if self.processor is None:
            return channel
        return channel * self.processor.std[0] + self.processor.mean[0]

    def _spans(self) -> list[tuple[int, int]]:
        """The first step of each patch and the one after its last, scale after scale."""
        if not isinstance(self.spec, kinds.Encoder):
            return []
        spans = []
        for scale in self.spec.windows.scales:
            first = (self.length - scale.length) % scale.stride
            for begin in range(first, self.length - scale.length + 1, scale.stride):
                spans.append((begin, begin + scale.length))
        return spans

    @property
    def _has_class_token(self) -> bool:
        return isinstance(self.spec, kinds.Encoder) and self.spec.windows.class_token

    # ------------------------------------------------------------------ forecasting

    def forecast(self, series: str | Path | Series | NDArray[Any]) -> NDArray[np.float64]:
        """The steps after a series, in its units: [horizon, channels].

        Quantile forecasts are [horizon, channels, levels]; of a distribution, its mean.
        """
        values = self.standardized(series)
        if len(values) < self.length:
            raise DataError(
                f"the series has {len(values)} steps, but this model looks back {self.length}",
                "give a longer one",
            )
        forecasts = next(self.forecasts(values[None, -self.length :]))[0]  # [H, C] or [H, C, Q]
        if self.processor is None:
            return forecasts.astype(np.float64)
        if forecasts.ndim == 2:
            return self.processor.restored(forecasts)
        # Quantiles stand last; statistics are of channels.
        return self.processor.restored(forecasts.swapaxes(1, 2)).swapaxes(1, 2)

    def standardized(self, series: str | Path | Series | NDArray[Any]) -> Values:
        """The values of a series as the model reads them: [time steps, channels]."""
        if isinstance(series, str | Path):
            series = read_series(series, self.processor.columns if self.processor else None)
        if not isinstance(series, Series):
            values = np.asarray(series, np.float32)
            # An array has no names: its columns are taken to be the model's.
            names = self.processor.columns if self.processor else ()
            series = Series(values.reshape(len(values), -1), names)
        if series.values.shape[1] != self.channels:
            raise DataError(
                f"the series has {series.values.shape[1]} channels, the model {self.channels}",
                "give the columns that the model was trained on",
            )
        return series.values if self.processor is None else self.processor.standardized(series)

    @torch.inference_mode()
    def forecasts(self, windows: Values) -> Iterator[NDArray[np.float32]]:
        """The forecasts of standardized windows [N, L, C], batch by batch."""
        self.model.eval()
        # A long look-back or many channels make a batch of few windows.
        size = max(1, _BATCH_VALUES // (self.length * self.channels))
        for begin in range(0, len(windows), size):
            # A copy: windows are overlapping views of one array, which torch must not write to.
            values = torch.from_numpy(np.array(windows[begin : begin + size], np.float32))
            yield self.forecast_tensor(values.to(self.device)).float().cpu().numpy()

    def forecast_tensor(self, values: Tensor) -> Tensor:
        """Forecasts of windows [B, L, C] with NaN where a value is missing: [B, H, C], or
        [B, H, C, Q] for quantiles; of distributions, their means."""
        # The mask is a tensor of its own: NaN times 0 is NaN.
        observed = ~values.isnan()
        mask = None if bool(observed.all()) else observed
        values = values.nan_to_num().to(self.dtype)
        hidden, _ = self.model(values, mask)
        output = self.model.predict(hidden, values, mask)
        if isinstance(output, Tensor):
            return output
        assert isinstance(self.model, Encoder), "linear forecasters have no distributions"
        assert isinstance(self.model.input, SeriesPatches), "it reads time series"
        kind = self.head.output
        assert isinstance(kind, kinds.Distribution), "it has parameters"
        scaling = self.model.input.scaling(values, mask)
        return distribution_mean(kind.kind, output, scaling)
