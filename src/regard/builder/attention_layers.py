"""Attention from specs: projections, kernels, memories."""

from __future__ import annotations

from typing import NamedTuple

from torch import nn

from regard import spec
from regard.builder.norms import PYRAMID_NORM, build_norm
from regard.builder.positions import build_layer_position, built_as
from regard.core import attention, linear, projection, stack
from regard.core.caches import segment_memory
from regard.core.mixers import (
    explicit_attention,
    global_attention,
    linear_attention,
    linformer,
    local_chunk_attention,
    lsh_attention,
    scaled_dot_product_attention,
    segment_attention,
)
from regard.core.positions import position_terms, relative_position, rotary
from regard.core.stacks import (
    divided_attention,
    evoformer,
    pyramid,
    shifted_window_attention,
)


class LayerParts(NamedTuple):
    """What a layer has from its stack: the parts that it shares with others are one object."""

    scheme: spec.Scheme
    d_model: int
    type: stack.LayerType
    self_lengths: linformer.LengthProjection | None  # Linformer's
    cross_lengths: linformer.LengthProjection | None
    windows: shifted_window_attention.Windows | None  # of a layer in stages (Swin)
    reduction: int  # of rows and columns, of a layer in a pyramid (SegFormer)
    updates_pairs: bool  # of an Evoformer


def build_self_attention(block: spec.Block, layer: LayerParts) -> attention.Attention:
    part = block.attention
    d_model = layer.d_model
    scale = _scale(part, layer.type.position)
    relative = build_layer_position(block.position, part, d_model, scale)
    compression = None
    if isinstance(layer.scheme, spec.Segments) and layer.scheme.compressed is not None:
        compression = segment_memory.CompressiveMemory(
            layer.scheme.compressed, d_model, layer.scheme.memory
        )
    mixer = _mixer(part, scale, layer.self_lengths)
    is_global = part.projection == "global"
    # Longformer's query_global, key_global and value_global.
    global_projection = projection.SelfProjection(part, d_model) if is_global else None
    project: projection.Projection
    match part.projection:
        case "shared":
            project = projection.SharedProjection(part, d_model)
        case "tied_qkv" | "tied_qk" | "tied_kv":
            project = projection.TiedProjection(part, d_model)
        case _ if part.qk_norm is not None:
            q_norm = build_norm(part.qk_norm, part.d_k)
            k_norm = build_norm(part.qk_norm, part.d_k)
            project = projection.NormedProjection(part, d_model, q_norm, k_norm)
        case _:
            project = projection.SelfProjection(part, d_model)
    output = _output_projection(part, d_model)
    if isinstance(layer.scheme, spec.Pyramid):
        return _reduced_attention(part, layer, mixer, output)
    position = relative or _shared_position(block, layer, scale)
    if global_projection is not None:
        assert isinstance(mixer, scaled_dot_product_attention.SoftmaxAttention)
        return global_attention.GlobalTokenAttention(
            project, mixer, output, global_projection, position
        )
    if isinstance(layer.scheme, spec.Segments):
        return segment_attention.SegmentAttention(project, mixer, output, position, compression)
    if layer.windows is not None:
        return shifted_window_attention.WindowAttention(
            project, mixer, output, layer.windows, part.heads
        )
    if isinstance(layer.scheme, spec.Evoformer):
        return build_gated_attention(part, d_model, across=False)
    if isinstance(layer.scheme, spec.Divided):
        frames = divided_attention.ClipRows(*_clip(layer.scheme), space=True)
        return divided_attention.RowsAttention(project, mixer, output, frames)
    return attention.Attention(project, mixer, output, position)


def _reduced_attention(
    part: spec.Attention, layer: LayerParts, mixer: nn.Module, output: linear.Linear
) -> pyramid.ReducedAttention:
    reduction = None
    if layer.reduction > 1:
        reduction_norm = build_norm(PYRAMID_NORM, layer.d_model)
        reduction = pyramid.SequenceReduction(layer.d_model, layer.reduction, reduction_norm)
    project = projection.CrossProjection(part, layer.d_model)
    return pyramid.ReducedAttention(project, mixer, output, reduction)


def build_gated_attention(
    part: spec.Attention, width: int, *, across: bool
) -> evoformer.GatedAttention:
    """The attention of an Evoformer along the rows of a grid, or along its columns."""
    return evoformer.GatedAttention(
        projection.SelfProjection(part, width),
        _mixer(part, _scale(part, None), None),
        _output_projection(part, width),
        linear.Linear(width, part.heads * part.d_v),
        across=across,
    )


def build_time_attention(
    block: spec.Block, layer: LayerParts, clip: spec.Divided
) -> divided_attention.RowsAttention:
    """The attention of divided blocks over time; a linear map follows its own."""
    part = block.attention
    d_model = layer.d_model
    return divided_attention.RowsAttention(
        projection.SelfProjection(part, d_model),
        _mixer(part, _scale(part, None), None),
        _output_projection(part, d_model),
        divided_attention.ClipRows(*_clip(clip), space=False),
        linear.Linear(d_model, d_model),
    )


def _clip(part: spec.Divided) -> tuple[int, int, int]:
    return part.frames, part.patches, part.extras


def _shared_position(
    block: spec.Block, layer: LayerParts, scale: float
) -> position_terms.LayerPosition:
    """How the position of a stack acts in one of its layers."""
    part = block.attention
    position = layer.type.position
    if isinstance(position, rotary.Rope):
        return position
    if isinstance(position, position_terms.AddedPosition):
        return position_terms.MovedByPosition()
    if not isinstance(position, relative_position.Disentangled):
        return position_terms.NO_POSITION
    project = None
    if isinstance(block.position, spec.Disentangled) and block.position.projections != "shared":
        project = relative_position.PositionProjection(
            layer.d_model, part.heads, part.d_k, position.scored
        )
    return relative_position.DisentangledScores(project, scale)


def build_cross_attention(part: spec.Attention, layer: LayerParts) -> attention.Attention:
    # Other positions of the stack concern its own sequence: they do not act on cross-attention.
    position = position_terms.NO_POSITION
    if isinstance(layer.type.position, position_terms.AddedPosition):
        position = position_terms.MovedByPosition()
    d_model = layer.d_model
    mixer = _mixer(part, _scale(part, None), layer.cross_lengths)
    project = projection.CrossProjection(part, d_model)
    if part.qk_norm is not None:
        norms = [build_norm(part.qk_norm, part.d_k) for _ in "qk"]
        project = projection.NormedCrossProjection(part, d_model, *norms)
    return attention.Attention(project, mixer, _output_projection(part, d_model), position)


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
            return explicit_attention.AdditiveAttention(part.heads, part.d_k, dropout)
        case spec.LinearAttention(spec.FavorFeatures() as features):
            favor = linear_attention.FavorFeatures(features, part.d_k, scale)
            return linear_attention.LinearAttention(favor)
        case spec.LinearAttention():
            return linear_attention.LinearAttention(linear_attention.EluFeatures(part.d_k))
        case spec.Linformer(dropout=dropout):
            lengths = lengths or build_length_projection(part)
            assert lengths is not None
            return linformer.Linformer(scale, dropout, lengths)
        case spec.ChunkedAttention():
            return local_chunk_attention.ChunkedAttention(part.mixer, scale)
        case spec.LshAttention():
            return lsh_attention.LshAttention(part.mixer, part.heads, part.d_k, scale)
        case _:
            sizes = spec.AttentionSizes(part.heads, part.key_heads, part.d_k, part.d_v, scale)
            return built_as(attention.Mixer, part.mixer, sizes)


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
    return linformer.LengthProjection(mixer, part.key_heads)
