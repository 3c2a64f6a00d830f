"""What surrounds the sublayers: dropout, the residual sum, and where the norm stands."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from regard.core.dropout import Dropout
from regard.core.norm import Norm

Sublayer = Callable[[Tensor], Tensor]


class PostNorm(nn.Module):
    """LayerNorm(x + Dropout(Sublayer(x))): Sections 3.1 and 5.4. In mixed precision the sum is as narrow as its summands: it
    never grows, because each is normalised."""

    def __init__(self, norm: Norm, dropout: float) -> None:
        super().__init__()
        self.norm = norm
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, sublayer: Sublayer) -> Tensor:
        y = sublayer(x)
        return self.norm(x + self.dropout(y)).to(y.dtype)


class PreNorm(nn.Module):
    """x + Dropout(Sublayer(LayerNorm(x))): trains deep stacks without warm-up (Xiong et al. 2020)."""

    def __init__(self, norm: Norm, dropout: float) -> None:
        super().__init__()
        self.norm = norm
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, sublayer: Sublayer) -> Tensor:
        return x + self.dropout(sublayer(self.norm(x)))


Residual = PostNorm | PreNorm


class SequentialResidual(nn.Module):
    """Sublayers one after the other, each inside its own residual."""

    def __init__(self, residuals: list[Residual]) -> None:
        super().__init__()
        self.each = nn.ModuleList(residuals)

    def forward(self, x: Tensor, sublayers: list[Sublayer]) -> Tensor:
        for residual, sublayer in zip(self.each, sublayers, strict=True):
            x = residual(x, sublayer)
        return x


class ParallelResidual(nn.Module):
    """x + Σ Dropout(Sublayer(norm(x))): all see the same input, through one norm or one each."""

    def __init__(self, norms: list[Norm], dropout: float) -> None:
        super().__init__()
        self.norms = nn.ModuleList(norms)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, sublayers: list[Sublayer]) -> Tensor:
        normed = [norm(x) for norm in self.norms]
        inputs = normed * len(sublayers) if len(normed) == 1 else normed
        for sublayer, y in zip(sublayers, inputs, strict=True):
            x = x + self.dropout(sublayer(y))
        return x
