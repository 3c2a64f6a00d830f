"""Normalisation over the last dimension."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class LayerNorm(nn.Module):
    """Ba, Kiros, Hinton 2016."""

    def __init__(self, width: int, eps: float, bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return functional.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


class RMSNorm(nn.Module):
    """Zhang and Sennrich 2019; the weight is stored less `offset`."""

    def __init__(self, width: int, eps: float, offset: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((width,), 1.0 - offset))
        self.eps = eps
        self.offset = offset

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight + self.offset if self.offset else self.weight
        return functional.rms_norm(x, self.weight.shape, weight, self.eps)


Norm = LayerNorm | RMSNorm
Told = tuple[str, Tensor, Tensor | None, float, float]


def told(norm: Norm) -> Told:
    """A norm as kernels are told of it: its kind, gain, shift, ε, and what is added to the gain."""
    if isinstance(norm, LayerNorm):
        return "layer", norm.weight, norm.bias, norm.eps, 0.0
    return "rms", norm.weight, None, norm.eps, norm.offset
