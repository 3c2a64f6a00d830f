"""Attention from specs: projections, kernels, memories."""

from __future__ import annotations

import math
from typing import NamedTuple, assert_never

from torch import nn

from regard import spec
from regard.builder.norms import build_norm
from regard.builder.positions import build_layer_position, built_as
from regard.core import attention, linear, projection, stack
from regard.core.caches import segment_memory
from regard.core.mixers import (
    additive_attention,
    global_attention,
    linear_attention,
    linformer,
    local_chunk_attention,
    lsh_attention,
    scaled_dot_product_attention,
    segment_attention,
)
from regard.core.positions import position_terms, relative_position, rotary
from regard.core.stacks import shifted_window_attention
from regard.system import memory

# Random directions are drawn in float64, also on the meta device, and with them their factors.
_BYTES_PER_DIRECTION = 32


class LayerParts(NamedTuple):
    """What a layer has from its stack: the parts that it shares with others are one object."""

    scheme: spec.Scheme
    d_model: int
    type: stack.LayerType
    self_lengths: linformer.LengthProjection | None  # Linformer's
    cross_lengths: linformer.LengthProjection | None
    windows: shifted_window_attention.Windows | None  # of a layer in stages (Swin)


def build_self_attention(block: spec.Block, layer: LayerParts) -> attention.Attention:
    part = block.attention
    d_model = layer.d_model
    scale = _scale(part, layer.type.position)
    relative = build_layer_position(block.position, part, d_model, scale)
    compression = _compression(layer.scheme, d_model)
    mixer = _mixer(part, scale, layer.self_lengths)
    sizes = (d_model, part.heads, part.key_heads, part.d_k, part.d_v, part.bias)
    if part.projection == "global":
        assert isinstance(mixer, scaled_dot_product_attention.SoftmaxAttention)
        # Longformer's query_global, key_global and value_global.
        global_projection = projection.SelfProjection(*sizes)
        local_projection = projection.SelfProjection(*sizes)
        return global_attention.GlobalTokenAttention(
            local_projection,
            mixer,
            _output_projection(part, d_model),
            global_projection,
            _shared_position(block, layer, scale),
        )
    project: projection.Projection
    match part.projection:
        case "shared":
            project = projection.SharedProjection(*sizes)
        case "tied_qkv" | "tied_qk" | "tied_kv":
            tied = part.projection.removeprefix("tied_")
            project = projection.TiedProjection(*sizes, tied=tied)
        case _ if part.qk_norm is not None:
            q_norm = build_norm(part.qk_norm, part.d_k)
            k_norm = build_norm(part.qk_norm, part.d_k)
            project = projection.NormedProjection(*sizes, q_norm=q_norm, k_norm=k_norm)
        case _:
            project = projection.SelfProjection(*sizes)
    output = _output_projection(part, d_model)
    position = relative or _shared_position(block, layer, scale)
    if isinstance(layer.scheme, spec.Segments):
        return segment_attention.SegmentAttention(project, mixer, output, position, compression)
    if layer.windows is not None:
        return shifted_window_attention.WindowAttention(
            project, mixer, output, layer.windows, part.heads
        )
    return attention.Attention(project, mixer, output, position)


def _shared_position(
    block: spec.Block, layer: LayerParts, scale: float
) -> position_terms.LayerPosition:
    """How the position of a stack acts in one of its layers."""
    part = block.attention
    position = layer.type.position
    if isinstance(position, rotary.Rope):
        return position
    if not isinstance(position, relative_position.Disentangled):
        return position_terms.NO_POSITION
    project = None
    if isinstance(block.position, spec.Disentangled) and block.position.projections != "shared":
        project = relative_position.PositionProjection(
            layer.d_model, part.heads, part.d_k, position.scored
        )
    return relative_position.DisentangledScores(project, scale)


def global_tokens(
    part: spec.GlobalTokens | None,
) -> global_attention.FirstTokens | global_attention.QuestionTokens | None:
    match part:
        case spec.FirstTokens(count):
            return global_attention.FirstTokens(count)
        case spec.QuestionTokens(separator, answers):
            return global_attention.QuestionTokens(separator, answers)
        case None:
            return None
        case _:
            assert_never(part)


def build_cross_attention(part: spec.Attention, layer: LayerParts) -> attention.Attention:
    # Positions of the stack concern its own sequence: they do not act on cross-attention.
    d_model = layer.d_model
    mixer = _mixer(part, _scale(part, None), layer.cross_lengths)
    sizes = (d_model, part.heads, part.key_heads, part.d_k, part.d_v, part.bias)
    project = projection.CrossProjection(*sizes)
    return attention.Attention(project, mixer, _output_projection(part, d_model))


def _output_projection(part: spec.Attention, d_model: int) -> linear.Linear:
    # W^O of Section 3.2.2: [h · d_v, d_model]
    return linear.Linear(part.heads * part.d_v, d_model, bias="o" in part.bias)


def _scale(part: spec.Attention, position: position_terms.StackPosition | None) -> float:
    """1/√d_k unless the spec says otherwise; positions that add terms to q·k count in it."""
    if part.scale is not None:
        return part.scale
    if part.projection == "shared":
        return 1.0
    terms = 1  # content to content
    if isinstance(position, relative_position.Disentangled):
        terms += len(position.scored)
    return (terms * part.d_k) ** -0.5


def _compression(part: spec.Scheme, d_model: int) -> segment_memory.CompressiveMemory | None:
    if not isinstance(part, spec.Segments) or part.compressed is None:
        return None
    kind = part.compressed.function
    factor = part.compressed.factor
    function: segment_memory.ConvCompression | segment_memory.PoolCompression
    if kind == "convolution":
        function = segment_memory.ConvCompression(d_model, factor)
    else:
        function = segment_memory.PoolCompression(kind)
    return segment_memory.CompressiveMemory(
        function, d_model, recent=part.memory, length=part.compressed.length, factor=factor
    )


def _mixer(
    part: spec.Attention, scale: float, lengths: linformer.LengthProjection | None
) -> nn.Module:
    match part.mixer:
        case spec.SoftmaxAttention(dropout, top, cap, sinks):
            heads = part.heads if sinks else None
            return scaled_dot_product_attention.SoftmaxAttention(
                scale, dropout, top=top, cap=cap, sinks=heads
            )
        case spec.AdditiveAttention(dropout):
            return additive_attention.AdditiveAttention(part.heads, part.d_k, dropout)
        case spec.LinearAttention(features):
            return linear_attention.LinearAttention(_features(features, part.d_k, scale))
        case spec.Linformer(dropout=dropout):
            lengths = lengths or build_length_projection(part)
            assert lengths is not None
            return linformer.Linformer(scale, dropout, lengths)
        case spec.ChunkedAttention(chunk, ring, before, after, dropout):
            return local_chunk_attention.ChunkedAttention(
                scale, chunk=chunk, around=(before, after), ring=_ring(ring), dropout=dropout
            )
        case spec.LshAttention():
            return _lsh_attention(part, part.mixer, scale)
        case _:
            sizes = spec.AttentionSizes(part.heads, part.key_heads, part.d_k, part.d_v, scale)
            return built_as(attention.Mixer, part.mixer, sizes)


def _features(
    part: spec.EluFeatures | spec.FavorFeatures, d_k: int, scale: float
) -> linear_attention.Features:
    match part:
        case spec.EluFeatures():
            return linear_attention.EluFeatures(d_k)
        case spec.FavorFeatures(count, seed, redraw):
            # d ln d features suffice for uniform approximation (Choromanski et al., Theorem 4).
            count = count or math.ceil(d_k * math.log(d_k)) or 1
            memory.require_bytes(
                _BYTES_PER_DIRECTION * count * d_k,
                f"{count:,} random features of {d_k:,} dimensions",
                "give FavorFeatures a smaller `count`",
            )
            return linear_attention.FavorFeatures(d_k, count, scale, seed, redraw)
        case _:
            assert_never(part)


def _lsh_attention(
    part: spec.Attention, mixer: spec.LshAttention, scale: float
) -> lsh_attention.LshAttention:
    limit = 0  # read only where the length determines the buckets
    if isinstance(mixer.buckets, spec.AutoBuckets):
        limit = mixer.buckets.limit
    return lsh_attention.LshAttention(
        part.d_k,
        part.heads,
        scale,
        hashing=lsh_attention.Hashing(mixer.factors, mixer.rounds, mixer.seed, limit),
        chunk=mixer.chunk,
        around=(mixer.before, mixer.after),
        dropout=mixer.dropout,
        ring=_ring(mixer.ring),
    )


def _ring(part: spec.ChunkRing | None) -> local_chunk_attention.ChunkRing | None:
    if part is None:
        return None
    return local_chunk_attention.ChunkRing(part.multiple, part.beyond)


def build_length_projection(
    part: spec.Attention | None, *, shared: bool = False
) -> linformer.LengthProjection | None:
    """Linformer's projections of one layer, or those that all layers share; None where there are
    none such."""
    if part is None or not isinstance(part.mixer, spec.Linformer):
        return None
    mixer = part.mixer
    if (mixer.share == "layers") != shared:
        return None  # the stack makes those of all layers, each layer its own
    heads = part.key_heads if mixer.share == "none" else 1  # 1: broadcast over the heads
    # One matrix for keys and values where `both` or `layers` are shared: E = F.
    separate_values = mixer.share in ("none", "heads")
    return linformer.LengthProjection(mixer.length, mixer.rank, heads, values=separate_values)
