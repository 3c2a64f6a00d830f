"""Forecasting of time series: points, quantiles or distributions.

By encoders (PatchTST, Nie et al. 2023), encoder–decoders with teacher forcing, and linear maps.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from regard import spec
from regard.builder.heads import build_forecast_loss
from regard.core.frontends.lagged_values import Covariates, LaggedValues
from regard.core.frontends.series_patches import Scaling, SeriesPatches
from regard.core.heads.series_head import ForecastLoss
from regard.evaluation.metrics.metric import OutputKind
from regard.evaluation.task import Outputs
from regard.models import Model, SeriesModel
from regard.system.errors import ModelError
from regard.training import model_spec
from regard.training.data.series_source import SeriesWindows, StoredSeries
from regard.training.objectives.losses import LossSums, LossTerms, Tensors
from regard.training.objectives.objective import ScoredObjective
from regard.training.setup import Setup


def forecast_errors(
    model: Any, loss: ForecastLoss, tensors: Tensors, covariates: Covariates
) -> LossTerms:
    """The error of each step; there is no −log p of points and quantiles, so it stands for both.

    Encoder–decoders forecast each step from the true ones before it (teacher forcing).
    """
    past = tensors["past"]
    observed = tensors.get("observed")
    more: dict[str, Any] = {}
    if len(model.stacks()) == 2:
        more = {"future": tensors["future"], "covariates": covariates}
    hidden, auxiliary = model(past, observed, **more)
    forecast = model.predict(hidden, past, observed)
    # Location and scale of each window; linear models have none.
    scaling = partial(_scaling, model, past, observed)
    errors = loss(forecast, tensors["future"], scaling)
    if "known" in tensors:
        errors = torch.where(tensors["known"], errors, 0.0)
    total = errors.sum()
    return LossTerms(total, total.detach(), auxiliary, errors.numel())


def _scaling(model: Any, past: Tensor, observed: Tensor | None) -> Scaling:
    front_end: SeriesPatches | LaggedValues = model.input
    return front_end.scaling(past, observed)


class Forecasting(ScoredObjective):
    """What follows a window: each step of each channel, by squared error, pinball loss or −log p.

    Windows begin at every step, so that the number of a window is all that a position needs.
    """

    name = "forecast"
    unit = "values"
    base_advice = "give a model of time series, such as PatchTST"
    spec_classes = (spec.Encoder, spec.SeriesEncoderDecoder, spec.LinearForecaster)
    input_names = ("past_values",)
    head_fields = "heads=(ForecastHead(HORIZON),); an encoder–decoder, output=Distribution()"
    source_class = SeriesWindows

    def __init__(self, model: SeriesModel, data: StoredSeries, setup: Setup) -> None:
        super().__init__(model, data, setup)
        self.forecast_loss = build_forecast_loss(model.output)
        if model.output == spec.Distribution("negative_binomial") and any(data.processor.mean):
            raise ModelError(
                "negative_binomial is for counts, but this series is standardized",
                "give --model and --forecast negative_binomial, instead of a spec",
            )

    # --- assembling a run -------------------------------------------------------------------------

    @classmethod
    def has_head(cls, description: Any) -> bool:
        if _is_patched(description):
            return isinstance(description.series, spec.ForecastHead)
        return description.output is not None

    @classmethod
    def describe(cls, setup: Setup, data: StoredSeries) -> spec.Model:
        channels = len(data.processor.columns)
        description = _with_channels(model_spec.describe(setup.recipe, channels), channels)
        if description.is_encoder_decoder:
            description = _with_calendar(description, data, setup)
        return description  # type: ignore[no-any-return]

    @classmethod
    def adapt(cls, base: Any, data: StoredSeries, setup: Setup) -> Model:
        """The same stack; a new head if none forecasts, or another horizon is asked for."""
        channels = len(data.processor.columns)
        description = _with_channels(base.spec, channels)
        horizon = setup.recipe.model.horizon
        if description.is_encoder_decoder:
            output = description.output or spec.Distribution()
            horizon = horizon or description.horizon
            description = replace(description, horizon=horizon, output=output)
        elif _is_patched(description):
            description = _with_forecast(description, horizon)
        # Built anew even if nothing changes: one way for all, and the weights are copied.
        return cls.rebuilt(base, description, data, setup)

    # --- training ---------------------------------------------------------------------------------

    def loss(self, tensors: Tensors) -> LossSums:
        time = tensors.get("time")
        covariates = Covariates()
        if time is not None:
            length = self.trained_model.length
            covariates = Covariates(past=time[:, :length], future=time[:, length:])
        return self.total(forecast_errors(self.model, self.forecast_loss, tensors, covariates))

    # --- evaluation -------------------------------------------------------------------------------

    def outputs(self, split: str) -> tuple[OutputKind, Outputs]:
        """Errors on standardized values, as the literature has them."""
        windows = self.source.splits[split]  # [N, L + H, C]
        model = self.trained_model
        features = self.source.time_features.get(split)
        with torch.inference_mode(), self.autocast:
            forecasts = [*chain(*model.forecasts(windows[:, : model.length], features))]
        future = windows[:, model.length :]
        levels = model.output.levels
        if levels is None:
            return "prediction", Outputs(forecasts, future)
        # Each example brings its levels: metrics have no options that depend on a model.
        return "quantiles", Outputs([(levels, one) for one in forecasts], future)


def _is_patched(description: Any) -> bool:
    """Whether an encoder reads patches of a window; linear forecasters have no stack."""
    return bool(description.stacks) and not description.is_encoder_decoder


def _with_channels(description: Any, channels: int) -> Any:
    """The model of a preset, a file or a folder for so many channels."""
    if not description.stacks:
        return replace(description, channels=channels)
    part = description.input
    is_patched = isinstance(part, spec.SeriesPatches)
    if is_patched and not part.shared and part.channels != channels:
        raise ModelError(
            f"the model has separate projections for {part.channels} channels",
            f"give a series of as many, not of {channels}",
        )
    return replace(description, input=replace(part, channels=channels))


def _with_calendar(
    description: spec.SeriesEncoderDecoder, data: StoredSeries, setup: Setup
) -> spec.SeriesEncoderDecoder:
    """The model with the time features that there are: those of the calendar, if dates are."""
    part = description.input
    if not part.time_features or data.series.dates is not None:
        return description
    setup.say("the series has no dates: the model reads no time features")
    return replace(description, input=replace(part, time_features=0))


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
    return replace(description, input=windows, heads=(head,))
