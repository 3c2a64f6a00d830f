"""Positions that are added at the input. (Those on q and k, and on the score, have their own seams in attention and mixing.)"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.core.linear import normal
from regard.errors import DataError


def sinusoids(positions: Tensor, d_model: int, order: str, base: float) -> Tensor:
    """PE(pos, 2i) = sin(pos / base^(2i/d)), PE(pos, 2i+1) = cos(same): [T, D], computed in float64 as tables are."""
    exponents = torch.arange(0, d_model, 2, dtype=torch.float64, device=positions.device) / d_model
    angles = positions.to(torch.float64)[:, None] / base**exponents  # [T, ⌈D/2⌉]
    sines, cosines = angles.sin(), angles.cos()[:, : d_model // 2]
    if order == "halves":
        return torch.cat([sines, cosines], dim=1)
    table = torch.empty(len(positions), d_model, dtype=torch.float64, device=positions.device)
    table[:, 0::2], table[:, 1::2] = sines, cosines
    return table


class Sinusoidal(nn.Module):
    """The table is kept as long as the longest input so far; it is no parameter and is not saved."""

    table: Tensor

    def __init__(self, d_model: int, order: str, base: float) -> None:
        super().__init__()
        self.d_model, self.order, self.base = d_model, order, base
        self.register_buffer("table", self._compute(512), persistent=False)

    def _compute(self, length: int) -> Tensor:
        return sinusoids(torch.arange(length, device="cpu"), self.d_model, self.order, self.base).to(torch.float32)

    def forward(self, start: int, length: int) -> Tensor:
        if start + length > len(self.table):
            longer = max(start + length, 2 * len(self.table))
            self.table = self._compute(longer).to(self.table)
        return self.table[start : start + length]


class Learned(nn.Module):
    def __init__(self, d_model: int, length: int) -> None:
        super().__init__()
        self.table = nn.Parameter(normal(length, d_model))

    def forward(self, start: int, length: int) -> Tensor:
        if start + length > len(self.table):
            raise DataError(
                f"the input has {start + length} positions, but this model has learnt {len(self.table)}",
                "split the text into shorter lines, or train with sinusoidal positions or a larger `length`",
            )
        return self.table[start : start + length]
