"""Compressive memory (Rae et al. 2020): positions that leave the segment memory are compressed.

A memory is laid out as the compressed positions, some that wait for the rest of their group, and
the recent ones, each part filled from its end. Groups are counted from the first position of each
text, so that it does not matter into which segments, or beside which padding, a text is read. All
shapes are fixed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from regard.core.grouped_query_attention import per_query_head
from regard.core.linear import Linear
from regard.core.scaled_dot_product_attention import attention_weights
from regard.core.segment_memory import SegmentMemory

Projection = Callable[[Tensor, None], tuple[Tensor, Tensor, Tensor]]


class PoolCompression(nn.Module):
    """Mean or max pooling over a group: [.., c, D] → [.., D]."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def extra_repr(self) -> str:
        return self.kind

    def forward(self, groups: Tensor) -> Tensor:
        if self.kind == "mean":
            return groups.mean(dim=-2)
        return groups.amax(dim=-2)


class ConvCompression(nn.Module):
    """A convolution as wide as its stride, which is one linear map of each group."""

    def __init__(self, d_model: int, factor: int) -> None:
        super().__init__()
        self.map = Linear(factor * d_model, d_model)

    def forward(self, groups: Tensor) -> Tensor:
        compressed: Tensor = self.map(groups.flatten(-2))
        return compressed


class Leaving(NamedTuple):
    """The groups of positions that leave the recent memory, and their compressed form. Rows differ
    in how many groups leave."""

    old: Tensor  # [B, N·c, D]
    new: Tensor  # [B, N, D]
    groups: Tensor  # [B, 1]: the first so many count

    @property
    def padding_mask(self) -> Tensor:
        """[B, N]"""
        return torch.arange(self.new.shape[1], device=self.new.device) < self.groups


class CompressiveMemory(nn.Module):
    """A compressed memory behind the segment memory of the `recent` positions.

    What is older is compressed, `factor` positions to one, and the last `length` compressed ones
    are remembered. `room` counts all positions of both.
    """

    def __init__(
        self,
        function: PoolCompression | ConvCompression,
        d_model: int,
        *,
        recent: int,
        length: int,
        factor: int,
    ) -> None:
        super().__init__()
        self.function = function
        self.d_model = d_model
        self.recent = recent
        self.length = length
        self.factor = factor
        # Up to factor − 1 positions wait until their group is complete.
        self.room = length + factor - 1 + recent

    def extra_repr(self) -> str:
        return f"recent={self.recent}, compressed={self.length}, factor={self.factor}"

    def remember(
        self, memory: SegmentMemory, x: Tensor, k: Tensor, v: Tensor, project: Projection
    ) -> Leaving:
        """Takes up x [B, T, D] and compresses what it drives out; k and v are of all that was
        remembered and of x. No gradient goes back to where any of it came from."""
        compressed = self.length
        count = memory.padding_mask[:, compressed:].sum(dim=1, keepdim=True)  # filled from the end
        # [B, room − length + T, D]: what waits, what is recent, and x.
        recent = torch.cat([memory.x[:, compressed:].to(x.dtype), x.detach()], dim=1)
        leaving = self._leaving(recent, count, x.shape[1])
        # The memory after this is gathered from all that was remembered, x, and what is new.
        moved, source = self._sources(leaving, x)
        everything = torch.cat([memory.x.to(x.dtype), x.detach(), leaving.new.detach()], dim=1)
        memory.x = _gather(everything, source).to(memory.x.dtype)
        slots = torch.arange(compressed, self.room, device=x.device)
        # [B, room − length]: what is left once complete groups have gone, filled from the end.
        filled = slots >= self.room - (count - leaving.groups * self.factor)
        padding = torch.cat([memory.padding_mask, leaving.padding_mask], dim=1)
        memory.padding_mask = torch.cat([_gather(padding, moved), filled], dim=1)
        if memory.k is not None:
            _, new_k, new_v = project(leaving.new, None)
            memory.k = _gather_heads(torch.cat([k, new_k], dim=2), source)
            memory.v = _gather_heads(torch.cat([v, new_v], dim=2), source)
        return leaving

    def _sources(self, leaving: Leaving, x: Tensor) -> tuple[Tensor, Tensor]:
        """Where each compressed position [B, length], and each of all [B, room], comes from."""
        slots = torch.arange(self.length, device=x.device)
        moved = slots + leaving.groups
        # Beyond the old compressed ones come those that were just made, after the rest and x.
        behind = moved + self.room - self.length + x.shape[1]
        moved = torch.where(moved < self.length, moved, behind)
        stays = torch.arange(self.length, self.room, device=x.device) + x.shape[1]
        return moved, torch.cat([moved, stays.expand(len(x), -1)], dim=1)

    def _leaving(self, queue: Tensor, count: Tensor, new: int) -> Leaving:
        """The groups that leave a queue [B, N, D], whose last `count` [B, 1] positions are filled,
        when `new` ones have come."""
        groups = (count - self.recent).clamp_min(0) // self.factor
        # No more groups than these can become complete by `new` positions: shapes stay fixed.
        most = (new + self.factor - 1) // self.factor
        offsets = torch.arange(most * self.factor, device=queue.device)
        first = queue.shape[1] - count + offsets  # [B, most · factor]
        old = _gather(queue, first.clamp_max(queue.shape[1] - 1))
        return Leaving(old, self.function(old.unflatten(1, (most, self.factor))), groups)

    def loss(self, leaving: Leaving, q: Tensor, project: nn.Module, scale: float) -> Tensor:
        """Attention reconstruction loss: the mean squared difference of what queries [B, H, T, K]
        find by content in what left, and in what was made of it. Only the compression learns."""
        # Rae et al. 2020, Algorithm 2: this loss does not train the Transformer itself.
        frozen = {name: parameter.detach() for name, parameter in project.named_parameters()}

        def attend(x: Tensor, padding_mask: Tensor) -> Tensor:
            _, k, v = functional_call(project, frozen, (x, None))
            weights = attention_weights(q.detach(), k, padding_mask[:, None, None], scale)
            return weights @ per_query_head(v, q.shape[1])

        old_mask = leaving.padding_mask.repeat_interleave(self.factor, dim=1)
        difference = attend(leaving.old, old_mask) - attend(leaving.new, leaving.padding_mask)
        return difference.float().square().mean()


def _gather(x: Tensor, positions: Tensor) -> Tensor:
    """x [B, N, ..] at `positions` [B, M]."""
    index = positions.view(*positions.shape, *[1] * (x.ndim - 2)).expand(-1, -1, *x.shape[2:])
    return x.gather(1, index)


def _gather_heads(x: Tensor, positions: Tensor) -> Tensor:
    """x [B, G, N, K] at `positions` [B, M]: [B, G, M, K]."""
    return _gather(x.transpose(1, 2), positions).transpose(1, 2)
