"""The forward pass of any wiring: hidden states, then the logits on top of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from regard.core.context import Context
from regard.core.finite_outputs import require_finite
from regard.core.heads.head import LMHead
from regard.core.linear import Linear
from regard.core.probe import NO_PROBE, NullProbe
from regard.system.errors import SettingError
from regard.wirings.core_model import CoreModel


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


def forward(model: CoreModel, named: Mapping[str, Tensor], probe: NullProbe = NO_PROBE) -> Tensor:
    """The logits of tokens [B, T, V] or labels [B, L]; without a head, the hidden states."""
    logits = apply_head(model, hidden_states(model, named, probe), named)
    return probe.through("logits", logits)


def hidden_states(
    model: CoreModel, named: Mapping[str, Tensor], probe: NullProbe = NO_PROBE
) -> Tensor:
    """The hidden states of the last stack [B, T, D]; of a dual encoder, the embedding [B, D].

    Of NaN weights no picture is drawn: `ModelError`, as where the model answers.
    """
    for one in model.inputs:
        if one.required and one.kind == "more" and one.name not in named:
            raise SettingError(
                f"this view passes no {one.name}, which this model needs",
                "use the view attention or rollout",
            )
    return require_finite(model.hidden_states(dict(named), Context(probe=probe)), model)


def apply_head(model: CoreModel, hidden: Tensor, named: Mapping[str, Tensor]) -> Tensor:
    """The output of whatever head stands on the hidden states: LM head, classifier or pooler."""
    return require_finite(model.head_output(hidden, dict(named)), model)


def named_inputs(
    model: CoreModel,
    inputs: Tensor,
    decoder_inputs: Tensor | None = None,
    padding_mask: Tensor | None = None,
) -> dict[str, Tensor]:
    """The inputs of a call under the names that the model has for them, those of texts first."""
    main = model.inputs[0]
    if main.kind == "tokens" and inputs.is_floating_point():  # of two towers, that of images
        main = next(one for one in model.inputs if one.kind == "pixels")
    named = {main.name: inputs}
    for one in model.inputs:
        if one.kind == "mask" and main.name in one.shaped_as and padding_mask is not None:
            named[one.name] = padding_mask
        if one.name in ("decoder_input_ids", "future_values") and decoder_inputs is not None:
            named[one.name] = decoder_inputs
    return named
