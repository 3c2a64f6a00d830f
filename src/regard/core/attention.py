"""Multi-head attention: project → positions → cache → kernel → output (Section 3.2.2)."""

from __future__ import annotations

from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from regard.core.caches.kv_cache import NO_CACHE, Cache, CacheRoom, CrossKV, start_kv_cache
from regard.core.context import LayerContext
from regard.core.linear import Linear, dimensions
from regard.core.masks.attention_mask import AttentionMask, ScoreBias
from regard.core.positions.position_terms import NO_POSITION, LayerPosition, PositionTerms
from regard.core.projection import CrossProjection, Memory, Projection, merge_heads


# Shapes, here and everywhere: B sequences, H query heads, G key heads (G < H: grouped-query
# attention), T queries, S keys, K the width of queries and keys, E of values, D of the model.
class Mixer(nn.Module):
    """Abstract: an attention kernel as a part: softmax, linear, Linformer, LSH, chunked, or one of
    a user's."""

    def forward(
        self,
        q: Tensor,  # [B, H, T, K]
        k: Tensor,  # [B, G, S, K]
        v: Tensor,  # [B, G, S, E]
        mask: AttentionMask,
        bias: ScoreBias | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """[B, H, T, E]"""
        raise NotImplementedError

    def weights(
        self,
        q: Tensor,
        k: Tensor,
        mask: AttentionMask,
        rows: Tensor,
        heads: Tensor | None = None,
        bias: ScoreBias | None = None,
    ) -> Tensor:
        """The attention weights of some query rows and heads [B, heads, rows, S]: the output for
        values that are one-hot positions. Kernels that can compute less do."""
        one_hot = torch.eye(k.shape[2], dtype=q.dtype, device=q.device)
        weights = self(q, k, one_hot.expand(*k.shape[:2], -1, -1), mask, bias)[:, :, rows]
        return weights if heads is None else weights[:, heads]

    def prepare(self, mask: AttentionMask, bias: ScoreBias | None) -> None:
        """Makes what all layers will ask of a mask before the first of them does."""

    def keep(self, heads: Tensor) -> None:
        """Prunes what it has of all but these heads."""

    def start(self, room: CacheRoom, shape: tuple[int, int, int]) -> Cache:
        """An empty cache; `shape` is (G, K, E)."""
        return start_kv_cache(room, shape)


class Attention(nn.Module):
    """Self- or cross-attention: the projection part decides."""

    mixer: Mixer

    def __init__(
        self,
        project: Projection,
        mixer: nn.Module,
        output: Linear,
        position: LayerPosition = NO_POSITION,
    ) -> None:
        super().__init__()
        self.project = project
        self.position = position
        self.mixer = cast(Mixer, mixer)
        self.output = output

    def forward(
        self,
        x: Tensor,
        mask: AttentionMask,
        positions: PositionTerms | None,
        context: LayerContext,
        memory: Memory = None,
        cache: Cache = NO_CACHE,
    ) -> Tensor:
        """x [B, T, D] attends to itself and its cache, or to a `memory`: [B, T, D]."""
        shape = x.shape  # [B, T, D]; [B·W, 1, D] in a beam search
        x = cache.fold(x)  # beams become queries: [B, W, D]
        out = self.attend(x, mask, positions, context, memory, cache)  # [B, H, T, E]
        out = context.probe.through("mixed", out)
        return self.output(merge_heads(out)).view(shape)  # [B, T, D]

    def attend(
        self,
        x: Tensor,
        mask: AttentionMask,
        positions: PositionTerms | None,
        context: LayerContext,
        memory: Memory,
        cache: Cache,
    ) -> Tensor:
        """What each head finds: x [B, T, D] → [B, H, T, E]."""
        q, k, v = self.project(x, memory)  # [B, H, T, K], [B, G, S, K], [B, G, S, E]
        # Before the cache: a key is rotated once, by its own position.
        q, k = self.position.turn(q, k, positions, self.project)
        k, v = cache.extend(k, v)  # S is now the length of all tokens so far
        # bias [B or 1, H, T, S]
        q, bias = self.position.scores(q, k, mask, positions, self.project)
        context.probe.attention(self.mixer, (q, k, v), mask, bias, rows=context.rows)
        out = self.mixer(q, k, v, mask, bias, cache)
        weigh = partial(self.mixer.weights, q, k, mask, bias=bias)
        return self.position.add_to_values(out, weigh, mask)

    # ------------------------------------------------------------------ caches

    def start(self, room: CacheRoom) -> Cache:
        """An empty cache."""
        part = self.project
        return self.mixer.start(room, (part.groups, part.d_k, part.d_v))

    def start_segments(self, x: Tensor) -> Cache:
        """An empty memory of segments, whose inputs are still zeros x [B, M, D]."""
        raise AssertionError("this attention carries nothing on")

    def cross_keys_and_values(self, memory: Tensor) -> CrossKV:
        """The keys and values of the encoder memory, for all steps that will attend to it."""
        cached = cast(CrossProjection, self.project).keys_and_values(memory)
        # Contiguous: each head's positions side by side, as every step will read them.
        return CrossKV(cached.k.contiguous(), cached.v.contiguous())

    # ------------------------------------------------------------------ heads

    @property
    def heads(self) -> int:
        return self.project.heads

    @property
    def out_weight(self) -> Tensor:
        """The weight of the output projection W^O: [D, H·E]."""
        return self.output.weight

    def keep(self, heads: Tensor) -> None:
        """Head pruning: removes all but these heads, as if the outputs of the others were zero."""
        self.project.keep(heads)
        # W^O reads E numbers of each head.
        self.output.keep_inputs(dimensions(heads, self.project.d_v))
        self.position.keep(heads)
        self.mixer.keep(heads)
