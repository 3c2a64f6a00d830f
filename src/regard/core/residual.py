"""Residual connections: dropout, the sum, and where the norm stands (pre-norm, post-norm,
parallel)."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from regard.core.dropout import Dropout
from regard.core.norm import Norm

Sublayer = Callable[[Tensor], Tensor]


class PostNorm(nn.Module):
    """Post-norm: LayerNorm(x + Dropout(Sublayer(x))), Sections 3.1 and 5.4. In mixed precision the
    sum is as narrow as its summands: it never grows, because each is normalised."""

    def __init__(self, norm: Norm, dropout: float) -> None:
        super().__init__()
        self.norm = norm
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, sublayer: Sublayer) -> Tensor:
        y = sublayer(x)
        # Under autocast, PyTorch normalises in float32.
        return self.norm(x + self.dropout(y)).to(y.dtype)


class PreNorm(nn.Module):
    """Pre-norm: x + Dropout(Sublayer(LayerNorm(x))), which trains deep stacks without warm-up
    (Xiong et al. 2020)."""

    def __init__(self, norm: Norm, dropout: float) -> None:
        super().__init__()
        self.norm = norm
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, sublayer: Sublayer) -> Tensor:
        return x + self.dropout(sublayer(self.norm(x)))


Residual = PostNorm | PreNorm


class SequentialResidual(nn.Module):
    """The residual connections of a block, one for each sublayer, in order."""

    def __init__(self, residuals: list[Residual]) -> None:
        super().__init__()
        self.each = nn.ModuleList(residuals)


class ParallelResidual(nn.Module):
    """x + Σ Dropout(Sublayer(norm(x))): all sublayers see the same input, through one norm or one
    each."""

    def __init__(self, norms: list[Norm], dropout: float) -> None:
        super().__init__()
        self.norms = nn.ModuleList(norms)
        self.dropout = Dropout(dropout)
