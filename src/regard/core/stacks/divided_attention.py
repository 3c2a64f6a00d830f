"""Divided space–time attention (Bertasius et al. 2021, TimeSformer): patches, then frames, are rows
of the batch."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.core.attention import Attention
from regard.core.block import Block, LayerInputs
from regard.core.caches.kv_cache import NO_CACHE, Cache
from regard.core.context import LayerContext
from regard.core.linear import Linear
from regard.core.masks.attention_mask import AttentionMask, ScoreBias
from regard.core.masks.mask import DocumentMask, MaskPattern, padding_pattern
from regard.core.masks.sparse_masks import GlobalMask
from regard.core.positions.position_terms import PositionTerms
from regard.core.probe import AttentionCall, HasHeads
from regard.core.projection import Memory, Projection
from regard.core.residual import PreNorm


class ClipRows(NamedTuple):
    """How the positions of a clip, `extras` and then patch after patch in all `frames`, become rows
    of a batch: a patch at all times, or, in `space`, a frame with the extras before it."""

    frames: int
    patches: int
    extras: int
    space: bool

    def partition(self, x: Tensor) -> Tensor:
        """[B, extras + patches · frames, D] → [B·patches, frames, D] or
        [B·frames, extras + patches, D]"""
        grid = x[:, self.extras :].unflatten(1, (self.patches, self.frames))
        if not self.space:
            return grid.flatten(0, 1)
        extras = x[:, None, : self.extras].expand(-1, self.frames, -1, -1)
        return torch.cat([extras, grid.transpose(1, 2)], dim=2).flatten(0, 1)

    def merge(self, rows: Tensor) -> Tensor:
        """The inverse of `partition`; an extra is the mean over frames, or 0 after attention over
        time, which it has no part in."""
        if not self.space:
            grid = rows.unflatten(0, (-1, self.patches))  # [B, patches, frames, D]
            extras = grid.new_zeros(len(grid), self.extras, grid.shape[-1])
        else:
            grid = rows.unflatten(0, (-1, self.frames)).transpose(1, 2)
            extras = grid[:, : self.extras].mean(dim=2)
            grid = grid[:, self.extras :]
        return torch.cat([extras, grid.flatten(1, 2)], dim=1)

    def merge_weights(self, weights: Tensor) -> Tensor:
        """Weights inside the rows [B·rows, H, n, n] as those of clips [B, H, N, N]."""
        # Its outputs are a mean over frames: so an extra attends to each frame by a share.
        keys = weights.transpose(1, 2).flatten(2)  # [B·rows, n, H·n]
        count = self.frames if self.space else self.patches
        place = torch.arange(count, device=weights.device).repeat(len(weights) // count)
        inside = keys.unflatten(2, (weights.shape[1], -1))  # [B·rows, queries, H, keys]
        spread = self._keys(inside, place)  # [B·rows, queries, H, N]
        merged = self.merge(spread.flatten(2))  # [B, N, H·N]
        return merged.unflatten(2, (weights.shape[1], -1)).transpose(1, 2)

    def _keys(self, inside: Tensor, place: Tensor) -> Tensor:
        """The keys of each row [rows, …, n] at their places in the clip: [rows, …, N]."""
        numbers = torch.arange(self.patches * self.frames, device=inside.device)
        grid = numbers.view(self.patches, self.frames) + self.extras
        places = grid.T[place] if self.space else grid[place]  # [rows, patches or frames]
        if self.space:
            extras = torch.arange(self.extras, device=inside.device).expand(len(places), -1)
            places = torch.cat([extras, places], dim=1)
        zeros = inside.new_zeros(*inside.shape[:-1], self.extras + len(numbers))
        return zeros.scatter(-1, places[:, None, None].expand_as(inside), inside)

    def pattern(self, device: torch.device) -> MaskPattern:
        """Which positions of a clip see each other: in space, extras see all and are seen."""
        numbers = torch.arange(self.patches * self.frames, device=device)
        row = numbers % self.frames if self.space else numbers // self.frames
        extras = torch.zeros(self.extras, dtype=torch.long, device=device)
        rows = DocumentMask(torch.cat([extras, row + 1])[None])
        return rows | GlobalMask(self.extras) if self.space else rows

    def whole(self, call: AttentionCall) -> AttentionCall:
        """A call whose rows are patches or frames, as one of clips, for those who look."""
        q, k, v = (
            self.merge(x.transpose(1, 2).flatten(2)).unflatten(2, (x.shape[1], -1)).transpose(1, 2)
            for x in (call.q, call.k, call.v)
        )
        places = torch.arange(q.shape[2], device=q.device)
        mask = AttentionMask(self.pattern(q.device), places, places, len(q))
        return AttentionCall(_WholeWeights(self, call), q, k, v, mask, in_rows=call)


class _WholeWeights(NamedTuple):
    """The weights of an attention whose rows are parts of a clip."""

    rows: ClipRows
    call: AttentionCall

    def weights(
        self,
        q: Tensor,
        k: Tensor,
        mask: AttentionMask,
        rows: Tensor,
        heads: Tensor | None = None,
        bias: ScoreBias | None = None,
    ) -> Tensor:
        return self.rows.merge_weights(self.call.weights(None, heads))[:, :, rows]


class RowsAttention(Attention):
    """Multi-head attention inside each frame of a clip or, with a linear map behind it, inside the
    times of each patch."""

    def __init__(
        self,
        project: Projection,
        mixer: nn.Module,
        output: Linear,
        rows: ClipRows | None = None,
        dense: Linear | None = None,
    ) -> None:
        super().__init__(project, mixer, output)
        self.rows = rows
        self.dense = dense

    def rows_of(self, context: LayerContext) -> ClipRows:
        """How the positions of this call become rows."""
        assert self.rows is not None, "it is that of a clip, unless a subclass knows better"
        return self.rows

    def forward(
        self,
        x: Tensor,
        mask: AttentionMask,
        positions: PositionTerms | None,
        context: LayerContext,
        memory: Memory = None,
        cache: Cache = NO_CACHE,
    ) -> Tensor:
        """x [B, N, D] → same. The mask of the stack is of whole inputs; a bias [B, H, n, n] of its
        positions is that of all rows of an input."""
        rows = self.rows_of(context)
        parts = rows.partition(x)  # [B·rows, n, D]
        places = torch.arange(parts.shape[1], device=x.device)
        tokens = context.padding_mask
        if tokens is not None:
            tokens = rows.partition(tokens[..., None])[..., 0]
        inside = AttentionMask(padding_pattern(tokens), places, places, len(parts))
        bias = None if positions is None else positions.bias
        if bias is not None and len(x) > 1:
            bias = ScoreBias(bias.tensor(inside).repeat_interleave(len(parts) // len(x), dim=0))
        terms = PositionTerms(places, bias=bias)
        out = super().forward(parts, inside, terms, context._replace(rows=rows))
        if self.dense is not None:
            out = self.dense(out)
        return rows.merge(out)


class DividedBlock(Block):
    """A block that attends over time before it attends over space."""

    def __init__(self, time: RowsAttention, time_residual: PreNorm, **parts: Any) -> None:
        super().__init__(**parts)
        self.time = time
        self.time_residual = time_residual

    def forward(self, x: Tensor, inputs: LayerInputs, context: LayerContext) -> Tensor:
        x = self.time_residual(x, lambda y: self.attend_over_time(y, inputs, context))
        return super().forward(x, inputs, context)

    def attend_over_time(self, x: Tensor, inputs: LayerInputs, context: LayerContext) -> Tensor:
        context = context.scope("time")
        x = context.probe.through("input", x)
        attended = self.time(x, inputs.mask, inputs.positions, context)
        return context.probe.through("output", self.scaled("time", attended))

    def attentions(self) -> dict[str, HasHeads]:
        return {"time": self.time, **super().attentions()}
