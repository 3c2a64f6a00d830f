"""Normalisation: LayerNorm and RMSNorm of each position, BatchNorm of each feature."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional


class LayerNorm(nn.LayerNorm):
    """Layer normalisation (Ba, Kiros, Hinton 2016)."""

    meets_padding = False


class RMSNorm(nn.Module):
    """Root mean square normalisation (Zhang and Sennrich 2019); the weight is stored less
    `offset`."""

    meets_padding = False

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
    """Batch normalisation (Ioffe and Szegedy 2015) over all tokens of a batch, padding left out.

    As `nn.BatchNorm1d` of the tokens alone, without gathering them: a step keeps its shape.
    """

    meets_padding = True  # which does not count

    def __init__(self, width: int, eps: float, momentum: float, *, counts: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.batches = nn.Parameter(torch.zeros(()), requires_grad=False) if counts else None
        # Parameters and not buffers: stored, averaged and moved as all weights are.
        self.running_mean = nn.Parameter(torch.zeros(width), requires_grad=False)
        self.running_variance = nn.Parameter(torch.ones(width), requires_grad=False)
        self.eps = eps
        self.momentum = momentum
        self.updates_statistics = True  # see `fixed_running_statistics`
        self.share: BatchShare | None = None  # where several processes compute a batch

    def extra_repr(self) -> str:
        return f"{len(self.weight)}, eps={self.eps}, momentum={self.momentum}"

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        """x [B, T, D]; `padding_mask` [B, T] is True at tokens."""
        if self.training:
            mean, variance = self._batch_statistics(x, padding_mask)
        else:
            mean = self.running_mean
            variance = self.running_variance
        # In float32 at least, as PyTorch's norms under autocast.
        scale = (variance + self.eps).rsqrt() * self.weight
        return (x - mean) * scale + self.bias

    def _batch_statistics(self, x: Tensor, padding_mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Mean and (biased) variance of the tokens: [D] each. The running ones move."""
        x = x.to(self.weight.dtype).flatten(0, -2)  # [B·T, D]
        if padding_mask is None:
            is_token = x.new_ones(len(x), 1)
        else:
            is_token = padding_mask.reshape(-1, 1).to(x.dtype)
        count = self._sum(is_token.sum()).clamp_min(1.0)
        mean = self._sum((x * is_token).sum(dim=0)) / count
        variance = self._sum(((x - mean).square() * is_token).sum(dim=0)) / count
        if self.updates_statistics:
            self._update_statistics(mean, variance, count)
        return mean, variance

    @torch.no_grad()
    def _update_statistics(self, mean: Tensor, variance: Tensor, count: Tensor) -> None:
        if self.batches is not None:
            self.batches.add_(1)
        # The running variance is the unbiased one, as in PyTorch.
        unbiased = variance * count / (count - 1.0).clamp_min(1.0)
        self.running_mean.lerp_(mean, self.momentum)
        self.running_variance.lerp_(unbiased, self.momentum)

    def _sum(self, x: Tensor) -> Tensor:
        return x if self.share is None else self.share.sum(x)


Norm = LayerNorm | RMSNorm | BatchNorm


def batch_norms(model: nn.Module) -> list[BatchNorm]:
    """All BatchNorms of a model."""
    return [part for part in model.modules() if isinstance(part, BatchNorm)]


@contextmanager
def fixed_running_statistics(model: nn.Module) -> Iterator[None]:
    """Forward passes in training do not update the running statistics of BatchNorm."""
    norms = batch_norms(model)
    for norm in norms:
        norm.updates_statistics = False
    try:
        yield
    finally:
        for norm in norms:
            norm.updates_statistics = True


def normalize(norm: nn.Module, x: Tensor, padding_mask: Tensor | None) -> Tensor:
    """The norm of x [B, T, D], whose tokens are where `padding_mask` [B, T] is True."""
    if isinstance(norm, BatchNorm):
        return norm(x, padding_mask)
    return norm(x)


class KernelNorm(NamedTuple):
    """A norm as Triton kernels take it: gain, shift, ε, and what is added to the gain."""

    kind: str  # "layer" or "rms"
    weight: Tensor
    bias: Tensor | None
    eps: float
    offset: float


def kernel_norm(norm: Norm) -> KernelNorm:
    """The parameters of a norm for a Triton kernel."""
    assert not isinstance(norm, BatchNorm), "kernels normalise positions, not features"
    if isinstance(norm, LayerNorm):
        return KernelNorm("layer", norm.weight, norm.bias, norm.eps, 0.0)
    return KernelNorm("rms", norm.weight, None, norm.eps, norm.offset)


class BatchShare(Protocol):
    """For parts that need the whole batch: BatchNorm's statistics, the capacity of experts, the
    codes in use."""

    data_rank: int  # which share this process has
    data_size: int  # how many there are

    @property
    def shares_batch(self) -> bool:
        """Whether others compute other rows of the batch in work."""
        ...

    @property
    def row_share(self) -> float:
        """This process's rows as a share of all rows of the batch."""
        ...

    def sum(self, x: Tensor) -> Tensor:
        """The sum over all shares, with its gradient."""
        ...
