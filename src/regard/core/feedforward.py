"""Position-wise feed-forward networks (Section 3.3) and their gated variants."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.core.dropout import Dropout
from regard.core.linear import Linear


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
_NAMES = {function: name for name, function in ACTIVATIONS.items()}


class FeedForward(nn.Module):
    """FFN(x) = activation(x W₁ + b₁) W₂ + b₂ (equation 2)."""

    def __init__(
        self, d_model: int, d_ff: int, activation: str, dropout: float, bias: bool
    ) -> None:
        super().__init__()
        self.inner = Linear(d_model, d_ff, bias=bias)
        self.outer = Linear(d_ff, d_model, bias=bias)
        self.activation = ACTIVATIONS[activation]
        self.dropout = Dropout(dropout)

    def extra_repr(self) -> str:
        return f"activation={_NAMES[self.activation]}"

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.activation(self.inner(x))  # [B, T, F]
        return self.outer(self.dropout(hidden))  # [B, T, D]


class GatedFeedForward(nn.Module):
    """Gated linear unit (SwiGLU, GEGLU): (activation(x W) ⊙ (x V)) W₂, with W and V in one matrix
    (Shazeer 2020)."""

    def __init__(
        self, d_model: int, d_ff: int, activation: str, dropout: float, bias: bool
    ) -> None:
        super().__init__()
        self.inner = Linear(d_model, 2 * d_ff, bias=bias, parts=(d_ff, d_ff))
        self.outer = Linear(d_ff, d_model, bias=bias)
        self.activation = ACTIVATIONS[activation]
        self.dropout = Dropout(dropout)

    def extra_repr(self) -> str:
        return f"activation={_NAMES[self.activation]}"

    def forward(self, x: Tensor) -> Tensor:
        gate, value = self.inner(x).chunk(2, dim=-1)  # [B, T, F] each
        return self.outer(self.dropout(self.activation(gate) * value))  # [B, T, D]
