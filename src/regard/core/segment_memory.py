"""Segment memory (Transformer-XL, Dai et al. 2019): what layers were given in the segments
before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.core.kv_cache import LayerCache


@dataclass
class SegmentMemory:
    """The inputs of an attention at the positions before this segment.

    Keys and values are computed from it with the current weights; gradients stop here.
    The memory has a fixed length; `padding_mask` says which of its positions are filled, and, while
    a segment is read, which of the segment's positions are tokens. In decoding, where weights do
    not change, keys and values may be kept too.
    """

    x: Tensor  # [B, M, D]
    padding_mask: Tensor  # [B, M] bool
    k: Tensor | None = None  # [B, G, M, K]
    v: Tensor | None = None  # [B, G, M, E]

    @property
    def rows(self) -> int:
        return len(self.x)

    @property
    def stored_rows(self) -> int:
        return len(self.x)

    def remember(self, x: Tensor) -> None:
        """Takes up x [B, T, D]; the last M positions of all are kept."""
        length = self.x.shape[1]
        everything = torch.cat([self.x.to(x.dtype), x], dim=1)
        # SG(·) of the paper: no gradient. A copy, because a view would hold on to `everything`.
        self.x = everything[:, -length:].detach().to(self.x.dtype, copy=True)
        self.padding_mask = self.padding_mask[:, -length:]

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values are of all these positions already."""
        return k, v

    def select(self, rows: Tensor) -> None:
        self.x = self.x.index_select(0, rows)
        self.padding_mask = self.padding_mask.index_select(0, rows)
        if self.k is not None and self.v is not None:
            self.k = self.k.index_select(0, rows)
            self.v = self.v.index_select(0, rows)


def has_segment_memory(layers: Sequence[LayerCache]) -> bool:
    """Whether the layers of a state carry a segment memory: all of them, or none."""
    return isinstance(layers[0].self_attention, SegmentMemory)


def segment_memories(layers: Sequence[LayerCache]) -> list[SegmentMemory]:
    """The segment memories among the caches of a state."""
    caches = [layer.self_attention for layer in layers]
    return [cache for cache in caches if isinstance(cache, SegmentMemory)]


def with_segment(layers: Sequence[LayerCache], padding_mask: Tensor) -> Tensor:
    """The padding mask [B, M + T] of the memories and of a segment [B, T] that is about to be read;
    the memories take it up."""
    memories = segment_memories(layers)
    joined = torch.cat([memories[0].padding_mask, padding_mask], dim=1)
    for memory in memories:
        memory.padding_mask = joined
    return joined
