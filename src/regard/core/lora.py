"""LoRA: a low-rank update of a frozen matrix, W + scale · up · down (Hu et al. 2022)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.core.dropout import Dropout
from regard.core.linear import normal


class LoRA(nn.Module):
    """x → scale · up(down(dropout(x))). `up` starts at zero, so that the model starts as it was."""

    def __init__(self, inputs: int, outputs: int, rank: int, alpha: float, dropout: float) -> None:
        super().__init__()
        self.down = nn.Parameter(normal(rank, inputs))  # A of the paper
        self.up = nn.Parameter(torch.zeros(outputs, rank))  # B of the paper
        self.scale = alpha / rank
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        narrow = nn.functional.linear(self.dropout(x), self.down)  # [..., rank]
        return nn.functional.linear(narrow, self.up) * self.scale

    def extra_repr(self) -> str:
        return f"rank={len(self.down)}, scale={self.scale}"

    def matrix(self) -> Tensor:
        """The change as one matrix [outputs, inputs], multiplied out in float64."""
        return self.scale * (self.up.double() @ self.down.double())
