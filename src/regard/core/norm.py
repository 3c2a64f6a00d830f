"""Normalisation over the last dimension."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class LayerNorm(nn.Module):
    """Ba, Kiros, Hinton 2016."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return functional.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)
