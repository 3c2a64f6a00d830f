"""A model of time series (PatchTST, the time-series Transformer, linear forecasters).

Its forecasts are in the units of the data.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard import spec as kinds
from regard.core.context import Context
from regard.core.finite_outputs import require_finite
from regard.data.series import (
    Series,
    SeriesProcessor,
    Values,
    calendar_features,
    dates_after,
    read_series,
    read_series_processor,
)
from regard.look.inspectable import Reading
from regard.models.base import Model
from regard.models.hf_call import ModelOutput
from regard.models.inputs.arrays import as_array
from regard.system.arguments import LARGEST_SEED, is_whole, whole_number
from regard.system.errors import DataError, ModelError
from regard.wirings.baselines.linear_forecaster import LinearForecaster
from regard.wirings.encoder import Encoder
from regard.wirings.series_encoder_decoder import (
    SeriesEncoderDecoder,
    covariates_by_name,
    with_channels,
)

if TYPE_CHECKING:
    from regard.look.backdrop import Backdrop

_BATCH_VALUES = 1 << 20  # numbers in the windows of one batch
_SERIES_FORMS = "pass a CSV file, or an array [steps, channels]"
_SAMPLES = 100  # trajectories, where config.json does not say how many

AnySeries = str | Path | Series | NDArray[Any]


class SeriesModel(Model):
    """Forecasts time series: CSV files, `Series`, or arrays [time steps, channels].

    Made by `regard.load(folder)`.
    """

    reads_files = True
    model: Encoder | SeriesEncoderDecoder | LinearForecaster
    spec: kinds.Encoder | kinds.SeriesEncoderDecoder | kinds.LinearForecaster

    @property
    def length(self) -> int:
        """The steps of a window: the look-back."""
        return self.spec.series_window.length

    @property
    def channels(self) -> int:
        """How many channels a window has."""
        return self.spec.series_window.channels

    @property
    def forecasts_steps(self) -> bool:
        """Whether it forecasts, and does not only encode, classify or reconstruct."""
        return self.spec.series_window.output is not None

    @property
    def evaluations(self) -> tuple[str, ...]:
        return ("forecast",) if self.forecasts_steps else ()

    @property
    def horizon(self) -> int:
        """The steps that are forecast."""
        return self.spec.series_window.horizon or _refuse()

    @property
    def output(self) -> kinds.Forecast:
        """What is forecast for each step: a point, quantiles, or a distribution."""
        return self.spec.series_window.output or _refuse()

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
        output = self.output
        return output.levels if isinstance(output, kinds.Quantiles) else ()

    # ------------------------------------------------------------------ for `regard.look`

    def read_text(self, text: str) -> Reading:
        """The last window of a CSV file, [1, L, C], with the steps of each position.

        Attention over patches is that of the first channel: each is read by itself.
        """
        from regard.look.backdrop import SeriesBackdrop

        series = self.read(text)
        values = self.standardized(series)[-self.length :]
        spans = self.spec.series_window.spans
        names = []
        for begin, end in spans:
            steps = f"{begin}–{end - 1}" if end - begin > 1 else str(begin)
            names.append(steps if end else "class token")
        # 0 is the mean of standardized values: the best guess for one that is missing.
        inputs = torch.from_numpy(np.nan_to_num(values))[None]
        features = self._last_window(series)[1] if self.forecasts_steps else None
        backdrop = SeriesBackdrop(self._restored(values)[:, 0], spans, self.channel_names[0])
        return Reading(inputs, tuple(names), self._time_inputs(features), backdrop)

    def with_answer(self, backdrop: Backdrop, logits: Tensor) -> Backdrop:
        """The backdrop with the forecast of its channel; of quantiles, the middle one."""
        from regard.look.backdrop import SeriesBackdrop

        assert isinstance(backdrop, SeriesBackdrop), "series stand on themselves"
        if not self.forecasts_steps:
            return backdrop
        forecast = logits[0].float().cpu().numpy()  # [H, C], or [H, C, levels]
        if forecast.ndim > 2:
            forecast = forecast[..., forecast.shape[2] // 2]
        return replace(backdrop, forecast=self._restored(forecast)[:, 0])

    # ------------------------------------------------------------------ forecasting

    def forecast(self, series: AnySeries) -> NDArray[np.float64]:
        """The steps after a series, in its units: [horizon, channels].

        Quantile forecasts are [horizon, channels, levels]; of a distribution, its mean. An
        encoder–decoder goes on from the mean of each step to the next.
        """
        window, features = self._last_window(series)
        forecasts = next(self.forecasts(window, features))[0]  # [H, C] or [H, C, Q]
        # Quantiles stand last; statistics are of channels.
        return self._restored(forecasts.swapaxes(1, -1)).swapaxes(1, -1)

    def _restored(self, values: NDArray[np.float32]) -> NDArray[np.float64]:
        """Values [..., channels] in the units of the data."""
        if self.processor is None:
            return values.astype(np.float64)
        return self.processor.restored(values)

    @torch.inference_mode()
    def sample(
        self, series: AnySeries, count: int | None = None, *, seed: int = 0
    ) -> NDArray[np.float64]:
        """Sample trajectories after a series, in its units: [count, horizon, channels].

        `count` is by default `num_parallel_samples` of config.json. The same seed draws the same.
        """
        count = self._sample_count("count", count)
        seed = whole_number("seed", seed, least=0, most=LARGEST_SEED)
        window, features = self._last_window(series)
        values, mask = self._tensors(window)
        covariates = covariates_by_name(self._time_inputs(features))
        # Distributions draw from the default generators, which are as before afterwards.
        devices = [self.device] if self.device.type == "cuda" else []
        self.model.eval()
        with torch.random.fork_rng(devices):
            torch.manual_seed(seed)
            drawn = self.model.sample(values, mask, covariates, count=count)
        return self._restored(require_finite(drawn[0].float().cpu(), self.model).numpy())

    def generate_sequences(
        self, num_parallel_samples: int | None = None, /, **inputs: Tensor | None
    ) -> ModelOutput:
        """transformers' `generate` for time series: `sequences` [B, samples, H], or
        [B, samples, H, C], drawn from torch's default generator.

        The other arguments are those of a call without the future's values.
        """
        count = self._sample_count("num_parallel_samples", num_parallel_samples)
        tensors, _ = self._arguments(**inputs)
        values = tensors["past_values"]
        observed = tensors.get("past_observed_mask")
        mask = None if observed is None else with_channels(observed)
        self.model.check_values(tensors)
        covariates = covariates_by_name(tensors)
        with torch.inference_mode():
            drawn = self.model.sample(with_channels(values), mask, covariates, count=count)
        return ModelOutput(sequences=drawn.squeeze(-1) if values.ndim == 2 else drawn)

    def standardized(self, series: AnySeries) -> Values:
        """The values of a series as the model reads them: [time steps, channels]."""
        series = self.read(series)
        if series.values.shape[1] != self.channels:
            raise DataError(
                f"the series has {series.values.shape[1]} channels, the model {self.channels}",
                "pass the columns of its training data",
            )
        if np.isinf(series.values).any():
            raise DataError(
                "the series has values that are infinite or overflow float32",
                "use NaN for missing values",
            )
        return series.values if self.processor is None else self.processor.standardized(series)

    def read(self, series: AnySeries) -> Series:
        """A series, the columns of the model in a CSV file, or an array as a series."""
        columns = self.processor.columns if self.processor else ()
        if isinstance(series, Series):
            # Of a series with others besides, the columns that the model was trained on.
            has_more = len(series.columns) > len(columns) and set(columns) <= set(series.columns)
            return series.of_columns(columns) if columns and has_more else series
        if isinstance(series, str | Path):
            return read_series(series, columns or None)
        values = as_array(series, "series", _SERIES_FORMS)
        if values.ndim not in (1, 2) or not values.size:
            raise DataError(f"an array of shape {values.shape} is not a series", _SERIES_FORMS)
        # An array has no names: its columns are taken to be the model's.
        # What float32 cannot hold is infinite, and refused as such.
        with np.errstate(over="ignore"):
            return Series(values.reshape(len(values), -1).astype(np.float32), columns)

    def time_features(self, series: Series, future: int = 0) -> Values | None:
        """The time features of each step of a series, and of as many steps after it.

        None if the model reads none.
        """
        part = self.spec.front_ends.get("encoder")
        if not isinstance(part, kinds.LaggedValues):
            return None
        names = self.processor.time_features if self.processor else ()
        if part.categories or part.static_features or part.covariates != len(names):
            raise DataError(
                "this model needs features that a table of values does not have",
                "pass tensors: model(past_values=…, past_time_features=…)",
            )
        if not names:
            return None
        if series.dates is None:
            raise DataError(
                f"the series has no dates for the calendar features ({', '.join(names)})",
                "pass a CSV file with dates such as 2016-07-01 00:00:00 in its first column",
            )
        dates = np.concatenate([series.dates, dates_after(series.dates, future)])
        return calendar_features(dates, names)

    def _last_window(self, series: AnySeries) -> tuple[Values, Values | None]:
        """The last window [1, L, C], and the time features up to the last step that is forecast."""
        series = self.read(series)
        values = self.standardized(series)
        if len(values) < self.length:
            raise DataError(
                f"the series has {len(values)} steps, but this model reads {self.length}",
                "pass a longer series",
            )
        self._check_observed(values[-self.length :])
        features = self.time_features(series, self.horizon)
        if features is not None:
            features = features[None, -self.length - self.horizon :]
        return values[None, -self.length :], features

    def _check_observed(self, window: Values) -> None:
        """Refuses a window [L, C] without any value; says which channels have none in it."""
        is_missing: Any = np.isnan(window).all(axis=0)  # [C]
        if is_missing.all():
            raise DataError(
                f"the last {len(window)} steps of the series have no value",
                "pass a series with values in its last steps",
            )
        missing = compress(self.channel_names, is_missing)
        if is_missing.any():
            self.say(f"no value in the last {len(window)} steps of: {', '.join(missing)}")

    @torch.inference_mode()
    def forecasts(
        self, windows: Values, features: Values | None = None
    ) -> Iterator[NDArray[np.float32]]:
        """The forecasts of standardized windows [N, L, C], batch by batch.

        `features` [N, L + H, F] are their time features and those of the steps to come.
        """
        self.model.eval()
        # A long look-back or many channels make a batch of few windows.
        size = max(1, _BATCH_VALUES // (self.length * self.channels))
        for begin in range(0, len(windows), size):
            rows = slice(begin, begin + size)
            # A copy: windows are overlapping views of one array, which torch must not write to.
            values = torch.from_numpy(np.array(windows[rows], np.float32))
            time = None if features is None else torch.from_numpy(np.array(features[rows]))
            outputs = self.forecast_tensor(values.to(self.device), time).float().cpu()
            # A metric would take NaN for a missing value, and count a perfect score.
            yield require_finite(outputs, self.model).numpy()

    def forecast_tensor(self, values: Tensor, features: Tensor | None = None) -> Tensor:
        """Forecasts of windows [B, L, C] with NaN where a value is missing: [B, H, C], or
        [B, H, C, Q] for quantiles; of distributions, their means."""
        values, mask = self._tensors(values)
        inputs = {"past_values": values, **self._time_inputs(features)}
        if mask is not None:
            inputs["past_observed_mask"] = mask
        forecast = self.model.own_forecast(values, inputs, Context())
        if forecast is not None:
            return forecast
        return self.model.head_output(self.model.hidden_states(inputs, Context()), inputs)

    def _tensors(self, values: Tensor | Values) -> tuple[Tensor, Tensor | None]:
        """Windows as the model reads them, and which values there are, if not all."""
        tensor = torch.as_tensor(values, device=self.device)
        # The mask is a tensor of its own: NaN times 0 is NaN.
        observed = ~tensor.isnan()
        mask = None if bool(observed.all()) else observed
        return tensor.nan_to_num().to(self.dtype), mask

    def _time_inputs(self, features: Tensor | Values | None) -> dict[str, Tensor]:
        """Time features [B, L + H, F] as those of the window and of what follows."""
        if features is None:
            return {}
        tensor = torch.as_tensor(features, device=self.device, dtype=self.dtype)
        return {
            "past_time_features": tensor[:, : self.length],
            "future_time_features": tensor[:, self.length :],
        }

    def _sample_count(self, name: str, count: int | None) -> int:
        """How many trajectories are drawn from the distribution that is forecast."""
        if not isinstance(self.output, kinds.Distribution):
            raise ModelError(
                "this model does not forecast a distribution, so it has no samples",
                "train one with --forecast student_t",
            )
        if count is not None:
            return whole_number(name, count, least=1)
        default = self.config.get("num_parallel_samples")
        return default if is_whole(default, 1) else _SAMPLES


def _refuse() -> NoReturn:
    raise ModelError(
        "this model does not forecast",
        "use a model with a forecasting head, such as PatchTSTForPrediction",
    )
