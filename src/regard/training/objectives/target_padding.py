"""The padding mask of targets, for decoders with parts that count tokens."""

from __future__ import annotations

from torch import Tensor

from regard.core.context import Context
from regard.wirings.encoder_decoder import EncoderDecoder


def target_context(model: EncoderDecoder, labels: Tensor) -> Context:
    """The context of a training step on labels [B, T], which are negative where ignored.

    Attention needs no padding mask of the targets, because a causal mask hides what is on the
    right. BatchNorm and experts do: they would count padding as tokens.
    """
    if not model.decoder.meets_padding:
        return Context()
    # Up to the last label: a prompt at the start has ignored labels, and is no padding.
    labels_from_here = (labels >= 0).flip(1).cumsum(1).flip(1)  # [B, T]
    return Context(target_padding_mask=labels_from_here > 0)
