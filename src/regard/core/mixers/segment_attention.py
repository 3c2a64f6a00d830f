"""Segment-level recurrence (Transformer-XL, Dai et al. 2019): attention over a segment and the
memory of the segments before it."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from regard.core.attention import Attention
from regard.core.caches.kv_cache import Cache, CacheRoom
from regard.core.caches.segment_memory import CompressiveMemory, SegmentMemory
from regard.core.context import LayerContext
from regard.core.linear import Linear
from regard.core.masks.attention_mask import AttentionMask
from regard.core.mixers.scaled_dot_product_attention import SoftmaxAttention
from regard.core.positions.position_terms import NO_POSITION, LayerPosition, PositionTerms
from regard.core.projection import Memory, Projection


class SegmentAttention(Attention):
    """Attention over a segment and the memory of the segments before it."""

    def __init__(
        self,
        project: Projection,
        mixer: nn.Module,
        output: Linear,
        position: LayerPosition = NO_POSITION,
        compression: CompressiveMemory | None = None,
    ) -> None:
        super().__init__(project, mixer, output, position)
        self.compression = compression

    def attend(
        self,
        x: Tensor,
        mask: AttentionMask,
        positions: PositionTerms | None,
        context: LayerContext,
        memory: Memory,
        cache: Cache,
    ) -> Tensor:
        """x [B, T, D] attends to the memory [B, M, D] and to itself: [B, H, T, E]."""
        if not isinstance(cache, SegmentMemory):
            return super().attend(x, mask, positions, context, memory, cache)
        q, k, v = self._project_with_memory(x, cache)  # [B, H, T, K], [B, G, M + T, ·]
        # The memory takes up x; what leaves it may be compressed.
        if self.compression is None:
            cache.remember(x)
        else:
            leaving = self.compression.remember(cache, x, k, v, self.project)
            if self.training and context.losses is not None:
                scale = cast(SoftmaxAttention, self.mixer).scale
                loss = self.compression.loss(leaving, q, self.project, scale)
                context.add_loss("compression", loss)
        # bias [B or 1, H, T, M + T]
        q, bias = self.position.scores(q, k, mask, positions, self.project)
        context.probe.attention(self.mixer, (q, k, v), mask, bias)
        return self.mixer(q, k, v, mask, bias, cache)

    def _project_with_memory(
        self, x: Tensor, segments: SegmentMemory
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries of x, and keys and values of the segment memory and x."""
        if segments.k is None or segments.v is None:
            everything = torch.cat([segments.x.to(x.dtype), x], dim=1)  # [B, M + T, D]
            q, k, v = self.project(everything, None)
            # Queries of the segment, keys and values of the memory too.
            return q[:, :, -x.shape[1] :], k, v
        q, k, v = self.project(x, None)
        return q, torch.cat([segments.k, k], dim=2), torch.cat([segments.v, v], dim=2)

    def start_segments(self, x: Tensor) -> SegmentMemory:
        return SegmentMemory(x, torch.zeros(x.shape[:2], dtype=torch.bool, device=x.device))

    def start(self, room: CacheRoom) -> Cache:
        if self.compression is None:
            return super().start(room)
        rows = room.rows
        length = self.compression.room
        part = self.project
        memory = self.start_segments(room.like.new_zeros(rows, length, self.compression.d_model))
        memory.k = room.like.new_zeros(rows, part.groups, length, part.d_k)
        memory.v = room.like.new_zeros(rows, part.groups, length, part.d_v)
        return memory
