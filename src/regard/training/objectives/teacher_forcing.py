"""Teacher forcing: the next token of a target after the true ones before it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from regard.core.context import Context
from regard.training.objectives.label_smoothed_cross_entropy import (
    LossTerms,
    TokenLoss,
    linear_cross_entropy,
)
from regard.wirings.encoder_decoder import EncoderDecoder


def teacher_forced_loss(
    model: Any,
    source: Tensor,
    tensors: Mapping[str, Tensor],
    token_loss: TokenLoss = linear_cross_entropy,
) -> LossTerms:
    """The loss of labels [B, T], which are the target one token later, given the source."""
    labels = tensors["labels"]
    context = target_context(model, labels)
    padding_mask = tensors.get("padding_mask")  # of the source
    hidden, auxiliary = model(source, tensors["target"], padding_mask, context)  # [B, T, D]
    loss, nll = token_loss(model.head, hidden, labels)
    return LossTerms(loss, nll, auxiliary, (labels >= 0).sum())


def target_context(model: EncoderDecoder, labels: Tensor) -> Context:
    """The padding mask of the targets of labels [B, T], which are negative where ignored.

    Attention needs no padding mask of the targets, because a causal mask hides what is on the
    right. BatchNorm and experts do: they would count padding as tokens.
    """
    if not model.decoder.meets_padding:
        return Context()
    # Up to the last label: a prompt at the start has ignored labels, and is no padding.
    labels_from_here = (labels >= 0).flip(1).cumsum(1).flip(1)  # [B, T]
    return Context(target_padding_mask=labels_from_here > 0)
