"""A model of time series (PatchTST, the time-series Transformer, linear forecasters).

Its forecasts are in the units of the data.
"""

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
from regard.core.finite_outputs import require_finite
from regard.core.frontends.lagged_values import Covariates
from regard.core.frontends.series_patches import Scaling, SeriesPatches
from regard.core.heads.series_head import distribution, distribution_mean
from regard.data.series import (
    Series,
    SeriesProcessor,
    Values,
    calendar_features,
    dates_after,
    read_series,
    read_series_processor,
)
from regard.models.base import Model
from regard.models.hf_call import ModelOutput
from regard.models.inputs.arrays import as_array
from regard.system import memory
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
_BYTES_PER_SAMPLE = 16  # of a number: drawn, stacked, and in float64
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
        match self.spec:
            case kinds.LinearForecaster():
                return self.spec.length
            case kinds.SeriesEncoderDecoder():
                return self.spec.input.past
            case kinds.Encoder():
                return self.spec.windows.length

    @property
    def channels(self) -> int:
        """How many channels a window has."""
        match self.spec:
            case kinds.LinearForecaster():
                return self.spec.channels
            case kinds.SeriesEncoderDecoder():
                return self.spec.input.channels
            case kinds.Encoder():
                return self.spec.windows.channels

    @property
    def forecasts_steps(self) -> bool:
        """Whether it forecasts, and does not only encode, classify or reconstruct."""
        if isinstance(self.spec, kinds.Encoder):
            return isinstance(self.spec.series, kinds.ForecastHead)
        return self.spec.output is not None

    @property
    def evaluations(self) -> tuple[str, ...]:
        return ("forecast",) if self.forecasts_steps else ()

    @property
    def horizon(self) -> int:
        """The steps that are forecast."""
        if not isinstance(self.spec, kinds.Encoder):
            return self.spec.horizon
        if not isinstance(self.spec.series, kinds.ForecastHead):
            raise _no_forecaster()
        return self.spec.series.horizon

    @property
    def output(self) -> kinds.Forecast:
        """What is forecast for each step: a point, quantiles, or a distribution."""
        part = self.spec.series if isinstance(self.spec, kinds.Encoder) else self.spec
        if isinstance(part, kinds.PatchHead | kinds.ChannelHead | None) or part.output is None:
            raise _no_forecaster()
        return part.output

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

    def labelled_input(self, text: str) -> tuple[Tensor, tuple[str, ...]]:
        """The last window of a CSV file, [1, L, C], and the steps of each position.

        Attention over patches is that of the first channel: each is read by itself.
        """
        values = self.standardized(text)[-self.length :]
        names = ["class token"] if self._has_class_token else []
        for begin, end in self._spans():
            names.append(f"{begin}–{end - 1}" if end - begin > 1 else str(begin))
        # 0 is the mean of standardized values: the best guess for one that is missing.
        return torch.from_numpy(np.nan_to_num(values))[None], tuple(names)

    def side_inputs(self, text: str) -> dict[str, Tensor]:
        """The time features of the window and of what follows it, if the model reads any."""
        features = self._last_window(text)[1] if self.forecasts_steps else None
        covariates = self._covariates(features)
        if covariates.past is None or covariates.future is None:
            return {}
        return {
            "past_time_features": covariates.past,
            "future_time_features": covariates.future,
        }

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
        if not self.forecasts_steps:
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
        """The first step of each position and the one after its last, scale after scale."""
        if isinstance(self.spec, kinds.LinearForecaster):
            return []
        if isinstance(self.spec, kinds.SeriesEncoderDecoder):
            # What comes before is read as lagged values only.
            first = self.length - self.spec.input.length
            return [(step, step + 1) for step in range(first, self.length)]
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

    def forecast(self, series: AnySeries) -> NDArray[np.float64]:
        """The steps after a series, in its units: [horizon, channels].

        Quantile forecasts are [horizon, channels, levels]; of a distribution, its mean. An
        encoder–decoder goes on from the mean of each step to the next.
        """
        window, features = self._last_window(series)
        forecasts = next(self.forecasts(window, features))[0]  # [H, C] or [H, C, Q]
        if self.processor is None:
            return forecasts.astype(np.float64)
        if forecasts.ndim == 2:
            return self.processor.restored(forecasts)
        # Quantiles stand last; statistics are of channels.
        return self.processor.restored(forecasts.swapaxes(1, 2)).swapaxes(1, 2)

    @torch.inference_mode()
    def sample(
        self, series: AnySeries, count: int | None = None, *, seed: int = 0
    ) -> NDArray[np.float64]:
        """Sample trajectories after a series, in its units: [count, horizon, channels].

        `count` is by default `num_parallel_samples` of config.json. The same seed draws the same.
        """
        count = self._sample_count if count is None else whole_number("count", count, least=1)
        seed = whole_number("seed", seed, least=0, most=LARGEST_SEED)
        self._require_memory(count)
        window, features = self._last_window(series)
        values, mask = self._tensors(window)
        covariates = self._covariates(features)
        # Distributions draw from the default generators, which are as before afterwards.
        devices = [self.device] if self.device.type == "cuda" else []
        self.model.eval()
        with torch.random.fork_rng(devices):
            torch.manual_seed(seed)
            drawn = self._sample_tensor(values, mask, covariates, count)
        samples = require_finite(drawn[0].float().cpu(), self.model).numpy()
        if self.processor is None:
            return samples.astype(np.float64)
        return self.processor.restored(samples)

    def generate_sequences(
        self, num_parallel_samples: int | None = None, /, **inputs: Tensor | None
    ) -> ModelOutput:
        """transformers' `generate` for time series: `sequences` [B, samples, H], or
        [B, samples, H, C], drawn from torch's default generator.

        The other arguments are those of a call without the future's values.
        """
        tensors = self._arguments(**inputs)
        count = self._sample_count
        if num_parallel_samples is not None:
            count = whole_number("num_parallel_samples", num_parallel_samples, least=1)
        observed = tensors.get("past_observed_mask")
        mask = None if observed is None else with_channels(observed)
        self.model.check_values(tensors)
        covariates = covariates_by_name(tensors)
        with torch.inference_mode():
            values = with_channels(tensors["past_values"])
            drawn = self._sample_tensor(values, mask, covariates, count)
        if tensors["past_values"].ndim == 2:
            drawn = drawn.squeeze(-1)
        return ModelOutput(sequences=drawn)

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
            # The reader of texts takes all files below a folder, and "" is the current one.
            if not str(series).strip() or Path(series).is_dir():
                raise DataError(f"{str(series)!r} is not a file", _SERIES_FORMS)
            return read_series(series, columns or None)
        values = as_array(series, "series", _SERIES_FORMS)
        if values.ndim not in (1, 2) or not values.size or np.iscomplexobj(values):
            raise DataError(f"an array of shape {values.shape} is not a series", _SERIES_FORMS)
        # An array has no names: its columns are taken to be the model's.
        with np.errstate(
            over="ignore"
        ):  # what float32 cannot hold is infinite, and refused as such
            return Series(values.reshape(len(values), -1).astype(np.float32), columns)

    def time_features(self, series: Series, future: int = 0) -> Values | None:
        """The time features of each step of a series, and of as many steps after it.

        None if the model reads none.
        """
        if not isinstance(self.spec, kinds.SeriesEncoderDecoder):
            return None
        part = self.spec.input
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
        dates = series.dates
        if future:
            dates = np.concatenate([dates, dates_after(dates, future)])
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
        is_missing = [bool(np.isnan(channel).all()) for channel in window.T]
        if all(is_missing):
            raise DataError(
                f"the last {len(window)} steps of the series have no value",
                "pass a series with values in its last steps",
            )
        names = zip(self.channel_names, is_missing, strict=True)
        missing = [name for name, has_none in names if has_none]
        if missing:
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
        if isinstance(self.model, SeriesEncoderDecoder):
            return self.model.forecast(values, mask, self._covariates(features))
        hidden, _ = self.model(values, mask)
        output = self.model.predict(hidden, values, mask)
        if isinstance(output, Tensor):
            return output
        return distribution_mean(self._distribution.name, output, self._scaling(values, mask))

    def _tensors(self, values: Tensor | Values) -> tuple[Tensor, Tensor | None]:
        """Windows as the model reads them, and which values there are, if not all."""
        tensor = torch.as_tensor(values, device=self.device)
        # The mask is a tensor of its own: NaN times 0 is NaN.
        observed = ~tensor.isnan()
        mask = None if bool(observed.all()) else observed
        return tensor.nan_to_num().to(self.dtype), mask

    def _covariates(self, features: Tensor | Values | None) -> Covariates:
        """Time features [B, L + H, F] as those of the window and of what follows."""
        if features is None:
            return Covariates()
        tensor = torch.as_tensor(features, device=self.device, dtype=self.dtype)
        return Covariates(past=tensor[:, : self.length], future=tensor[:, self.length :])

    def _sample_tensor(
        self, values: Tensor, mask: Tensor | None, covariates: Covariates, count: int
    ) -> Tensor:
        """Sample trajectories of windows: [B, count, H, C]."""
        kind = self._distribution.name
        if isinstance(self.model, SeriesEncoderDecoder):
            return self.model.sample(values, mask, covariates, count=count)
        hidden, _ = self.model(values, mask)
        parameters = self.model.predict(hidden, values, mask)
        assert isinstance(parameters, tuple), "of a distribution"
        # The steps of an encoder's forecast do not depend on each other.
        steps = distribution(kind, parameters, self._scaling(values, mask))
        return torch.stack([steps.sample() for _ in range(count)], dim=1)

    def _require_memory(self, count: int) -> None:
        """Raises `ModelError` if so many trajectories do not fit into memory."""
        values = count * self.horizon * self.channels
        if isinstance(self.spec, kinds.SeriesEncoderDecoder):
            # The states of all steps are remembered for each trajectory.
            values += count * (self.length + self.horizon) * self.spec.d_model
        memory.require_bytes(
            _BYTES_PER_SAMPLE * values,
            f"{count:,} trajectories of {self.horizon:,} steps",
            "draw fewer samples: a hundred are enough for quantiles",
        )

    def _scaling(self, values: Tensor, mask: Tensor | None) -> Scaling:
        assert isinstance(self.model, Encoder), "linear forecasters have no distributions"
        assert isinstance(self.model.input, SeriesPatches), "it reads time series"
        return self.model.input.scaling(values, mask)

    @property
    def _distribution(self) -> kinds.Distribution:
        if not isinstance(self.output, kinds.Distribution):
            raise ModelError(
                "this model does not forecast a distribution, so it has no samples",
                "train one with --forecast student_t",
            )
        return self.output

    @property
    def _sample_count(self) -> int:
        count = self.config.get("num_parallel_samples")
        return count if is_whole(count, 1) else _SAMPLES


def _no_forecaster() -> ModelError:
    return ModelError(
        "this model does not forecast",
        "use a model with a forecasting head, such as PatchTSTForPrediction",
    )
