"""Convolutions over positions, and the inputs that causal ones remember while decoding."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.core.caches.kv_cache import ConvState
from regard.core.linear import normal


class GridConvolution(nn.Module):
    """Convolution over positions that lie on a grid of rows and columns: [B, N, inputs] → [B, N',
    outputs]. Without `padding` no kernel reaches over the edge; with it each is centred."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int,
        stride: int = 1,
        *,
        groups: int = 1,
        padding: bool = True,
    ) -> None:
        super().__init__()
        self.stride = stride
        self.groups = groups
        self.padding = kernel // 2 if padding else 0
        shape = (outputs, inputs // groups, kernel, kernel)
        # He et al. 2015, equation 14.
        std = (2.0 / (outputs // groups * kernel**2)) ** 0.5
        self.weight = nn.Parameter(normal(*shape, std=std))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def extra_repr(self) -> str:
        outputs, inputs, kernel, _ = self.weight.shape
        return f"{inputs * self.groups} → {outputs}, kernel={kernel} × {kernel}"

    def forward(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        return self.of_map(x.mT.unflatten(2, grid))

    def of_map(self, x: Tensor) -> Tensor:
        """A feature map [B, inputs, rows, columns] → positions row by row [B, N', outputs]"""
        options = {"stride": self.stride, "padding": self.padding, "groups": self.groups}
        return functional.conv2d(x, self.weight, self.bias, **options).flatten(2).mT


class DilatedConvolution(nn.Module):
    """Dilated convolution over positions: centred in an encoder, causal where there is a past."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int,
        dilation: int,
        *,
        bias: bool = True,
        groups: int = 1,
        initialization: Literal["fan_in", "xavier"] = "fan_in",
    ) -> None:
        super().__init__()
        self.dilation = dilation
        self.reach = (kernel - 1) * dilation  # the receptive field is one more
        self.groups = groups
        inputs //= groups  # of each output: one, where each channel is by itself (depthwise)
        self.weight = nn.Parameter(torch.empty(outputs, inputs, kernel))
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None
        if self.weight.is_meta:
            return
        if initialization == "xavier":
            # As `Linear`, whose draws these are for a kernel of 1.
            bound = math.sqrt(6.0 / (kernel * (inputs + outputs)))
            self.weight.data.uniform_(-bound, bound)
        else:
            # 1 / fan-in as the variance keeps that of the inputs.
            self.weight.data.normal_(std=(kernel * inputs) ** -0.5)

    def extra_repr(self) -> str:
        outputs, inputs, kernel = self.weight.shape
        return f"{inputs} → {outputs}, kernel={kernel}, dilation={self.dilation}"

    def start(self, rows: int, like: Tensor) -> ConvState:
        """Zeros for the inputs before the first position."""
        inputs = self.weight.shape[1] * self.groups
        return ConvState(like.new_zeros(rows, self.reach, inputs))

    def forward(self, x: Tensor, past: ConvState | None = None) -> Tensor:
        """[B, T, inputs] → [B, T, outputs]"""
        padding = self.reach // 2  # on each side; kernels of encoders are odd
        if past is not None:
            padding = 0
            x = torch.cat([past.x.to(x.dtype), x], dim=1)
            # Not x[:, -reach:], which for a kernel of 1 would keep everything.
            past.x = x[:, x.shape[1] - self.reach :]
        # conv1d takes channels before positions: [B, inputs, T].
        dilation = self.dilation
        x = functional.conv1d(
            x.transpose(1, 2), self.weight, self.bias, 1, padding, dilation, self.groups
        )
        return x.transpose(1, 2)


class NormalizedConvolution(nn.Module):
    """Dilated convolution over positions, whose weight is kept as directions and their lengths, one
    for each channel that it makes (weight normalisation, Salimans and Kingma 2016)."""

    def __init__(self, inputs: int, outputs: int, kernel: int, dilation: int = 1) -> None:
        super().__init__()
        self.dilation = dilation
        self.direction = nn.Parameter(
            normal(outputs, inputs, kernel, std=(kernel * inputs) ** -0.5)
        )
        self.length = nn.Parameter(torch.ones(outputs, 1, 1))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """[B, inputs, T] → [B, outputs, T]"""
        weight = normalized_weight(self.direction, self.length, (1, 2))
        reach = (weight.shape[2] - 1) * self.dilation
        return functional.conv1d(x, weight, self.bias, padding=reach // 2, dilation=self.dilation)


def normalized_weight(direction: Tensor, length: Tensor, over: tuple[int, ...]) -> Tensor:
    """A weight of these directions; `over` are the dimensions of one."""
    return direction * (length / torch.linalg.vector_norm(direction, dim=over, keepdim=True))


def zero_padding(x: Tensor, padding_mask: Tensor | None) -> Tensor:
    """Zeros at padding, as a convolution has them beyond the end of a row."""
    if padding_mask is None:
        return x
    return x.masked_fill(~padding_mask[:, :, None], 0.0)
