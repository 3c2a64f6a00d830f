"""Dropout, drawn from the default generator of the tensor's device and from nothing else."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

_LEVELS = 1 << 16


class _Random(nn.Module):
    """Abstract: what leaves something out with probability `rate`, in training only."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def extra_repr(self) -> str:
        return f"rate={self.rate}"


class Dropout(_Random):
    """Zeroes each number with probability `rate` and scales the rest, in training only.

    `__call__` is overridden, so forward hooks on it never fire: what does nothing must cost
    nothing, and a module's call is dearer than the smallest products of a decoding step.
    """

    def __call__(self, x: Tensor) -> Tensor:
        if not self.training or self.rate == 0:
            return x
        return self.forward(x)

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type == "cpu":
            return _CpuDropout.apply(x, self.rate)
        return functional.dropout(x, self.rate)


class DropPath(_Random):
    """Stochastic depth: in training, zeroes a sublayer's output for whole examples with probability
    `rate`, and scales the others (Huang et al. 2016)."""

    def forward(self, x: Tensor) -> Tensor:
        """x [B, T, D] → the same, or zeros, row by row."""
        if not self.training:
            return x
        survives = torch.rand(len(x), 1, 1, device=x.device) >= self.rate
        return x * (survives / (1 - self.rate)).to(x.dtype)


class LayerDrop(_Random):
    """LayerDrop: in training, skips a layer for the whole batch with probability `rate`
    (Fan et al. 2020)."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """A layer's input [B, T, D] where it is skipped, otherwise its output."""
        if not self.training:
            return y
        # Drawn and chosen on the device: a step that is captured as a graph draws anew each time.
        survives = torch.rand((), device=x.device) >= self.rate
        return torch.where(survives, y, x)


class _CpuDropout(torch.autograd.Function):
    """Four decisions from each 64-bit draw. PyTorch draws one number for each decision on a CPU,
    which costs more than the matrix products around it; 16 bits give the rate to within 0.00001,
    and the scale is exact for the rate they give."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rate: float) -> Tensor:
        dropped = round(rate * _LEVELS)
        if dropped == _LEVELS:  # a rate of 1: 16 bits have no number above all others
            ctx.save_for_backward(torch.zeros_like(x, dtype=torch.bool))
            ctx.scale = 0.0
            return torch.zeros_like(x)
        # new_empty: where x is fake (the planner's trace), so are the draws.
        draws = x.new_empty((x.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
        numbers = draws.view(torch.int16)[: x.numel()]  # uniform over −2¹⁵ … 2¹⁵ − 1
        survives = (numbers >= dropped - _LEVELS // 2).view(x.shape)
        ctx.save_for_backward(survives)
        ctx.scale = _LEVELS / (_LEVELS - dropped)
        return torch.mul(x, survives).mul_(ctx.scale)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (survives,) = ctx.saved_tensors
        return torch.mul(grads[0], survives).mul_(ctx.scale), None
