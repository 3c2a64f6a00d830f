"""The Conformer's block (Gulati et al. 2020): a convolution module behind self-attention, between
two halves of a feed-forward network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from torch import Tensor
from torch.nn import functional

from regard.core.attention import Attention
from regard.core.block import Block, LayerInputs
from regard.core.context import LayerContext
from regard.core.convolution import DilatedConvolution, zero_padding
from regard.core.feedforward import PositionWise
from regard.core.linear import Linear
from regard.core.norm import BatchNorm, Norm, normalize
from regard.core.probe import NO_PROBE
from regard.core.residual import PostNorm, PreNorm, SequentialResidual

if TYPE_CHECKING:
    from regard import spec

_HALF_STEP = 0.5  # of a feed-forward network on each side of attention and convolutions


class ConvolutionModule(PositionWise):
    """The convolution module (their Figure 2): a gated linear unit, a depthwise convolution, a
    batch norm, swish, and a linear map."""

    meets_padding = True
    mixes_positions = True

    def __init__(self, part: spec.Conformer, d_model: int) -> None:
        super().__init__()
        self.gated = Linear(d_model, 2 * d_model, bias=part.bias)
        self.depthwise = DilatedConvolution(
            d_model, d_model, part.kernel, 1, bias=part.bias, groups=d_model
        )
        norm = part.batch_norm
        self.norm = BatchNorm(d_model, norm.eps, norm.momentum, counts=norm.counts)
        self.outer = Linear(d_model, d_model, bias=part.bias)

    def forward(self, x: Tensor, context: LayerContext) -> Tensor:
        """x [B, T, D] → [B, T, D]"""
        padding = context.padding_mask
        x = functional.glu(self.gated(x), dim=-1)  # [B, T, D]
        x = self.depthwise(zero_padding(x, padding))
        return self.outer(functional.silu(self.norm(x, padding)))


class ConformerBlock(Block):
    """Half a feed-forward, self-attention, convolutions, half a feed-forward, norm (Section 2.4).

    `more` are the convolution module and, in macaron style, the first feed-forward network, each
    with its residual connection.
    """

    meets_padding = True
    mixes_positions = True

    def __init__(
        self,
        attention: Attention,
        feedforward: PositionWise,
        residual: SequentialResidual,
        more: Sequence[tuple[PositionWise, PreNorm | PostNorm]],
        final_norm: Norm,
    ) -> None:
        super().__init__(attention, None, feedforward, residual)
        # Not among `residual`, whose connections are those that every block has.
        self.convolution, *macaron = (module for module, _ in more)
        self.convolution_residual, *macaron_residual = (connection for _, connection in more)
        self.macaron = macaron[0] if macaron else None
        self.macaron_residual = macaron_residual[0] if macaron else None
        self.final_norm = final_norm

    def scaled(self, sublayer: str, y: Tensor) -> Tensor:
        is_half = self.macaron is not None and sublayer == "feedforward"
        return _HALF_STEP * y if is_half else y

    def forward(self, x: Tensor, inputs: LayerInputs, context: LayerContext) -> Tensor:
        attended, fed = self.residual.each
        padding = context.padding_mask
        # What a probe calls the feed-forward network is the last one.
        quiet = context._replace(probe=NO_PROBE)
        macaron = cast(PositionWise, self.macaron)
        if self.macaron_residual is not None:
            x = self.macaron_residual(x, lambda y: _HALF_STEP * macaron(y, quiet), padding)
        x = attended(x, lambda y: self.self_attention(y, inputs, context), padding)
        x = self.convolution_residual(x, lambda y: self.convolution(y, quiet), padding)
        x = fed(x, lambda y: self.feed_forward(y, context), padding)
        return normalize(self.final_norm, x, padding)
