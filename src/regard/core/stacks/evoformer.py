"""The Evoformer (Jumper et al. 2021, AlphaFold 2): an alignment of sequences and what is known of
each pair of its residues, each updated from the other.

Shapes: B alignments of S sequences and R residues; D numbers a position, C a pair, H heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.core.block import Block, LayerInputs, run_checkpointed
from regard.core.caches.kv_cache import Cache
from regard.core.context import Context, LayerContext
from regard.core.feedforward import PositionWise
from regard.core.linear import Linear, dimensions, normal
from regard.core.masks.attention_mask import AttentionMask, ScoreBias
from regard.core.masks.mask import FullMask
from regard.core.norm import Norm
from regard.core.positions.position_terms import PositionTerms
from regard.core.probe import NO_PROBE, HasHeads
from regard.core.projection import Memory, Projection, split_heads
from regard.core.residual import PreNorm
from regard.core.stack import Stack, StackParts
from regard.core.stacks.divided_attention import ClipRows, RowsAttention

# ------------------------------------------------------------------ attention


class GatedAttention(RowsAttention):
    """Gated attention along the rows of a grid or, `across` them, along its columns: what a head
    finds counts as much as a sigmoid of the query says (Algorithms 7, 8, 13 and 14)."""

    def __init__(
        self, project: Projection, mixer: nn.Module, output: Linear, gate: Linear, *, across: bool
    ) -> None:
        super().__init__(project, mixer, output)
        self.gate = gate
        self.across = across

    def rows_of(self, context: LayerContext) -> ClipRows:
        assert context.grid is not None, "its positions are those of a grid"
        rows, columns = context.grid
        return ClipRows(columns, rows, 0, space=self.across)

    def attend(
        self,
        x: Tensor,
        mask: AttentionMask,
        positions: PositionTerms | None,
        context: LayerContext,
        memory: Memory,
        cache: Cache,
    ) -> Tensor:
        mixed = super().attend(x, mask, positions, context, memory, cache)  # [rows, H, n, E]
        return mixed * split_heads(torch.sigmoid(self.gate(x)), self.heads)

    def keep(self, heads: Tensor) -> None:
        super().keep(heads)
        self.gate.keep_outputs([dimensions(heads, self.project.d_v)])


class PairBias(nn.Module):
    """What pairs of residues add to the scores of attention: [B, R, R, C] → [B, H, R, R]."""

    def __init__(self, width: int, heads: int, norm: Norm | None) -> None:
        super().__init__()
        self.norm = norm
        self.project = Linear(width, heads, bias=False)

    def forward(self, pairs: Tensor) -> Tensor:
        if self.norm is not None:
            pairs = self.norm(pairs)
        return self.project(pairs).movedim(-1, 1)


class TriangleAttention(nn.Module):
    """Triangle attention: pair ij attends to the pairs ik (around the starting node) or, `ending`,
    to the pairs kj; the third edge of the triangle is a bias (Algorithms 13 and 14)."""

    def __init__(self, attention: GatedAttention, bias: PairBias) -> None:
        super().__init__()
        self.attention = attention
        self.bias = bias

    def forward(self, pairs: Tensor, context: LayerContext) -> Tensor:
        """[B, R, R, C] → same"""
        bias = self.bias(pairs)  # [B, H, R, R]
        if self.attention.across:
            bias = bias.mT
        places = torch.arange(pairs.shape[1], device=pairs.device)
        terms = PositionTerms(places, bias=ScoreBias(bias))
        full = AttentionMask(FullMask(), places, places)
        return self.attention(pairs.flatten(1, 2), full, terms, context).view_as(pairs)


# ------------------------------------------------------------------ updates of pairs


class TriangleMultiplication(nn.Module):
    """Triangle multiplicative update: pair ij from the pairs ik and jk (`outgoing` edges), or from
    ki and kj (Algorithms 11 and 12)."""

    def __init__(self, width: int, hidden: int, norm: Norm, *, outgoing: bool) -> None:
        super().__init__()
        parts = (hidden, hidden)
        self.edges = Linear(width, 2 * hidden, parts=parts)
        self.edge_gates = Linear(width, 2 * hidden, parts=parts)
        self.norm = norm
        self.output = Linear(hidden, width)
        self.gate = Linear(width, width)
        self.outgoing = outgoing

    def forward(self, pairs: Tensor, is_pair: Tensor | None) -> Tensor:
        """[B, R, R, C] → same; `is_pair` [B, R, R] is True where both are residues."""
        edges = torch.sigmoid(self.edge_gates(pairs)) * self.edges(pairs)
        if is_pair is not None:
            edges = edges * is_pair[..., None]
        left, right = edges.chunk(2, dim=-1)
        triangles = "bikc,bjkc->bijc" if self.outgoing else "bkic,bkjc->bijc"
        joined = torch.einsum(triangles, left, right)
        return torch.sigmoid(self.gate(pairs)) * self.output(self.norm(joined))


class OuterProductMean(nn.Module):
    """Outer product mean: of a pair of residues, the products of all numbers of one with all of the
    other, averaged over the sequences that have both (Algorithm 10)."""

    def __init__(self, d_model: int, hidden: int, width: int, norm: Norm) -> None:
        super().__init__()
        self.norm = norm
        self.project = Linear(d_model, 2 * hidden, parts=(hidden, hidden))
        self.output = Linear(hidden**2, width)

    def forward(self, x: Tensor, is_token: Tensor | None) -> Tensor:
        """x [B, S, R, D] → [B, R, R, C]"""
        projected = self.project(self.norm(x))
        count: Any = x.shape[1]
        if is_token is not None:
            shown = is_token.to(x.dtype)
            projected = projected * shown[..., None]
            count = torch.einsum("bsi,bsj->bij", shown, shown).clamp_min(1)[..., None]
        left, right = projected.chunk(2, dim=-1)
        products = torch.einsum("bsic,bsjd->bijcd", left, right).flatten(3)
        return self.output(products / count)


class ProductAndDifference(OuterProductMean):
    """ESMFold's update of pairs: the product and the difference of two residues of the first
    sequence, number by number (Lin et al. 2023)."""

    def __init__(self, d_model: int, hidden: int, width: int, norm: Norm) -> None:
        super().__init__(d_model, hidden, width, norm)
        self.output = Linear(2 * hidden, width)

    def forward(self, x: Tensor, is_token: Tensor | None) -> Tensor:
        row, column = self.project(self.norm(x[:, 0])).chunk(2, dim=-1)  # [B, R, hidden]
        product = row[:, None] * column[:, :, None]
        difference = row[:, None] - column[:, :, None]
        return self.output(torch.cat([product, difference], dim=-1))


class PairUpdates(nn.Module):
    """The half of a block that updates pairs: from the alignment, by triangle multiplications, by
    triangle attentions, and position-wise."""

    def __init__(
        self,
        outer: OuterProductMean,
        multiplications: Sequence[TriangleMultiplication],
        attentions: Sequence[TriangleAttention],
        feedforward: PositionWise,
        residuals: Sequence[PreNorm],
    ) -> None:
        super().__init__()
        self.outer = outer
        self.multiplications = nn.ModuleList(multiplications)
        self.attentions = nn.ModuleList(attentions)
        self.feedforward = feedforward
        self.residuals = nn.ModuleList(residuals)

    def forward(self, x: Tensor, pairs: Tensor, context: LayerContext) -> Tensor:
        """x [B, S, R, D] and pairs [B, R, R, C] → new pairs; nobody looks inside."""
        is_token = is_pair = is_place = None
        if context.padding_mask is not None:
            is_token = context.padding_mask.unflatten(1, x.shape[1:3])  # [B, S, R]
            is_residue = is_token.any(dim=1)
            is_pair = is_residue[:, None] & is_residue[:, :, None]
            is_place = is_pair.flatten(1)
        grid = (pairs.shape[1], pairs.shape[2])
        inner = LayerContext(NO_PROBE, context.losses, padding_mask=is_place, grid=grid)
        residuals = iter([cast(PreNorm, part) for part in self.residuals])
        pairs = pairs + self.outer(x, is_token)
        for multiply in self.multiplications:
            pairs = next(residuals)(pairs, lambda z, update=multiply: update(z, is_pair))
        for attend in self.attentions:
            pairs = next(residuals)(pairs, lambda z, update=attend: update(z, inner))
        return next(residuals)(pairs, lambda z: self.feedforward(z, inner))


# ------------------------------------------------------------------ block and stack


class Streams(NamedTuple):
    """What goes through an Evoformer: positions [B, S·R, D] and pairs [B, R, R, C]."""

    x: Tensor
    pairs: Tensor


class EvoformerBlock(Block):
    """A block over an alignment: attention along each sequence, biased by the pairs, then along
    each column, feed-forward, and the updates of the pairs (Algorithm 6)."""

    meets_padding = True
    mixes_positions = True

    def __init__(
        self,
        bias: PairBias,
        columns: GatedAttention | None,
        column_residual: PreNorm | None,
        updates: PairUpdates | None,
        **parts: Any,
    ) -> None:
        super().__init__(**parts)
        self.bias = bias
        self.columns = columns
        self.column_residual = column_residual
        self.updates = updates

    def attentions(self) -> dict[str, HasHeads]:
        columns = {} if self.columns is None else {"columns": self.columns}
        return super().attentions() | columns

    def forward(  # type: ignore[override]
        self, streams: Streams, inputs: LayerInputs, context: LayerContext
    ) -> Streams:
        x, pairs = streams
        bias = ScoreBias(self.bias(pairs))
        biased = inputs._replace(positions=inputs.positions._replace(bias=bias))
        residuals = tuple(self.residual.each)
        x = residuals[0](x, lambda y: self.self_attention(y, biased, context))
        if self.column_residual is not None:
            x = self.column_residual(x, lambda y: self.attend_to_columns(y, inputs, context))
        x = residuals[1](x, lambda y: self.feed_forward(y, context))
        if self.updates is not None:
            assert context.grid is not None, "its positions are those of an alignment"
            pairs = self.updates(x.unflatten(1, context.grid), pairs, context)
        return Streams(x, pairs)

    def attend_to_columns(self, x: Tensor, inputs: LayerInputs, context: LayerContext) -> Tensor:
        assert self.columns is not None
        context = context.scope("columns")
        x = context.probe.through("input", x)
        attended = self.columns(x, inputs.mask, inputs.positions, context)
        return context.probe.through("output", self.scaled("self", attended))


class RelativePairs(nn.Module):
    """The first pairs: a vector for each distance along the chain, up to `reach` residues
    (Algorithm 4)."""

    def __init__(self, width: int, reach: int) -> None:
        super().__init__()
        self.reach = reach
        self.weight = nn.Parameter(normal(2 * reach + 1, width))

    def forward(self, residues: int) -> Tensor:
        """[R, R, C]"""
        places = torch.arange(residues, device=self.weight.device)
        distance = (places - places[:, None]).clamp(-self.reach, self.reach)
        return functional.embedding(distance + self.reach, self.weight)


class EvoformerStack(Stack):
    """A stack of Evoformer blocks. It gives the alignment; a probe finds the pairs at `pairs`."""

    def __init__(self, parts: StackParts, first: RelativePairs) -> None:
        super().__init__(parts)
        self.first = first

    def apply_blocks(self, x: Tensor, inputs: Sequence[LayerInputs], context: Context) -> Tensor:
        assert context.grid is not None, "the front end knows the columns of an alignment"
        pairs = self.first(context.grid[1]).expand(len(x), -1, -1, -1)
        streams = Streams(x, pairs.to(x.dtype))
        checkpointed = self.activation_checkpointing and self.training
        for number, each in enumerate(inputs):
            layer = context.layer(number)
            inner = layer._replace(padding_mask=each.padding_mask)
            block: Any = self.block(number)
            if checkpointed:
                streams = cast(Any, run_checkpointed(block, streams, each, inner))
            else:
                streams = block(streams, each, inner)
            pairs = layer.probe.through("pairs", streams.pairs)
            streams = Streams(context.layer_done(layer, streams.x), pairs)
        return streams.x
