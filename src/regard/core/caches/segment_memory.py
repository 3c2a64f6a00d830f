"""Segment memory (Transformer-XL, Dai et al. 2019): what layers were given in the segments
before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from regard import spec
from regard.core.caches.kv_cache import Cache, Positions
from regard.core.linear import Linear
from regard.core.masks.attention_mask import MaskAxes
from regard.core.mixers.scaled_dot_product_attention import attention_weights
from regard.core.projection import per_query_head


@dataclass
class SegmentMemory(Cache):
    """The inputs of an attention at the positions before this segment.

    Keys and values are computed from it with the current weights; gradients stop here.
    The memory has a fixed length; `padding_mask` says which of its positions are filled, and, while
    a segment is read, which of the segment's positions are tokens. In decoding, where weights do
    not change, keys and values may be kept too.
    """

    row_tensors = ("x", "padding_mask", "k", "v")
    x: Tensor  # [B, M, D]
    padding_mask: Tensor  # [B, M] bool
    k: Tensor | None = None  # [B, G, M, K]
    v: Tensor | None = None  # [B, G, M, E]

    def positions(self, position: int, new: int) -> Positions:
        """From 0 in each segment: a segment memory has relative positions only."""
        return Positions(0, new, new)

    def axes(self, position: int, x: Tensor) -> MaskAxes:
        return MaskAxes.counted(self.x.shape[1], x)

    def join_padding(self, padding_mask: Tensor | None, x: Tensor) -> Tensor:
        """[B, M + T]: of the memory and of the segment x [B, T, D] that is about to be read."""
        if padding_mask is None:
            padding_mask = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
        new = padding_mask[:, -x.shape[1] :]  # of this segment
        self.padding_mask = torch.cat([self.padding_mask, new], dim=1)
        return self.padding_mask

    def remember(self, x: Tensor) -> None:
        """Takes up x [B, T, D]; the last M positions of all are kept."""
        length = self.x.shape[1]
        everything = torch.cat([self.x.to(x.dtype), x], dim=1)
        # SG(·) of the paper: no gradient. A copy, because a view would hold on to `everything`.
        self.x = everything[:, -length:].detach().to(self.x.dtype, copy=True)
        self.padding_mask = self.padding_mask[:, -length:]


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
        return self.map(groups.flatten(-2))


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

    function: PoolCompression | ConvCompression

    def __init__(self, part: spec.CompressiveMemory, d_model: int, recent: int) -> None:
        super().__init__()
        if part.function == "convolution":
            self.function = ConvCompression(d_model, part.factor)
        else:
            self.function = PoolCompression(part.function)
        self.d_model = d_model
        self.recent = recent
        self.length = part.length
        self.factor = part.factor
        # Up to factor − 1 positions wait until their group is complete.
        self.room = part.length + part.factor - 1 + recent

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
        memory.x = everything.take_along_dim(source[..., None], dim=1).to(memory.x.dtype)
        slots = torch.arange(compressed, self.room, device=x.device)
        # [B, room − length]: what is left once complete groups have gone, filled from the end.
        filled = slots >= self.room - (count - leaving.groups * self.factor)
        padding = torch.cat([memory.padding_mask, leaving.padding_mask], dim=1)
        memory.padding_mask = torch.cat([padding.gather(1, moved), filled], dim=1)
        if memory.k is not None:
            _, new_k, new_v = project(leaving.new, None)
            source = source[:, None, :, None]  # the same for all heads
            memory.k = torch.cat([k, new_k], dim=2).take_along_dim(source, dim=2)
            memory.v = torch.cat([v, new_v], dim=2).take_along_dim(source, dim=2)
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
        length = queue.shape[1]
        first = (length - count + offsets).clamp_max(length - 1)  # [B, most · factor]
        old = queue.take_along_dim(first[..., None], dim=1)
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
