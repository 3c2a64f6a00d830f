"""Multi-head attention: project → positions → cache → kernel → output (Section 3.2.2)."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor, nn

from regard.core.attention_mask import AttentionMask, ScoreBias
from regard.core.beams import fold_beams
from regard.core.context import LayerContext
from regard.core.kv_cache import Cache, CrossKV
from regard.core.linear import Linear, dimensions
from regard.core.position_terms import PositionTerms
from regard.core.projection import CrossProjection, Projection, SharedProjection, merge_heads
from regard.core.relative_position import LayerPosition, PositionProjection, RelativeSinusoids
from regard.core.rotary import Rope
from regard.core.scaled_dot_product_attention import SoftmaxAttention


# Shapes, here and everywhere: B sequences, H query heads, G key heads (G < H: grouped-query
# attention), T queries, S keys, K the width of queries and keys, E of values, D of the model.
class Mixer(Protocol):
    """An attention kernel as a part: softmax, linear, Linformer, LSH, chunked, or one of a
    user's."""

    def __call__(
        self,
        q: Tensor,  # [B, H, T, K]
        k: Tensor,  # [B, G, S, K]
        v: Tensor,  # [B, G, S, E]
        mask: AttentionMask,
        bias: ScoreBias | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """[B, H, T, E]"""
        ...

    def weights(
        self,
        q: Tensor,
        k: Tensor,
        mask: AttentionMask,
        rows: Tensor,
        heads: Tensor | None = None,
        bias: ScoreBias | None = None,
    ) -> Tensor:
        """The attention weights of some query rows and heads: [B, heads, rows, S]."""
        ...

    def start(
        self,
        like: Tensor,
        rows: int,
        capacity: int,
        shape: tuple[int, int, int],
        max_lookback: int | None,
    ) -> Cache:
        """An empty cache for `rows` sequences of at most `capacity` tokens; `shape` is
        (G, K, E)."""
        ...


class Attention(nn.Module):
    """Self- or cross-attention: the projection part decides."""

    def __init__(
        self,
        project: Projection,
        mixer: nn.Module,
        output: Linear,
        rope: Rope | None = None,
        relative: LayerPosition | None = None,
        position_project: PositionProjection | None = None,
    ) -> None:
        super().__init__()
        self.project = project
        self.rope = rope
        self.mixer = mixer
        self.output = output
        self.relative = relative
        # Projection of distance vectors; None: that of the content.
        self.position_project = position_project

    def forward(
        self,
        x: Tensor,
        mask: AttentionMask,
        positions: PositionTerms | None,
        context: LayerContext,
        memory: Tensor | CrossKV | None = None,
    ) -> Tensor:
        """x [B, T, D] attends to itself and its cache, or to a `memory`: [B, T, D]."""
        shape = x.shape  # [B, T, D]; [B·W, 1, D] in a beam search
        # Cross-attention has no growing cache: its keys and values are computed once (`CrossKV`).
        cache = None if memory is not None else context.self_cache
        x = fold_beams(x, _stored_rows(x, cache, memory))  # beams become queries: [B, W, D]
        q, k, v = self.project(x, memory)  # [B, H, T, K], [B, G, S, K], [B, G, S, E]
        # Before the cache: a key is rotated once, by its own position.
        q, k = self._rotate(q, k, positions)
        if cache is not None:
            k, v = cache.extend(k, v)  # S is now the length of all tokens so far
        q, bias = self.score_bias(q, k, mask, positions)  # bias [B or 1, H, T, S]
        context.probe.attention(self.mixer, (q, k, v), mask, bias)  # type: ignore[arg-type]
        out = self.mixer(q, k, v, mask, bias, cache)  # [B, H, T, E]
        out = self.after_kernel(x, out, mask, context)
        out = context.probe.through("mixed", out)
        return self.output(merge_heads(out)).view(shape)  # [B, T, D]

    def _rotate(
        self, q: Tensor, k: Tensor, positions: PositionTerms | None
    ) -> tuple[Tensor, Tensor]:
        """Rotary positions, if there are any."""
        if self.rope is None or positions is None or positions.angles is None:
            return q, k
        return self.rope.rotate(q, positions.angles), self.rope.rotate(k, positions.angles)

    def score_bias(
        self, q: Tensor, k: Tensor, mask: AttentionMask, positions: PositionTerms | None
    ) -> tuple[Tensor, ScoreBias | None]:
        """The queries to attend with, and what positions add to the scores of this layer."""
        if self.relative is not None:
            q, scores = self.relative(q, mask.queries, mask.keys)  # [B, H, T, S]
            # Kernels scale q·k and then add the bias as it is: so it is scaled here.
            return q, ScoreBias(scores * self._scale)
        if positions is None:
            return q, None
        if positions.relative is not None:
            scores = positions.relative.scores(q, k, self.position_project or self.project)
            return q, ScoreBias(scores * self._scale)
        return q, positions.bias

    @property
    def _scale(self) -> float:
        assert isinstance(self.mixer, SoftmaxAttention), "other kernels have no scores to add to"
        return self.mixer.scale

    def after_kernel(
        self, x: Tensor, out: Tensor, mask: AttentionMask, context: LayerContext
    ) -> Tensor:
        """Nothing; variants correct some rows of `out` [B, H, T, E] here (global tokens)."""
        return out

    # ------------------------------------------------------------------ caches

    def start(self, rows: int, capacity: int, max_lookback: int | None, like: Tensor) -> Cache:
        """An empty cache for `rows` sequences of at most `capacity` tokens, none of which attends
        farther back than `max_lookback`, in the dtype and on the device of `like`."""
        shape = (self.project.groups, self.project.d_k, self.project.d_v)
        return self.mixer.start(like, rows, capacity, shape, max_lookback)  # type: ignore[operator]

    def cross_keys_and_values(self, memory: Tensor) -> CrossKV:
        """The keys and values of the encoder memory, for all steps that will attend to it."""
        assert isinstance(self.project, CrossProjection), "self-attention has no memory"
        cached = self.project.keys_and_values(memory)
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
        assert not isinstance(self.project, SharedProjection), "hashes are drawn for each head"
        self.project.keep(heads)
        # W^O reads E numbers of each head.
        self.output.keep_inputs(dimensions(heads, self.project.d_v))
        if isinstance(self.relative, RelativeSinusoids):
            self.relative.keep(heads)
        if self.position_project is not None:
            self.position_project.keep(heads)


def _stored_rows(x: Tensor, cache: Cache | None, memory: Tensor | CrossKV | None) -> int:
    """The number of rows of keys: fewer than those of x if beams share them."""
    if isinstance(memory, CrossKV):
        return memory.k.shape[0]
    if cache is not None:
        return cache.stored_rows
    return x.shape[0]  # not len(), which exporters take for a number that never changes
