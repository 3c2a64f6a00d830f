"""Residual connections: dropout, the sum, and the place of the norm (pre-norm, post-norm,
parallel), or no sum at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

from regard.core.dropout import Dropout
from regard.core.norm import Norm, normalize

Sublayer = Callable[[Tensor], Tensor]


class LayerScale(nn.Module):
    """LayerScale: a learned factor for each dimension of a sublayer's output, so that deep stacks
    can start close to the identity (Touvron et al. 2021, CaiT)."""

    def __init__(self, d_model: int, value: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((d_model,), value))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


class _Connection(nn.Module):
    """Abstract: the connection around one sublayer."""

    def __init__(self, norm: Norm, dropout: float) -> None:
        super().__init__()
        self.norm = norm
        self.dropout = Dropout(dropout)


class PostNorm(_Connection):
    """Post-norm: LayerNorm(x + Dropout(Sublayer(x))), Sections 3.1 and 5.4. In mixed precision the
    sum is as narrow as its summands: it never grows, because each is normalised."""

    def forward(self, x: Tensor, sublayer: Sublayer, padding_mask: Tensor | None = None) -> Tensor:
        y = sublayer(x)
        # Under autocast, PyTorch normalises in float32.
        return normalize(self.norm, x + self.dropout(y), padding_mask).to(y.dtype)


class PreNorm(_Connection):
    """Pre-norm: x + Dropout(Sublayer(LayerNorm(x))), which trains deep stacks without warm-up
    (Xiong et al. 2020)."""

    def forward(self, x: Tensor, sublayer: Sublayer, padding_mask: Tensor | None = None) -> Tensor:
        return x + self.dropout(sublayer(normalize(self.norm, x, padding_mask)))


class SandwichNorm(_Connection):
    """Norms on both sides of a sublayer: x + Dropout(Norm(Sublayer(Norm(x)))) (Gemma 2)."""

    def __init__(self, norm: Norm, after: Norm, dropout: float) -> None:
        super().__init__(norm, dropout)
        self.after = after

    def forward(self, x: Tensor, sublayer: Sublayer, padding_mask: Tensor | None = None) -> Tensor:
        y = sublayer(normalize(self.norm, x, padding_mask))
        return x + self.dropout(normalize(self.after, y, padding_mask))


class NoResidual(_Connection):
    """No residual connection: LayerNorm(Dropout(Sublayer(x))), or with `pre`
    Dropout(Sublayer(LayerNorm(x)))."""

    def __init__(self, norm: Norm, dropout: float, *, pre: bool) -> None:
        super().__init__(norm, dropout)
        self.pre = pre

    def extra_repr(self) -> str:
        return f"pre={self.pre}"

    def forward(self, x: Tensor, sublayer: Sublayer, padding_mask: Tensor | None = None) -> Tensor:
        if self.pre:
            return self.dropout(sublayer(normalize(self.norm, x, padding_mask)))
        y = sublayer(x)
        return normalize(self.norm, self.dropout(y), padding_mask).to(y.dtype)


Residual = PostNorm | PreNorm | SandwichNorm | NoResidual


class SequentialResidual(nn.Module):
    """The residual connections of a block, one for each sublayer, in order."""

    def __init__(self, residuals: list[Residual]) -> None:
        super().__init__()
        self.each = nn.ModuleList(residuals)

    @property
    def norms(self) -> list[Norm]:
        return [cast(Residual, part).norm for part in self.each]


class ParallelResidual(nn.Module):
    """x + Σ Dropout(Sublayer(norm(x))): all sublayers read the same input, through one norm or one
    each."""

    def __init__(self, norms: list[Norm], dropout: float) -> None:
        super().__init__()
        self.norms = nn.ModuleList(norms)
        self.dropout = Dropout(dropout)
