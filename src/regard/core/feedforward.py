"""Feed-forward networks (Section 3.3): position-wise, gated, and by convolutions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.core.caches.kv_cache import ConvState
from regard.core.context import LayerContext
from regard.core.convolution import DilatedConvolution, GridConvolution, zero_padding
from regard.core.dropout import Dropout
from regard.core.linear import Linear

if TYPE_CHECKING:
    from regard import spec


def gelu_tanh(x: Tensor) -> Tensor:
    """GELU's tanh approximation."""
    return functional.gelu(x, approximate="tanh")


def quick_gelu(x: Tensor) -> Tensor:
    """GELU's sigmoid approximation, as CLIP has it."""
    return x * torch.sigmoid(1.702 * x)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "gelu": functional.gelu,  # exact, by erf
    "gelu_tanh": gelu_tanh,
    "quick_gelu": quick_gelu,
    "silu": functional.silu,  # x · sigmoid(x), also called swish
    "tanh": torch.tanh,
}
ACTIVATION_NAMES = {function: name for name, function in ACTIVATIONS.items()}


NO_CONTEXT = LayerContext()


class PositionWise(nn.Module):
    """Abstract: the feed-forward sublayer of a block, feedforward(x, context) → [B, T, D]."""

    # Whether padding concerns it: it counts tokens, or reads neighbours.
    meets_padding = False
    mixes_positions = False

    def start(self, rows: int, like: Tensor) -> tuple[ConvState, ...]:
        """What it remembers of earlier positions while decoding: nothing."""
        return ()


class _Dense(PositionWise):
    """Abstract: a linear map to the inner layer, or two in one matrix, and one back."""

    maps = 1

    def __init__(
        self, part: spec.FeedForward | spec.GatedFeedForward | spec.MixFeedForward, d_model: int
    ) -> None:
        super().__init__()
        parts = (part.d_ff,) * self.maps
        self.inner = Linear(d_model, sum(parts), bias=part.bias, parts=parts)
        self.outer = Linear(part.d_ff, d_model, bias=part.bias)
        self.activation = ACTIVATIONS[part.activation]
        self.dropout = Dropout(part.dropout)

    def extra_repr(self) -> str:
        return f"activation={ACTIVATION_NAMES[self.activation]}"


class FeedForward(_Dense):
    """FFN(x) = activation(x W₁ + b₁) W₂ + b₂ (equation 2)."""

    def forward(self, x: Tensor, context: LayerContext = NO_CONTEXT) -> Tensor:
        hidden = context.probe.through("hidden", self.activation(self.inner(x)))  # [B, T, F]
        return self.outer(self.dropout(hidden))  # [B, T, D]


class GatedFeedForward(_Dense):
    """Gated linear unit (SwiGLU, GEGLU): (activation(x W) ⊙ (x V)) W₂, with W and V in one matrix
    (Shazeer 2020). With a `limit` both are clamped, and the value is around 1 (gpt-oss)."""

    maps = 2

    def __init__(self, part: spec.GatedFeedForward, d_model: int) -> None:
        super().__init__(part, d_model)
        self.limit = part.limit

    def forward(self, x: Tensor, context: LayerContext = NO_CONTEXT) -> Tensor:
        gate, value = self.inner(x).chunk(2, dim=-1)  # [B, T, F] each
        if self.limit is not None:
            gate = gate.clamp(max=self.limit)
            value = value.clamp(-self.limit, self.limit) + 1
        hidden = context.probe.through("hidden", self.activation(gate) * value)  # [B, T, F]
        return self.outer(self.dropout(hidden))  # [B, T, D]


class MixFeedForward(_Dense):
    """Mix-FFN (SegFormer): before the activation each channel of the inner layer is convolved with
    its 3 × 3 neighbours on the image."""

    def __init__(self, part: spec.MixFeedForward, d_model: int) -> None:
        super().__init__(part, d_model)
        self.mix = GridConvolution(part.d_ff, part.d_ff, 3, groups=part.d_ff)

    def forward(self, x: Tensor, context: LayerContext = NO_CONTEXT) -> Tensor:
        assert context.grid is not None, "its positions are those of an image"
        mixed = self.mix(self.inner(x), context.grid)  # [B, T, F]
        hidden = context.probe.through("hidden", self.activation(mixed))
        return self.outer(self.dropout(hidden))  # [B, T, D]


class ConvFeedForward(PositionWise):
    """Two convolutions over positions with an activation between; with kernels of 1 the
    position-wise network (end of Section 3.3).

    `causal` ones read no later position; while decoding, the cache holds the inputs of both.
    """

    def __init__(self, part: spec.ConvFeedForward, d_model: int, *, causal: bool) -> None:
        super().__init__()
        inner, outer = part.kernels
        self.inner = DilatedConvolution(
            d_model, part.d_ff, inner, 1, bias=part.bias, initialization="xavier"
        )
        self.outer = DilatedConvolution(
            part.d_ff, d_model, outer, 1, bias=part.bias, initialization="xavier"
        )
        self.activation = ACTIVATIONS[part.activation]
        self.dropout = Dropout(part.dropout)
        self.causal = causal

    def extra_repr(self) -> str:
        return f"activation={ACTIVATION_NAMES[self.activation]}, causal={self.causal}"

    @property
    def mixes_positions(self) -> bool:  # type: ignore[override]
        return self.inner.reach + self.outer.reach > 0

    @property
    def meets_padding(self) -> bool:  # type: ignore[override]
        return self.mixes_positions

    def start(self, rows: int, like: Tensor) -> tuple[ConvState, ...]:
        """The inputs of both convolutions before the first position."""
        return self.inner.start(rows, like), self.outer.start(rows, like)

    def forward(self, x: Tensor, context: LayerContext = NO_CONTEXT) -> Tensor:
        """x [B, T, D] → [B, T, D]"""
        padding_mask = context.padding_mask
        before: tuple[ConvState | None, ...] = (None, None)
        if self.causal:
            before = context.cache.convolutions or self.start(len(x), x)
        hidden = self.inner(zero_padding(x, padding_mask), before[0])  # [B, T, F]
        hidden = self.dropout(self.activation(hidden))
        out = self.outer(zero_padding(hidden, padding_mask), before[1])  # [B, T, D]
        return zero_padding(out, padding_mask)
