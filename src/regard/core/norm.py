"""Normalisation: LayerNorm and RMSNorm of each position, BatchNorm and InstanceNorm of features."""

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
    mixes_positions = False


class RMSNorm(nn.Module):
    """Root mean square normalisation (Zhang and Sennrich 2019); the weight is stored less
    `offset`."""

    meets_padding = False
    mixes_positions = False

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
    mixes_positions = False

    def __init__(
        self,
        width: int,
        eps: float,
        momentum: float,
        *,
        counts: bool = False,
        frozen: bool = False,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width), requires_grad=not frozen)
        self.bias = nn.Parameter(torch.zeros(width), requires_grad=not frozen)
        self.batches = nn.Parameter(torch.zeros(()), requires_grad=False) if counts else None
        # Parameters and not buffers: stored, averaged and moved as all weights are.
        self.running_mean = nn.Parameter(torch.zeros(width), requires_grad=False)
        self.running_variance = nn.Parameter(torch.ones(width), requires_grad=False)
        self.eps = eps
        self.momentum = momentum
        self.frozen = frozen
        self.updates_statistics = True  # see `fixed_running_statistics`
        self.share: BatchShare | None = None  # where several processes compute a batch

    def extra_repr(self) -> str:
        return f"{len(self.weight)}, eps={self.eps}, momentum={self.momentum}"

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        """x [B, T, D]; `padding_mask` [B, T] is True at tokens."""
        if self.training and not self.frozen:
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
        self._count()
        # The running variance is the unbiased one, as in PyTorch.
        unbiased = variance * count / (count - 1.0).clamp_min(1.0)
        self.running_mean.lerp_(mean, self.momentum)
        self.running_variance.lerp_(unbiased, self.momentum)

    def _count(self) -> None:
        if self.batches is not None:
            with torch.no_grad():
                self.batches.add_(1)

    def _sum(self, x: Tensor) -> Tensor:
        return x if self.share is None else self.share.sum(x)


class BatchNorm2d(BatchNorm):
    """The same over feature maps [B, C, H, W], by PyTorch's kernel: what it computes is the same,
    but in a network of convolutions the norms are a good part of the time."""

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        learns = self.training and not self.frozen
        if learns and (self.share is not None or x.numel() == x.shape[1]):
            # The kernel knows no other processes, and refuses a single position.
            return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        mean: Tensor | None = self.running_mean
        variance: Tensor | None = self.running_variance
        if learns and self.updates_statistics:
            self._count()
        elif learns:
            mean = variance = None
        return functional.batch_norm(
            x, mean, variance, self.weight, self.bias, learns, self.momentum, self.eps
        )


class InstanceNorm(nn.Module):
    """Instance normalisation (Ulyanov, Vedaldi, Lempitsky 2016): each feature over the positions
    of one sequence, as `nn.InstanceNorm1d` of its tokens alone, padding left out."""

    meets_padding = True  # which does not count
    mixes_positions = True

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.eps = eps

    def extra_repr(self) -> str:
        return f"{len(self.weight)}, eps={self.eps}"

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        """x [B, T, D]; `padding_mask` [B, T] is True at tokens."""
        if padding_mask is None:  # one group a feature
            return torch.group_norm(x.mT, x.shape[-1], self.weight, self.bias, self.eps).mT
        # In float32 at least, as PyTorch's norms under autocast.
        x = x.to(self.weight.dtype)
        is_token = padding_mask[..., None].to(x.dtype)  # [B, T, 1]
        count = is_token.sum(dim=1, keepdim=True).clamp_min(1.0)
        mean = (x * is_token).sum(dim=1, keepdim=True) / count  # [B, 1, D]
        variance = ((x - mean).square() * is_token).sum(dim=1, keepdim=True) / count
        return (x - mean) * (variance + self.eps).rsqrt() * self.weight + self.bias


Norm = LayerNorm | RMSNorm | BatchNorm | InstanceNorm


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
    if isinstance(norm, BatchNorm | InstanceNorm):
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
    assert isinstance(norm, LayerNorm | RMSNorm), "kernels normalise positions, not features"
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
