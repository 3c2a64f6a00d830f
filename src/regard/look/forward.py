"""The forward pass of any wiring: hidden states, then the logits on top of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from regard.baselines.linear_forecaster import LinearForecaster
from regard.baselines.memory_network import MemoryNetwork
from regard.core.context import Context
from regard.core.finite_outputs import require_finite
from regard.core.head import LMHead
from regard.core.lagged_values import Covariates, LaggedValues
from regard.core.linear import Linear
from regard.core.node_features import NodeFeatures
from regard.core.probe import NO_PROBE, Probe
from regard.core.series_head import DistributionParameters, ForecastHead, distribution_mean
from regard.core.series_patches import SeriesPatches
from regard.core_model import CoreModel
from regard.decoder import Decoder
from regard.dual_encoder import DualEncoder
from regard.encoder import Encoder
from regard.encoder_decoder import EncoderDecoder
from regard.errors import SettingError
from regard.series_encoder_decoder import SeriesEncoderDecoder


@contextmanager
def evaluation_mode(model: CoreModel, gradients: bool = False) -> Iterator[None]:
    """Evaluation mode (no dropout), without gradients unless asked for.

    Afterwards the model is in the mode it was in.
    """
    if gradients:
        _require_gradients(model)
    was_training = model.training
    model.eval()
    try:
        with torch.set_grad_enabled(gradients):
            yield
    finally:
        model.train(was_training)


def _require_gradients(model: CoreModel) -> None:
    """Refuses packed weights: their kernels have no backward pass."""
    for part in model.modules():
        if isinstance(part, Linear | LMHead) and part.packed is not None:
            raise SettingError(
                "this view needs gradients, but weights packed for inference have no backward pass",
                "load the model again without `prepare_for_inference`",
            )


def forward(
    model: CoreModel,
    inputs: Tensor,
    decoder_inputs: Tensor | None = None,
    padding_mask: Tensor | None = None,
    probe: Probe | None = None,
    side_inputs: Mapping[str, Tensor] | None = None,
) -> Tensor:
    """The logits of tokens [B, T, V] or labels [B, L]; without a head, the hidden states."""
    hidden = hidden_states(model, inputs, decoder_inputs, padding_mask, probe, side_inputs)
    logits = apply_head(model, hidden, padding_mask, inputs)
    if probe is None:
        return logits
    return probe.through("logits", logits)


def hidden_states(
    model: CoreModel,
    inputs: Tensor,
    decoder_inputs: Tensor | None = None,
    padding_mask: Tensor | None = None,
    probe: Probe | None = None,
    side_inputs: Mapping[str, Tensor] | None = None,
) -> Tensor:
    """The hidden states of the last stack [B, T, D]; of a dual encoder, the embedding [B, D].

    Of NaN weights no picture is drawn: `ModelError`, as where the model answers.
    """
    context = Context(probe=probe or NO_PROBE)
    hidden = _run(model, inputs, decoder_inputs, padding_mask, context, side_inputs or {})
    return require_finite(hidden, model)


def _run(
    model: CoreModel,
    inputs: Tensor,
    decoder_inputs: Tensor | None,
    padding_mask: Tensor | None,
    context: Context,
    side_inputs: Mapping[str, Tensor],
) -> Tensor:
    match model:
        case EncoderDecoder():
            assert decoder_inputs is not None
            # All wirings return (hidden states, auxiliary losses).
            return model(inputs, decoder_inputs, padding_mask, context)[0]
        case SeriesEncoderDecoder():
            assert decoder_inputs is not None
            covariates = Covariates(**side_inputs)
            return model(
                inputs, padding_mask, context, future=decoder_inputs, covariates=covariates
            )[0]
        case Decoder():
            return model(inputs, padding_mask, context)[0]
        case Encoder(input=NodeFeatures()) if not side_inputs:
            raise SettingError(
                "this view does not support graph models: it passes no edges",
                "use the view attention or rollout",
            )
        case Encoder():
            return model(inputs, padding_mask, context, **side_inputs)[0]
        case LinearForecaster():
            return model(inputs, padding_mask, context)[0]
        case MemoryNetwork():
            # [B, N + 1, S]: the sentences of a story, then the question.
            return model(*MemoryNetwork.split_inputs(inputs), context)[0]
        case _:
            assert isinstance(model, DualEncoder)
            # Pixels are floating-point numbers, token ids are integers.
            if inputs.is_floating_point():
                return model.images(inputs, context)
            return model.texts(inputs, padding_mask, context)


def apply_head(
    model: CoreModel, hidden: Tensor, padding_mask: Tensor | None, inputs: Tensor
) -> Tensor:
    """The output of whatever head stands on the hidden states: LM head, classifier or pooler."""
    return require_finite(_head_output(model, hidden, padding_mask, inputs), model)


def _head_output(
    model: CoreModel, hidden: Tensor, padding_mask: Tensor | None, inputs: Tensor
) -> Tensor:
    if isinstance(model, DualEncoder | LinearForecaster):
        return hidden
    if isinstance(model, SeriesEncoderDecoder):
        return _forecast(model, hidden, inputs, padding_mask)
    if isinstance(model, Encoder) and model.series is not None:
        return _forecast(model, hidden, inputs, padding_mask)
    if model.lm_head is not None:
        return model.lm_head(hidden)  # [B, T, V]
    assert isinstance(model, Encoder)
    if model.labels is not None:
        return model.classes(hidden, padding_mask, inputs)  # [B, L], or [B, T, L] of tags
    if model.pool is not None:
        return model.pool(hidden, model.input.output_padding_mask(padding_mask), inputs)
    return hidden


def _forecast(
    model: Encoder | SeriesEncoderDecoder, hidden: Tensor, inputs: Tensor, observed: Tensor | None
) -> Tensor:
    """What a head of time series says: of the distribution of a step, the mean."""
    if model.series is None:
        return hidden
    predicted = model.predict(hidden, inputs, observed)
    if isinstance(predicted, Tensor):
        return predicted
    output = model.series
    if isinstance(output, ForecastHead):
        assert isinstance(output.output, DistributionParameters), "it has parameters"
        output = output.output
    if not isinstance(output, DistributionParameters):
        return predicted[0]  # numbers of a whole series are not on the scale of its window
    front_end = model.input
    assert isinstance(front_end, SeriesPatches | LaggedValues), "these read time series"
    return distribution_mean(output.kind, predicted, front_end.scaling(inputs, observed))
