"""Dropout, drawn from the default generator of the tensor's device and from nothing else."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional


class Dropout(nn.Module):
    """Zeroes each number with probability `rate` and scales the rest, in training only."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        return functional.dropout(x, self.rate) if self.training and self.rate > 0 else x
