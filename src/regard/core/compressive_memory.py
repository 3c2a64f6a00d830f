"""What leaves the memory of a segment is compressed before it is forgotten (Rae et al. 2020).

A memory is laid out as the places that were compressed, some that may wait for the rest of their group, and the recent ones,
each part filled from its end. Groups are counted from the first place of each text, so that it does not matter into which
segments, or beside which padding, a text is read. All shapes are fixed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from regard.core.cache import SegmentMemory
from regard.core.linear import Linear
from regard.core.softmax_attention import attention_weights, per_query_head

Projection = Callable[[Tensor, None], tuple[Tensor, Tensor, Tensor]]


class PoolCompression(nn.Module):
    """The mean, or the largest, of each number of a group: [.., c, D] → [.., D]."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, groups: Tensor) -> Tensor:
        return groups.mean(dim=-2) if self.kind == "mean" else groups.amax(dim=-2)


class ConvCompression(nn.Module):
    """A convolution as wide as its stride, which is one map of each group."""

    def __init__(self, d_model: int, factor: int) -> None:
        super().__init__()
        self.map = Linear(factor * d_model, d_model)

    def forward(self, groups: Tensor) -> Tensor:
        made: Tensor = self.map(groups.flatten(-2))
        return made


class Left(NamedTuple):
    """What leaves a memory, in groups, and what was made of it. Each row has its own number of groups."""

    old: Tensor  # [B, N · c, D]
    new: Tensor  # [B, N, D]
    groups: Tensor  # [B, 1]: the first so many count

    @property
    def padding_mask(self) -> Tensor:
        """[B, N]"""
        return torch.arange(self.new.shape[1], device=self.new.device) < self.groups


class CompressiveMemory(nn.Module):
    """Behind `recent` places, `factor` are made to one, and the last `kept` of these remembered. `room` is for all."""

    def __init__(
        self,
        function: PoolCompression | ConvCompression,
        d_model: int,
        *,
        recent: int,
        kept: int,
        factor: int,
    ) -> None:
        super().__init__()
        self.function = function
        self.d_model, self.recent, self.kept, self.factor = d_model, recent, kept, factor
        self.room = kept + factor - 1 + recent

    def remember(
        self, past: SegmentMemory, x: Tensor, k: Tensor, v: Tensor, project: Projection
    ) -> Left:
        """Takes up x [B, T, D], which has been told as real or not, and compresses what it drives out; keys and values are of
        all that was remembered and of x. No gradient goes back to where any of it came from."""
        kept, room, device = self.kept, self.room, x.device
        recent = past.padding_mask[:, kept:].sum(dim=1, keepdim=True)  # all of them at the end
        left = self._leaving(
            torch.cat([past.x[:, kept:].to(x.dtype), x.detach()], dim=1), recent, x.shape[1]
        )
        # Where each place comes from, in all that was remembered, all that came, and what was made of what left.
        moved = torch.arange(kept, device=device) + left.groups
        moved = torch.where(moved < kept, moved, moved + room - kept + x.shape[1])
        stays = torch.arange(kept, room, device=device) + x.shape[1]
        source = torch.cat([moved, stays.expand(len(x), -1)], dim=1)
        whole = torch.cat([past.x.to(x.dtype), x.detach(), left.new.detach()], dim=1)
        past.x = _taken(whole, source).to(past.x.dtype)
        there = torch.arange(kept, room, device=device) >= room - (
            recent - left.groups * self.factor
        )
        past.padding_mask = torch.cat(
            [_taken(torch.cat([past.padding_mask, left.padding_mask], dim=1), moved), there], dim=1
        )
        if past.k is not None:
            _, new_k, new_v = project(left.new, None)
            past.k, past.v = (
                _taken(torch.cat(both, dim=2).transpose(1, 2), source).transpose(1, 2)
                for both in ((k, new_k), (v, new_v))
            )
        return left

    def _leaving(self, queue: Tensor, padding_mask: Tensor, new: int) -> Left:
        """The groups that leave a queue [B, N, D], of which the last `real` [B, 1] places are, when `new` have come."""
        groups = (padding_mask - self.recent).clamp_min(0) // self.factor
        most = (new + self.factor - 1) // self.factor
        first = (
            queue.shape[1] - padding_mask + torch.arange(most * self.factor, device=queue.device)
        )
        old = _taken(queue, first.clamp_max(queue.shape[1] - 1))
        return Left(old, self.function(old.unflatten(1, (most, self.factor))), groups)

    def loss(self, left: Left, q: Tensor, project: nn.Module, scale: float) -> Tensor:
        """How far apart is what queries [B, H, T, K] find by content in what left, and in what was made of it (attention
        reconstruction): the mean square. Only the compression learns from it."""
        frozen = {name: part.detach() for name, part in project.named_parameters()}

        def found(x: Tensor, padding_mask: Tensor) -> Tensor:
            _, k, v = functional_call(project, frozen, (x, None))
            weights = attention_weights(q.detach(), k, padding_mask[:, None, None], scale)
            return weights @ per_query_head(v, q.shape[1])

        apart = found(left.old, left.padding_mask.repeat_interleave(self.factor, dim=1)) - found(
            left.new, left.padding_mask
        )
        return apart.float().square().mean()


def _taken(x: Tensor, places: Tensor) -> Tensor:
    """x [B, N, ..] at `places` [B, M]."""
    index = places.view(*places.shape, *[1] * (x.ndim - 2)).expand(-1, -1, *x.shape[2:])
    return x.gather(1, index)
