"""The call convention of transformers for time series: outputs under its names.

Those of PatchTST, and of the time-series Transformer, an encoder–decoder.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from regard import spec as kinds
from regard.core.context import Context
from regard.core.forecast_loss import negative_log_likelihood
from regard.core.lagged_values import Covariates
from regard.core.series_patches import Scaling, SeriesPatches
from regard.encoder import Encoder
from regard.errors import DataError
from regard.models.recorded_outputs import RecordedOutputs
from regard.series_encoder_decoder import EncodedSeries, SeriesEncoderDecoder


def call_series(
    model: Encoder, spec: kinds.Encoder, inputs: Mapping[str, Tensor], context: Context
) -> dict[str, Any]:
    """Runs an encoder of time series on windows [B, L, C]."""
    front_end = model.input
    assert isinstance(front_end, SeriesPatches), "only these read time series"
    values = inputs["past_values"]
    observed = inputs.get("past_observed_mask")
    # Drawn as transformers draws them: under the same seed, the same patches are masked.
    masked = None
    if front_end.masking is not None:
        patches = spec.windows.patches
        masked = front_end.masking.draw(len(values), front_end.channels, patches, values.device)
    hidden, _ = model(values, observed, context, masked=masked)  # [B·C, N, D]
    scaling = front_end.scaling(values, observed)
    if spec.series is None:
        output: dict[str, Any] = {
            "last_hidden_state": by_channel(hidden, front_end.channels),
            "loc": scaling.loc,
            "scale": scaling.scale,
            "patch_input": front_end.patches(values, observed)[0],
        }
        return output if masked is None else {**output, "mask": masked}
    predicted = model.predict(hidden, values, observed)
    match spec.series:
        case kinds.ForecastHead():
            names = {"loc": scaling.loc, "scale": scaling.scale}
            return {"prediction_outputs": predicted, **names}
        case kinds.PatchHead():
            assert isinstance(predicted, Tensor), "patches have points"
            assert masked is not None, "its front end masks"
            # On normalized values, and of masked patches only (transformers' loss).
            errors = (predicted - front_end.patches(values, observed)[0]).square().mean(dim=-1)
            loss = (errors * masked).sum() / (masked.sum() + 1e-10)
            return {"loss": loss, "prediction_output": predicted}
        case kinds.ChannelHead(task="classify"):
            return {"prediction_logits": predicted}
        case _:
            if isinstance(predicted, tuple):
                # Of a single target, transformers drops the dimension of targets.
                predicted = tuple(one.squeeze(-1) for one in predicted)
            return {"regression_outputs": predicted}


def channel_outputs(recorded: RecordedOutputs, channels: int) -> dict[str, Any]:
    """Hidden states [B, C, N, D] and attention weights [B·C, H, N, N], as transformers has them.

    Its hidden states are those before each layer, without the last one's output.
    """
    outputs: dict[str, Any] = dict(recorded.of_encoder())
    if "hidden_states" in outputs:
        states = outputs["hidden_states"][:-1]
        outputs["hidden_states"] = tuple(by_channel(state, channels) for state in states)
    return outputs


def by_channel(hidden: Tensor, channels: int) -> Tensor:
    """[B·C, N, D] → [B, C, N, D]"""
    return hidden.unflatten(0, (-1, channels))


# ------------------------------------------------------------------ encoder–decoder


def call_series_encoder_decoder(
    model: SeriesEncoderDecoder,
    spec: kinds.SeriesEncoderDecoder,
    inputs: Mapping[str, Tensor],
    recorded: RecordedOutputs,
) -> dict[str, Any]:
    """Runs an encoder–decoder of time series, with teacher forcing if it is given the future."""
    # transformers has no dimension of channels where there is one channel.
    flat = inputs["past_values"].ndim == 2
    context = Context(recorded.probe)
    covariates = covariates_of(inputs, spec)
    values = with_channels(inputs["past_values"])
    observed = inputs.get("past_observed_mask")
    if observed is not None:
        observed = with_channels(observed)
    encoded = model.encode(values, observed, covariates, context)
    future = inputs.get("future_values")
    padding_mask = inputs.get("decoder_attention_mask")
    if padding_mask is not None:
        padding_mask = padding_mask.bool()
    if future is None:
        hidden = _first_hidden_state(model, encoded, context)
    else:
        future = with_channels(future)
        hidden = model.decode(future, encoded, covariates, context, padding_mask)
    scaling = encoded.state.scaling
    output: dict[str, Any] = {}
    if spec.output is None:
        output["last_hidden_state"] = hidden
    elif future is not None:
        _check_support(spec.output, future)
        parameters = model.predict(hidden, values, observed)
        losses = negative_log_likelihood(parameters, future, lambda: scaling, kind=spec.output.name)
        output["loss"] = _mean_loss(losses, inputs.get("future_observed_mask"))
        output["params"] = _transformers_parameters(parameters, spec.output, scaling, flat=flat)
    location = scaling.loc
    scale = scaling.scale
    if flat:
        location = location.squeeze(-1)
        scale = scale.squeeze(-1)
    return {
        **output,
        **recorded.of_stack("decoder", "decoder_"),
        **recorded.cross_attentions("decoder"),
        "encoder_last_hidden_state": encoded.memory.hidden,
        **recorded.of_stack("encoder", "encoder_"),
        "loc": location,
        "scale": scale,
        "static_features": encoded.state.static,
    }


def covariates_of(inputs: Mapping[str, Tensor], spec: kinds.SeriesEncoderDecoder) -> Covariates:
    """The covariates among the arguments of a call, whose categories are in range."""
    categories = inputs.get("static_categorical_features")
    if categories is not None:
        categories = categories.long()
        for number, category in enumerate(spec.input.categories[: categories.shape[-1]]):
            column = categories[:, number]
            if bool(((column < 0) | (column >= category.count)).any()):
                raise DataError(
                    f"static categorical feature {number + 1} has only {category.count} categories",
                    f"pass indices from 0 to {category.count - 1}",
                )
    return Covariates(
        categories,
        inputs.get("static_real_features"),
        inputs.get("past_time_features"),
        inputs.get("future_time_features"),
    )


def with_channels(values: Tensor) -> Tensor:
    """[B, L] → [B, L, 1]"""
    return values[..., None] if values.ndim == 2 else values


def _first_hidden_state(
    model: SeriesEncoderDecoder, encoded: EncodedSeries, context: Context
) -> Tensor:
    """What transformers decodes without a future [B, 1, D]: one step, whose numbers are all 0."""
    width = model.target.projection.weight.shape[1]
    nothing = encoded.memory.hidden.new_zeros(len(encoded.memory.hidden), 1, width)
    return model.decoder(model.target(nothing), None, context.target(), encoded.memory)


def _check_support(output: kinds.Distribution, future: Tensor) -> None:
    """Refuses values that a distribution cannot give."""
    if output.name != "negative_binomial":
        return
    if bool((future < 0).any()) or bool((future != future.round()).any()):
        raise DataError("negative_binomial needs counts", "pass integers of at least 0")


def _mean_loss(losses: Tensor, observed: Tensor | None) -> Tensor:
    """transformers' mean of −log p [B, H, C] over the steps of which all channels are observed."""
    by_step = losses.sum(dim=-1)  # [B, H]: channels are independent
    if observed is None:
        return by_step.mean()
    weight = with_channels(observed).to(losses.dtype).amin(dim=-1)
    total = torch.where(weight != 0, by_step * weight, 0.0).sum()
    return total / weight.sum().clamp_min(1)


def _transformers_parameters(
    parameters: tuple[Tensor, ...], output: kinds.Distribution, scaling: Scaling, *, flat: bool
) -> tuple[Tensor, ...]:
    """The parameters as transformers returns them."""
    if output.name == "negative_binomial":
        # There the scale of the window is added in place, before they are returned.
        total_count, logits = parameters
        parameters = (total_count, logits + scaling.scale.log())
    if flat:
        return tuple(one.squeeze(-1) for one in parameters)
    return parameters
