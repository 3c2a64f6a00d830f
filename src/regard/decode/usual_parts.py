"""The usual parts of a decoder, which fused steps are written for: pre- or post-norm, softmax
attention, a plain or gated feed-forward network."""

from __future__ import annotations

from torch import nn

from regard.core.attention import Attention
from regard.core.block import Block
from regard.core.feedforward import ACTIVATION_NAMES, FeedForward, GatedFeedForward
from regard.core.linear import Linear
from regard.core.mixers import scaled_dot_product_attention
from regard.core.mixers.scaled_dot_product_attention import SoftmaxAttention
from regard.core.norm import BatchNorm, InstanceNorm
from regard.core.projection import CrossProjection, SelfProjection
from regard.core.residual import PostNorm, PreNorm
from regard.core.stack import Stack


def has_usual_parts(stack: nn.Module) -> bool:
    """Whether all parts of a stack are the usual ones."""
    return (
        type(stack) is Stack  # not universal, reversible, convolutional
        and not any(isinstance(part, BatchNorm | InstanceNorm) for part in stack.modules())
        and all(map(_is_usual_block, stack.blocks))
    )


def _is_usual_block(block: nn.Module) -> bool:
    if not isinstance(block, Block):
        return False
    part = block.feedforward
    if not isinstance(part, FeedForward | GatedFeedForward):
        return False
    limit = getattr(part, "limit", None)  # of gated ones
    attentions = [one for one in (block.attention, block.cross) if one is not None]
    linears = [one for one in block.modules() if isinstance(one, Linear)]
    return (
        limit is None
        and part.activation in ACTIVATION_NAMES
        and block.layer_scales is None
        and all(isinstance(one, PostNorm | PreNorm) for one in block.residual.each)
        and all(map(_is_usual_attention, attentions))
        and all(one.added is None for one in linears)
    )


def _is_usual_attention(attention: Attention) -> bool:
    if type(attention) is not Attention:
        return False
    project = attention.project
    mixer = attention.mixer
    return (
        type(project) in (SelfProjection, CrossProjection)
        and project.d_k == project.d_v
        and isinstance(mixer, SoftmaxAttention)
        and mixer.kernel is scaled_dot_product_attention.dispatch
        and mixer.is_plain
    )
