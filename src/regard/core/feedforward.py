"""Position-wise feed-forward networks (Section 3.3)."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional

from regard.core.dropout import Dropout
from regard.core.linear import Linear

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "silu": functional.silu,
}


class Plain(nn.Module):
    """FFN(x) = activation(x W₁ + b₁) W₂ + b₂ (equation 2)."""

    def __init__(self, d_model: int, d_ff: int, activation: str, dropout: float) -> None:
        super().__init__()
        self.inner = Linear(d_model, d_ff)
        self.outer = Linear(d_ff, d_model)
        self.activation = ACTIVATIONS[activation]
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.activation(self.inner(x))  # [B, T, F]
        return self.outer(self.dropout(hidden))
