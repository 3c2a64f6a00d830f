"""Encoder–decoder of time series: teacher forcing, and forecasts that go on from themselves."""

# Letters of shapes: B windows, P steps of the past, H steps to come, C channels, D d_model.

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.core.caches.kv_cache import DecoderState
from regard.core.context import Context
from regard.core.encoder_output import EncoderOutput
from regard.core.frontends.lagged_values import Covariates, LaggedValues, SeriesState, StepEmbedding
from regard.core.frontends.series_patches import Scaling
from regard.core.heads.series_head import (
    DistributionParameters,
    Parameters,
    distribution,
    distribution_mean,
    negative_log_likelihood,
)
from regard.core.output import Inputs, Output, OutputOptions, Outputs, asides
from regard.core.side import Side
from regard.core.stack import Stack
from regard.system.errors import DataError
from regard.wirings.core_model import CoreModel, Split, bool_mask

Losses = dict[str, Tensor]
NO_COVARIATES = Covariates()
# The next values [B, 1, C], in the units of the windows, of the kind of their distribution and its
# parameters.
NextValues = Callable[[str, Parameters, Scaling], Tensor]


_SERIES = ("past_values", "past_observed_mask", "future_values", "future_observed_mask")


class EncodedSeries(NamedTuple):
    """What a decoder goes on from: the encoder output, and the state of the windows."""

    memory: EncoderOutput
    state: SeriesState


class SeriesEncoderDecoder(CoreModel):
    """Encoder–decoder of time series (transformers' time-series Transformer).

    Both sides read the lagged values of their steps, so that the decoder is given the step before
    the one it forecasts: the true one in training (teacher forcing), later its own.
    """

    def __init__(
        self,
        input: LaggedValues,
        source: StepEmbedding,
        target: StepEmbedding,
        encoder: Stack,
        decoder: Stack,
        series: DistributionParameters | None,
        horizon: int,
    ) -> None:
        super().__init__()
        self.input = input
        self.source = source
        self.target = target
        self.encoder = encoder
        self.decoder = decoder
        self.series = series
        self.horizon = horizon

    def stacks(self) -> dict[str, Side]:
        return {"encoder": self.encoder, "decoder": self.decoder}

    def front_ends(self) -> dict[str, nn.Module]:
        return {"encoder": self.source, "decoder": self.target}

    def heads(self) -> dict[str, nn.Module]:
        return {} if self.series is None else {"series": self.series}

    def own_forecast(self, inputs: Tensor, side_inputs: Inputs, context: Context) -> Tensor:
        observed = side_inputs.get("past_observed_mask")
        return self.forecast(inputs, observed, covariates_by_name(side_inputs), context)

    def encode(
        self,
        values: Tensor,
        observed: Tensor | None = None,
        covariates: Covariates = NO_COVARIATES,
        context: Context | None = None,
    ) -> EncodedSeries:
        """values [B, P, C] → hidden states [B, L, D] of the last L steps; `observed` [B, P, C] is
        False where a value is missing."""
        context = context or Context()
        state = self.input.start(values, observed, covariates)
        first = self.input.past - self.input.length
        time = None if covariates.past is None else covariates.past[:, first:]
        x = self.source(self.input.steps(state, first, self.input.length, time))  # [B, L, D]
        # No padding mask: what is missing changes the statistics of a window, and stands as zero.
        hidden = self.encoder(x, None, context.scope("encoder"))
        return EncodedSeries(context.output(hidden, None), state)

    def decode(
        self,
        future: Tensor,
        encoded: EncodedSeries,
        covariates: Covariates = NO_COVARIATES,
        context: Context | None = None,
        padding_mask: Tensor | None = None,
    ) -> Tensor:
        """Teacher forcing: future [B, H, C] → hidden states [B, H, D], of which each has read the
        steps before its own."""
        context = (context or Context()).target()
        count, channels = future.shape[1:]
        if count != self.horizon or channels != self.input.channels:
            raise DataError(
                f"a future of {(count, channels)} does not fit this model, which forecasts "
                f"{(self.horizon, self.input.channels)} (time steps, channels)",
                "give the steps that follow the window",
            )
        self._check_time_features(covariates.future, count)
        state = encoded.state.append(future)
        x = self.target(self.input.steps(state, self.input.past, count, covariates.future))
        return self.decoder(x, padding_mask, context, encoded.memory)

    def forward(
        self,
        values: Tensor,
        observed: Tensor | None = None,
        context: Context | None = None,
        *,
        future: Tensor,
        covariates: Covariates = NO_COVARIATES,
    ) -> tuple[Tensor, Losses]:
        """Hidden states [B, H, D], of which `predict` makes distributions, and auxiliary losses."""
        context = context or Context()
        encoded = self.encode(values, observed, covariates, context)
        hidden = self.decode(future, encoded, covariates, context)
        return hidden, dict(context.losses or {})

    def predict(self, hidden: Tensor, values: Tensor, observed: Tensor | None = None) -> Parameters:
        """The parameters of the distribution of each step, [B, H, C] each, on the normalized scale
        of its window."""
        assert self.series is not None, "this model has no head"
        return self.series(hidden)

    # ------------------------------------------------------------------ inputs and outputs by name

    def hidden_states(self, inputs: Inputs, context: Context) -> Tensor:
        observed = inputs.get("past_observed_mask")
        covariates = covariates_by_name(inputs)
        encoded = self.encode(inputs["past_values"], observed, covariates, context)
        return self.decode(inputs["future_values"], encoded, covariates, context)

    def head_output(self, hidden: Tensor, inputs: Inputs) -> Tensor:
        """The mean of the distribution of each step [B, H, C]."""
        if self.series is None:
            return hidden
        values = inputs["past_values"]
        scaling = self.input.scaling(values, inputs.get("past_observed_mask"))
        return distribution_mean(self.series.kind, self.predict(hidden, values), scaling)

    def outputs(self, inputs: Inputs, options: OutputOptions) -> Outputs:
        """With teacher forcing, if the future is given."""
        # transformers has no dimension of channels where there is one channel.
        flat = inputs["past_values"].ndim == 2
        series = {name: inputs[name] for name in _SERIES if name in inputs}
        series = {name: with_channels(values) for name, values in series.items()}
        covariates = covariates_by_name(inputs)
        values = series["past_values"]
        observed = series.get("past_observed_mask")
        encoded = self.encode(values, observed, covariates, options.context)
        scaling = encoded.state.scaling
        future = series.get("future_values")
        if future is None:
            # transformers decodes one step, whose numbers are 0: [B, 1, D]
            width = self.target.projection.weight.shape[1]
            nothing = encoded.memory.hidden.new_zeros(len(values), 1, width)
            context = options.context.target()
            hidden = self.decoder(self.target(nothing), None, context, encoded.memory)
        else:
            mask = bool_mask(inputs, "decoder_attention_mask")
            hidden = self.decode(future, encoded, covariates, options.context, mask)
        outputs: Outputs = {}
        if self.series is None or options.everything:
            outputs["last_hidden_state"] = Output(hidden)
        if self.series is not None and future is not None:
            kind = self.series.kind
            parameters = self.predict(hidden, values, observed)
            losses = negative_log_likelihood(parameters, future, lambda: scaling, kind=kind)
            outputs |= asides(loss=_mean_loss(losses, series.get("future_observed_mask")))
            if kind == "negative_binomial":
                # There the scale of the window is added in place, before they are returned.
                parameters = (parameters[0], parameters[1] + scaling.scale.log())
            outputs["params"] = Output(tuple(_squeezed(one, flat) for one in parameters))
        return {
            **outputs,
            "encoder_last_hidden_state": Output(encoded.memory.hidden),
            **asides(
                loc=_squeezed(scaling.loc, flat),
                scale=_squeezed(scaling.scale, flat),
                static_features=encoded.state.static,
            ),
        }

    def step_by_step(self, inputs: Inputs, split: Split) -> Outputs:
        covariates = covariates_by_name(inputs)
        encoded = self.encode(inputs["past_values"], None, covariates)
        future = inputs["future_values"]
        count = future.shape[1]
        state = encoded.state.append(future)
        steps = self.input.steps(state, self.input.past, count, covariates.future)
        caches = self.start(encoded, capacity=count)
        hidden = [self.step(piece, caches) for piece in split(steps)]
        return {"last_hidden_state": Output(torch.cat(hidden, dim=1))}

    def check_values(self, inputs: Inputs) -> None:
        """Categories out of range, and values that the distribution cannot give."""
        categories = inputs.get("static_categorical_features")
        if categories is not None:
            for number, table in enumerate(self.input.categories[: categories.shape[-1]]):
                count = len(table.weight)  # type: ignore[arg-type]
                column = categories[:, number]
                if bool(((column < 0) | (column >= count)).any()):
                    raise DataError(
                        f"static categorical feature {number + 1} has only {count} categories",
                        f"pass indices from 0 to {count - 1}",
                    )
        future = inputs.get("future_values")
        if future is None or self.series is None or self.series.kind != "negative_binomial":
            return
        if bool((future < 0).any()) or bool((future != future.round()).any()):
            raise DataError("negative_binomial needs counts", "pass integers of at least 0")

    # ------------------------------------------------------------------ forecasting

    def start(self, encoded: EncodedSeries, *, width: int = 1, capacity: int) -> DecoderState:
        """The caches before the first step, for `width` trajectories of each window."""
        rows = len(encoded.memory.hidden) * width
        caches = self.decoder.start(rows, capacity, encoded.memory)
        return DecoderState(caches, width, probe=encoded.memory.probe)

    def step(self, steps: Tensor, state: DecoderState) -> Tensor:
        """steps [rows, T, F], the next of each row → hidden states [rows, T, D]; advances the
        state."""
        context = Context.decoding(state)
        # Keys and values of the encoder output are in the state's caches already.
        hidden = self.decoder(self.target(steps, state.position), None, context)
        state.advance(steps.shape[1])
        return hidden

    @torch.no_grad()
    def forecast(
        self,
        values: Tensor,
        observed: Tensor | None = None,
        covariates: Covariates = NO_COVARIATES,
        context: Context | None = None,
    ) -> Tensor:
        """Point forecasts [B, H, C]: the mean of each step, which the next ones are given."""
        encoded = self.encode(values, observed, covariates, context)
        return self._go_on(encoded, covariates.future, 1, distribution_mean)

    @torch.no_grad()
    def sample(
        self,
        values: Tensor,
        observed: Tensor | None = None,
        covariates: Covariates = NO_COVARIATES,
        *,
        count: int,
    ) -> Tensor:
        """Sample trajectories [B, count, H, C] (ancestral sampling): each step is drawn, from
        torch's default generator, and read by the next ones."""
        encoded = self.encode(values, observed, covariates)

        def draw(*forecast: Any) -> Tensor:
            return distribution(*forecast).sample()

        return self._go_on(encoded, covariates.future, count, draw).unflatten(0, (-1, count))

    def _go_on(
        self, encoded: EncodedSeries, features: Tensor | None, width: int, next_values: NextValues
    ) -> Tensor:
        """Step after step, with KV caches: [B · width, H, C]. `features` [B, H, F] are the time
        features of these steps."""
        assert self.series is not None, "this model has no head"
        caches = self.start(encoded, width=width, capacity=self.horizon)
        state = encoded.state.repeat(width)
        self._check_time_features(features, self.horizon)
        if features is not None:
            features = features.repeat_interleave(width, dim=0)  # [B · width, H, F]
        steps = []
        for number in range(self.horizon):
            time = None if features is None else features[:, number : number + 1]
            vectors = self.input.steps(state, self.input.past + number, 1, time)
            parameters = self.series(self.step(vectors, caches))  # [B · width, 1, C] each
            steps.append(next_values(self.series.kind, parameters, state.scaling))
            state = state.append(steps[-1])
        return torch.cat(steps, dim=1)

    def _check_time_features(self, features: Tensor | None, steps: int) -> None:
        count = 0 if features is None else features.shape[1]
        if self.input.time_features and count != steps:
            raise DataError(
                f"there are time features of {count} future steps, not of {steps}",
                "give those of every step that is forecast",
            )


def covariates_by_name(inputs: Inputs) -> Covariates:
    """The covariates among the inputs of a call."""
    categories = inputs.get("static_categorical_features")
    return Covariates(
        None if categories is None else categories.long(),
        inputs.get("static_real_features"),
        inputs.get("past_time_features"),
        inputs.get("future_time_features"),
    )


def with_channels(values: Tensor) -> Tensor:
    """[B, L] → [B, L, 1]"""
    return values[..., None] if values.ndim == 2 else values


def _squeezed(values: Tensor, flat: bool) -> Tensor:
    """Without the dimension of channels, if the window came without it."""
    return values.squeeze(-1) if flat else values


def _mean_loss(losses: Tensor, observed: Tensor | None) -> Tensor:
    """transformers' mean of −log p [B, H, C] over the steps of which all channels are observed."""
    by_step = losses.sum(dim=-1)  # [B, H]: channels are independent
    if observed is None:
        return by_step.mean()
    weight = observed.to(losses.dtype).amin(dim=-1)
    total = torch.where(weight != 0, by_step * weight, 0.0).sum()
    return total / weight.sum().clamp_min(1)
