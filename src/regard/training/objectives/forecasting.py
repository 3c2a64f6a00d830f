"""Forecasting of time series: points, quantiles or distributions.

By encoders (PatchTST, Nie et al. 2023), encoder–decoders with teacher forcing, and linear maps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from regard import spec
from regard.baselines.linear_forecaster import LinearForecaster
from regard.builder import build
from regard.builder.heads import build_forecast_loss
from regard.core.lagged_values import Covariates, LaggedValues
from regard.core.series_patches import Scaling, SeriesPatches
from regard.data.batching import Batch, BatchSampler, Rows
from regard.data.series import CALENDAR, PROCESSOR_FILE, SeriesProcessor
from regard.encoder import Encoder
from regard.errors import ModelError
from regard.families import folder as folders
from regard.metrics.forecast import ForecastScore, QuantileScore, forecast_score
from regard.metrics.scores import AnyScore
from regard.models import Model, SeriesModel
from regard.models.saving import config_json
from regard.series_encoder_decoder import SeriesEncoderDecoder
from regard.training import model_spec
from regard.training.data.stored_series import StoredSeries, stored_series
from regard.training.objectives.objective import Objective
from regard.training.setup import Setup

# A validation batch has no gradients and may be this much larger than a training batch.
EVALUATION_BATCH_FACTOR = 4
# Steps of a linear model that count as one position: its batches are as large as PatchTST's.
LINEAR_STEPS = 8


class Forecasting(Objective):
    """What follows a window: each step of each channel, by squared error, pinball loss or −log p.

    Windows begin at every step, so that the number of a window is all that a position needs.
    """

    name = "forecast"
    unit = "values"
    base_advice = "give a model of time series, such as PatchTST"
    spec_classes = (spec.Encoder, spec.SeriesEncoderDecoder, spec.LinearForecaster)
    input_names = ("past_values",)
    head_fields = "series=ForecastHead(HORIZON); an encoder–decoder, output=Distribution()"
    trained_model: SeriesModel
    data: StoredSeries

    def __init__(self, model: SeriesModel, data: StoredSeries, setup: Setup) -> None:
        super().__init__(model, data, setup)
        self.length = model.length
        self.horizon = model.horizon
        self.output = model.output
        self.forecast_loss = build_forecast_loss(self.output)
        if self.output == spec.Distribution("negative_binomial") and any(data.processor.mean):
            raise ModelError(
                "negative_binomial is for counts, but this series is standardized",
                "give --model and --forecast negative_binomial, instead of a spec",
            )
        self.windows = {
            split: data.windows(split, self.length, self.horizon) for split in data.borders
        }
        assert model.processor is not None, "set by with_tokenizer or adapt"
        names = model.processor.time_features
        self.time_features = {
            split: data.time_features(split, self.length, self.horizon, names)
            for split in data.borders
        }
        self.has_missing = bool(np.isnan(data.values).any())
        # Views of the stored array: windows overlap, and none is copied before its batch.
        counts = ", ".join(f"{len(windows):,} {name}" for name, windows in self.windows.items())
        setup.say(f"windows of {self.length} steps, {self.horizon} to forecast: {counts}")

    # --- assembling a run -------------------------------------------------------------------------

    @classmethod
    def prepare(cls, setup: Setup, base: Model | None) -> StoredSeries:
        processor = None
        output = setup.recipe.model.forecast
        if isinstance(base, SeriesModel):
            processor = base.processor
            if base.forecasts_steps and isinstance(base.output, spec.Distribution):
                output = base.output.name
        return stored_series(setup, processor, counts=output == "negative_binomial")

    @classmethod
    def has_head(cls, description: Any) -> bool:
        if isinstance(description, spec.Encoder):
            return isinstance(description.series, spec.ForecastHead)
        return description.output is not None

    @classmethod
    def describe(cls, setup: Setup, data: StoredSeries) -> spec.Model:
        channels = len(data.processor.columns)
        description = model_spec.describe(setup.recipe, channels)
        description = _with_channels(description, channels)
        if isinstance(description, spec.SeriesEncoderDecoder):
            return _with_calendar(description, data, setup)
        return description

    @classmethod
    def with_tokenizer(
        cls, model: Any, description: Any, data: StoredSeries, setup: Setup
    ) -> SeriesModel:
        # transformers' config.json where it has the model, our own for quantiles and scales.
        config = folders.describe(description, model_type=setup.recipe.model_name)
        forecaster = SeriesModel(model, description, config)
        forecaster.processor = _with_time_features(data, description)
        return forecaster

    @classmethod
    def adapt(cls, base: Model, data: StoredSeries, setup: Setup) -> SeriesModel:
        """The same stack; a new head if none forecasts, or another horizon is asked for."""
        assert isinstance(base, SeriesModel), "checked before"
        channels = len(data.processor.columns)
        description = _with_channels(base.spec, channels)
        horizon = setup.recipe.model.horizon
        if isinstance(description, spec.Encoder):
            description = _with_forecast(description, horizon)
        if isinstance(description, spec.SeriesEncoderDecoder):
            output = description.output or spec.Distribution()
            horizon = horizon or description.horizon
            description = replace(description, horizon=horizon, output=output)
        # Built anew even if nothing changes: one way for all, and the weights are copied.
        torch.manual_seed(setup.recipe.train.seed)  # for a new head
        model = build(description)
        _copy_weights(base, model)
        forecaster = SeriesModel(model, description, config_json(description, base.config))
        forecaster.folder = base.folder
        forecaster.say = base.say
        forecaster.processor = _with_time_features(data, description)
        return forecaster

    @classmethod
    def files(cls, model: Model, setup: Setup) -> dict[str, dict[str, Any]]:
        assert isinstance(model, SeriesModel), "made by with_tokenizer"
        assert model.processor is not None, "set by with_tokenizer"
        return {"config.json": model.config, PROCESSOR_FILE: model.processor.to_config()}

    # --- training ---------------------------------------------------------------------------------

    @property
    def model(self) -> Encoder | SeriesEncoderDecoder | LinearForecaster:
        return self.trained_model.model

    @property
    def positions(self) -> int:
        """What a window counts in a batch: the patches of all its channels, or its time steps."""
        description = self.trained_model.spec
        if isinstance(description, spec.SeriesEncoderDecoder):
            return description.input.length + description.horizon
        if isinstance(description, spec.LinearForecaster):
            return description.channels * -(-description.length // LINEAR_STEPS)
        return description.windows.channels * description.windows.positions

    def _sampler(self) -> BatchSampler:
        lengths = np.full((len(self.windows["train"]), 1), self.positions)
        return BatchSampler(lengths, self.settings.batch_tokens, seed=self.settings.seed)

    def batches_per_epoch(self) -> int:
        return len(self._sampler().batches(0))

    def batches(self, epoch: int, index: int) -> Iterator[tuple[tuple[int, int], Batch]]:
        for now, i, rows in self._sampler().iterate(epoch, index):
            yield (now, i + 1), self._batch("train", rows)

    def _batch(self, split: str, rows: Rows) -> Batch:
        values = torch.from_numpy(np.ascontiguousarray(self.windows[split][rows]))  # [B, L + H, C]
        tensors = {}
        features = self.time_features[split]
        count = values[:, self.length :].numel()
        # Without gaps there are no masks, so that the model takes its plain path.
        if self.has_missing:
            observed = ~values.isnan()
            values = values.nan_to_num()
            tensors = {"observed": observed[:, : self.length], "known": observed[:, self.length :]}
            count = int(tensors["known"].sum())
        tensors |= {"past": values[:, : self.length], "future": values[:, self.length :]}
        if features is not None:
            tensors["time"] = torch.from_numpy(np.ascontiguousarray(features[rows]))
        return Batch(tensors, count, rows)

    def forecast(
        self, tensors: Mapping[str, Tensor]
    ) -> tuple[Tensor | tuple[Tensor, ...], dict[str, Tensor]]:
        """Forecasts as the head has them, and auxiliary losses."""
        past = tensors["past"]
        observed = tensors.get("observed")
        more: dict[str, Any] = {}
        if isinstance(self.model, SeriesEncoderDecoder):
            # Teacher forcing: each step is forecast from the true ones before it.
            more = {"future": tensors["future"], "covariates": self._covariates(tensors)}
        hidden, auxiliary = self.model(past, observed, **more)
        return self.model.predict(hidden, past, observed), auxiliary

    def loss(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """There is no −log p of points and quantiles: the loss stands for both."""
        forecast, auxiliary = self.forecast(tensors)
        errors = self.forecast_loss(forecast, tensors["future"], lambda: self._scaling(tensors))
        if "known" in tensors:
            errors = torch.where(tensors["known"], errors, 0.0)
        loss = errors.sum()
        return self.with_auxiliary(loss, auxiliary, errors.numel()), loss.detach()

    def _scaling(self, tensors: Mapping[str, Tensor]) -> Scaling:
        """Location and scale of each window; linear models have none."""
        assert not isinstance(self.model, LinearForecaster), "it forecasts no distribution"
        front_end = cast(SeriesPatches | LaggedValues, self.model.input)
        return front_end.scaling(tensors["past"], tensors.get("observed"))

    def _covariates(self, tensors: Mapping[str, Tensor]) -> Covariates:
        """The time features of the window and of what follows it."""
        if "time" not in tensors:
            return Covariates()
        time = tensors["time"]
        return Covariates(past=time[:, : self.length], future=time[:, self.length :])

    def examples(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        return [{"row": int(row), "text": f"steps {row} to {row + self.length}"} for row in rows]

    # --- evaluation -------------------------------------------------------------------------------

    def validate(self, autocast: AbstractContextManager[Any]) -> dict[str, Any] | None:
        if "valid" not in self.windows:
            return None
        total = torch.zeros((), dtype=torch.float64)
        count = 0
        for batch in self._evaluation_batches("valid"):
            with torch.inference_mode(), autocast:
                _, loss = self.loss(batch.tensors)
            total += loss.double().cpu()
            count += batch.tokens
        score = self.score("valid", autocast)
        return {"loss": total.item() / max(1, count), **vars(score)}

    def _evaluation_batches(self, split: str) -> Iterator[Batch]:
        """Once over the windows of a split in their order, with the model in eval mode."""
        self.model.eval()
        windows = self.windows[split]
        budget = EVALUATION_BATCH_FACTOR * self.settings.batch_tokens
        # One window may be larger than the budget: many channels, long look-back.
        size = max(1, budget // self.positions)
        for begin in range(0, len(windows), size):
            rows = np.arange(begin, min(begin + size, len(windows)))
            yield self._batch(split, rows).to(self.trained_model.device)

    def score(
        self, split: str, autocast: AbstractContextManager[Any]
    ) -> ForecastScore | QuantileScore:
        """Errors on standardized values, as the literature has them."""
        self.model.eval()
        windows = self.windows[split]
        # All forecasts at once: metrics take the windows of a split as examples.
        parts = []
        with torch.inference_mode(), autocast:
            for batch in self._evaluation_batches(split):
                past = batch.tensors["past"]
                if "observed" in batch.tensors:
                    past = past.masked_fill(~batch.tensors["observed"], torch.nan)
                forecast = self.trained_model.forecast_tensor(past, batch.tensors.get("time"))
                parts.append(forecast.float().cpu().numpy())
        future = windows[:, self.length :]
        return forecast_score(np.concatenate(parts), future, self.output.levels)

    def scores(self) -> dict[str, AnyScore]:
        results: dict[str, AnyScore] = {}
        for split in self.windows:
            if split == "train":
                continue
            score = self.score(split, nullcontext())
            results[split] = score
            numbers = [f"{name} {value:.4f}" for name, value in vars(score).items()][:-1]
            self.setup.say(f"{split}: {'  '.join(numbers)}  ({score.examples:,} windows)")
        return results


def _with_channels(description: Any, channels: int) -> Any:
    """The model of a preset, a file or a folder for so many channels."""
    if isinstance(description, spec.LinearForecaster):
        return replace(description, channels=channels)
    if isinstance(description, spec.SeriesEncoderDecoder):
        return replace(description, input=replace(description.input, channels=channels))
    if not isinstance(description.input, spec.SeriesPatches):
        raise ModelError("this model reads no time series", "give one with SeriesPatches")
    if not description.input.shared and description.input.channels != channels:
        raise ModelError(
            f"the model has separate projections for {description.input.channels} channels",
            f"give a series of as many, not of {channels}",
        )
    return replace(description, input=replace(description.input, channels=channels))


def _with_calendar(
    description: spec.SeriesEncoderDecoder, data: StoredSeries, setup: Setup
) -> spec.SeriesEncoderDecoder:
    """The model with the time features that there are: those of the calendar, if dates are."""
    part = description.input
    if not part.time_features or data.dates is not None:
        return description
    setup.say("the series has no dates: the model reads no time features")
    return replace(description, input=replace(part, time_features=0))


def _with_time_features(data: StoredSeries, description: Any) -> SeriesProcessor:
    """The processor of a model, with the names of the time features that it reads."""
    if not isinstance(description, spec.SeriesEncoderDecoder):
        return data.processor
    part = description.input
    if part.categories or part.static_features or part.dynamic_features:
        raise ModelError(
            "this model reads features that a table of values does not have",
            "train one that reads lagged values and the calendar only",
        )
    if part.time_features not in (0, len(CALENDAR)):
        raise ModelError(
            f"this model reads {part.time_features} time features, but the calendar has "
            f"{len(CALENDAR)}: {', '.join(CALENDAR)}",
            f"give one with {len(CALENDAR)}, or with 0",
        )
    if part.time_features and data.dates is None:
        raise ModelError(
            "this model reads the calendar, but the series has no dates",
            "give a CSV file with dates as 2016-07-01 00:00:00 in its first column",
        )
    names = tuple(CALENDAR)[: part.time_features]
    return replace(data.processor, time_features=names)


def _with_forecast(description: spec.Encoder, horizon: int | None) -> spec.Encoder:
    """The encoder without masks and with a head that forecasts, its own if the horizon fits."""
    # What pre-training hid is seen from now on.
    windows = replace(description.windows, masking=None)
    head = description.series
    if isinstance(head, spec.ForecastHead):
        head = replace(head, horizon=horizon or head.horizon)
    else:
        pool: spec.ChannelPool | None = "first" if windows.class_token else None
        dropout = 0.0 if head is None else head.dropout
        # 96 is the first horizon of the usual benchmarks (Nie et al. 2023, Table 3).
        head = spec.ForecastHead(horizon or 96, pool=pool, dropout=dropout)
    return replace(description, input=windows, series=head)


@torch.no_grad()
def _copy_weights(base: SeriesModel, model: torch.nn.Module) -> None:
    """Copies the weights of the base model; a head of another shape stays as it was drawn."""
    old = dict(base.model.named_parameters())
    for name, parameter in model.named_parameters():
        # With another horizon the head has another shape, and is learnt anew.
        if name in old and old[name].shape == parameter.shape:
            parameter.copy_(old[name])
        # Sinusoids are computed, for as many steps as there are now.
        elif parameter.requires_grad and not name.startswith("series."):
            raise ModelError(f"{base.folder} has no weights for {name}", "give a whole model")
