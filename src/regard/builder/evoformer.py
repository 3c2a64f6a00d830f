"""Blocks of the Evoformer from specs."""

from __future__ import annotations

from typing import Any

from regard import spec
from regard.builder.attention_layers import build_gated_attention
from regard.builder.norms import build_norm
from regard.core import feedforward, residual
from regard.core.stacks import evoformer

_OUTER = {
    "outer_product_mean": evoformer.OuterProductMean,
    "product_and_difference": evoformer.ProductAndDifference,
}
_UPDATES = 5  # of pairs, behind that from the alignment: one norm for each


def build_evoformer_block(
    part: spec.Block,
    scheme: spec.Evoformer,
    d_model: int,
    pair_feedforward: feedforward.PositionWise | None,
    **parts: Any,
) -> evoformer.EvoformerBlock:
    """`pair_feedforward` is None in a block that updates no pairs."""
    columns = None
    column_residual = None
    if scheme.column_attention:
        columns = build_gated_attention(part.attention, d_model, across=True)
        column_residual = _residual(part, d_model)
    updates = None
    if pair_feedforward is not None:
        updates = _pair_updates(part, scheme, d_model, pair_feedforward)
    norm = build_norm(part.norm, scheme.width)
    bias = evoformer.PairBias(scheme.width, part.attention.heads, norm)
    return evoformer.EvoformerBlock(bias, columns, column_residual, updates, **parts)


def _residual(part: spec.Block, width: int) -> residual.PreNorm:
    return residual.PreNorm(build_norm(part.norm, width), part.dropout)


def _pair_updates(
    part: spec.Block,
    scheme: spec.Evoformer,
    d_model: int,
    pair_feedforward: feedforward.PositionWise,
) -> evoformer.PairUpdates:
    width = scheme.width
    heads = scheme.attention.heads
    return evoformer.PairUpdates(
        _OUTER[scheme.joined](d_model, scheme.outer, width, build_norm(part.norm, d_model)),
        [
            evoformer.TriangleMultiplication(
                width, scheme.triangles, build_norm(part.norm, scheme.triangles), outgoing=outgoing
            )
            for outgoing in (True, False)
        ],
        [
            evoformer.TriangleAttention(
                build_gated_attention(scheme.attention, width, across=across),
                evoformer.PairBias(width, heads, None),
            )
            for across in (False, True)
        ],
        pair_feedforward,
        [_residual(part, width) for _ in range(_UPDATES)],
    )
