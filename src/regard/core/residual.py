"""What surrounds each sublayer: dropout, the residual sum, and where the norm stands."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from regard.core.dropout import Dropout
from regard.core.norm import LayerNorm


class PostNorm(nn.Module):
    """LayerNorm(x + Dropout(Sublayer(x))): Sections 3.1 and 5.4."""

    def __init__(self, norm: LayerNorm, dropout: float) -> None:
        super().__init__()
        self.norm = norm
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        return self.norm(x + self.dropout(sublayer(x)))


class PreNorm(nn.Module):
    """x + Dropout(Sublayer(LayerNorm(x))): trains deep stacks without warm-up (Xiong et al. 2020)."""

    def __init__(self, norm: LayerNorm, dropout: float) -> None:
        super().__init__()
        self.norm = norm
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        return x + self.dropout(sublayer(self.norm(x)))
