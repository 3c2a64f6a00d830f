"""Normalisation: LayerNorm and RMSNorm over the last dimension, BatchNorm over the others."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional


class LayerNorm(nn.Module):
    """Layer normalisation (Ba, Kiros, Hinton 2016)."""

    def __init__(self, width: int, eps: float, bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None
        self.eps = eps

    def extra_repr(self) -> str:
        return f"{len(self.weight)}, eps={self.eps}"

    def forward(self, x: Tensor) -> Tensor:
        return functional.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


class RMSNorm(nn.Module):
    """Root mean square normalisation (Zhang and Sennrich 2019); the weight is stored less
    `offset`."""

    def __init__(self, width: int, eps: float, offset: float = 0.0) -> None:
        super().__init__()
        # Gemma's files hold the weight less 1; the gain begins at 1 in any case.
        self.weight = nn.Parameter(torch.full((width,), 1.0 - offset))
        self.eps = eps
        self.offset = offset

    def extra_repr(self) -> str:
        return f"{len(self.weight)}, eps={self.eps}"

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight + self.offset if self.offset else self.weight
        return functional.rms_norm(x, self.weight.shape, weight, self.eps)


class BatchNorm(nn.Module):
    """Batch normalisation of the channels [..., D] (Ioffe and Szegedy 2015).

    The running statistics are parameters that are not trained: so they are saved, averaged and
    restored with the weights.
    """

    def __init__(self, width: int, eps: float, momentum: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.running_mean = nn.Parameter(torch.zeros(width), requires_grad=False)
        self.running_var = nn.Parameter(torch.ones(width), requires_grad=False)
        # A number of PyTorch's files, which nothing is computed from.
        self.batches = nn.Parameter(torch.zeros(()), requires_grad=False)
        self.eps = eps
        self.momentum = momentum

    def extra_repr(self) -> str:
        return f"{len(self.weight)}, eps={self.eps}"

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.batches.add_(1)
        y = functional.batch_norm(
            x.reshape(-1, x.shape[-1]),  # [positions, D]
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            self.training,
            self.momentum,
            self.eps,
        )
        return y.view(x.shape)


Norm = LayerNorm | RMSNorm | BatchNorm


class KernelNorm(NamedTuple):
    """A norm as Triton kernels take it: gain, shift, ε, and what is added to the gain."""

    kind: str  # "layer" or "rms"
    weight: Tensor
    bias: Tensor | None
    eps: float
    offset: float


def kernel_norm(norm: Norm) -> KernelNorm:
    """The parameters of a norm for a Triton kernel."""
    if isinstance(norm, LayerNorm):
        return KernelNorm("layer", norm.weight, norm.bias, norm.eps, 0.0)
    assert isinstance(norm, RMSNorm), "no decoder has batch norms"
    return KernelNorm("rms", norm.weight, None, norm.eps, norm.offset)
