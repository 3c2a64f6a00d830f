"""Stacks and blocks from specs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from itertools import pairwise
from typing import Any, assert_never

from regard import spec
from regard.builder.attention_layers import (
    LayerParts,
    build_cross_attention,
    build_length_projection,
    build_self_attention,
    build_time_attention,
)
from regard.builder.evoformer import build_evoformer_block
from regard.builder.front_ends import map_norm, overlap_embedding
from regard.builder.masks import build_mask_pattern
from regard.builder.norms import PYRAMID_NORM, build_block_norm, build_norm
from regard.builder.positions import build_stack_position, position_sizes
from regard.core import attention, block, feedforward, linear, mixture_of_experts, residual, stack
from regard.core.masks import mask
from regard.core.mixers import global_attention
from regard.core.stacks import (
    conformer,
    conv_layer,
    divided_attention,
    evoformer,
    gated_cross_attention,
    pyramid,
    reversible,
    shifted_window_attention,
    universal_transformer,
)
from regard.system.errors import ModelError


def build_stack(part: spec.Stack, d_model: int) -> stack.Stack:
    layers = _layer_parts(part, d_model)
    layer_types = [layer.type for layer in layers]
    blocks = [_block(part.blocks[i], layers[i]) for i in part.unique_layers]
    final = build_block_norm(part.final, part.width(d_model)) if part.final else None
    parts = stack.StackParts(blocks, layer_types, final, part.dropout)
    match part.scheme:
        case spec.Divided():  # divided are its blocks
            return stack.Stack(parts)
        case spec.Plain(layer_drop):
            return stack.Stack(parts, layer_drop=layer_drop)
        case spec.Shared():
            return stack.Stack(parts)
        case spec.Segments() as segments:
            return stack.Stack(parts, segment_length=segments.length)
        case spec.Reversible(gives):
            return reversible.ReversibleStack(parts, gives)
        case spec.Universal() as universal:
            signals = universal_transformer.Universal(universal, d_model)
            return universal_transformer.UniversalStack(parts, signals)
        case spec.ConvLayer() as convolution:
            return conv_layer.ConvStack(parts, _conv_layer(convolution, d_model))
        case spec.Stages() as stages:
            merges = _patch_merging(stages, d_model)
            return shifted_window_attention.StagedStack(parts, stages.depths, merges)
        case spec.Evoformer(width) as scheme:
            return evoformer.EvoformerStack(parts, evoformer.RelativePairs(width, scheme.reach))
        case spec.Pyramid() as stages:
            return pyramid.PyramidStack(parts, stages.depths, _pyramid_parts(stages))
        case _:
            assert_never(part.scheme)


def _layer_parts(part: spec.Stack, d_model: int) -> list[LayerParts]:
    """What each layer has from its stack; layers share what is made of equal parts."""
    widths = [d_model] * part.layers
    windows: list[shifted_window_attention.Windows | None] = [None] * part.layers
    if isinstance(part.scheme, spec.Stages):
        stages = part.scheme
        places = [(stage, i) for stage, depth in enumerate(stages.depths) for i in range(depth)]
        widths = [2**stage * d_model for stage, _ in places]
        windows = [
            shifted_window_attention.Windows(
                stages.sides[stage], stages.window, stages.shift(stage, i)
            )
            for stage, i in places
        ]
    reductions = [1] * part.layers
    if isinstance(part.scheme, spec.Pyramid):
        pyramid_stages = part.scheme
        if pyramid_stages.widths[0] != d_model:
            raise ModelError(
                f"the first stage is {pyramid_stages.widths[0]} wide, and d_model is {d_model}",
                "make them equal",
            )
        widths = [pyramid_stages.widths[stage] for stage in pyramid_stages.stages]
        reductions = [pyramid_stages.reductions[stage] for stage in pyramid_stages.stages]
    position: Callable[..., Any] = functools.cache(build_stack_position)
    pattern = functools.cache(_mask_pattern)
    layer_type: Callable[..., stack.LayerType] = functools.cache(stack.LayerType)
    self_lengths = functools.cache(build_length_projection)
    cross_lengths = functools.cache(build_length_projection)
    types = []
    for one in part.blocks:
        has_global_tokens = one.attention.projection == "global"
        mask_pattern = pattern(one.pattern, has_global_tokens, one.attention.global_tokens)
        types.append(layer_type(mask_pattern, position(one.position, position_sizes(one, d_model))))
    lengths = [self_lengths(one.attention, shared=True) for one in part.blocks]
    memory_lengths = [cross_lengths(one.cross, shared=True) for one in part.blocks]
    updates = [True] * part.layers
    if isinstance(part.scheme, spec.Evoformer):
        updates[-1] = part.scheme.last
    rows = zip(widths, types, lengths, memory_lengths, windows, reductions, updates, strict=True)
    return [LayerParts(part.scheme, *row) for row in rows]


def _mask_pattern(
    part: spec.MaskPattern,
    has_global_tokens: bool,
    by_default: spec.GlobalTokens | None,
) -> mask.MaskPattern:
    pattern = build_mask_pattern(part)
    return global_attention.GlobalTokens(pattern, by_default) if has_global_tokens else pattern


def _patch_merging(
    stages: spec.Stages, d_model: int
) -> list[shifted_window_attention.PatchMerging]:
    """Between each stage and the next, which is twice as wide."""
    merges = []
    for stage, side in enumerate(stages.sides[:-1]):
        width = 2**stage * d_model
        # The authors' ε here is always PyTorch's own.
        merging_norm = build_norm(spec.LayerNorm(1e-5), 4 * width)
        reduce = linear.Linear(4 * width, 2 * width, bias=False)
        merges.append(shifted_window_attention.PatchMerging(side, merging_norm, reduce))
    return merges


def _pyramid_parts(part: spec.Pyramid) -> pyramid.PyramidParts:
    widths = pairwise(part.widths)
    embeddings = [
        overlap_embedding(*pair, kernel, stride)
        for pair, kernel, stride in zip(widths, part.kernels, part.strides, strict=True)
    ]
    fusion = None
    if part.fused is not None:
        fused_norm = map_norm(spec.BatchNorm(counts=True))(part.fused)
        fusion = pyramid.Fusion(part.widths, part.fused, fused_norm)
    norms = [build_norm(PYRAMID_NORM, width) for width in part.widths]
    return pyramid.PyramidParts(embeddings, norms, fusion)


def _conv_layer(part: spec.ConvLayer, d_model: int) -> conv_layer.ConvLayer:
    if d_model % part.groups:
        raise ModelError(
            f"d_model {d_model} is not divisible by groups={part.groups} of the convolution",
            "change one of them",
        )
    return conv_layer.ConvLayer(part, d_model, build_norm(part.norm, d_model))


def _block(part: spec.Block, layer: LayerParts) -> block.AnyBlock:
    d_model = layer.d_model
    self_attention = build_self_attention(part, layer)
    cross = build_cross_attention(part.cross, layer) if part.cross else None
    feed_forward = _feedforward(part.feedforward, d_model, causal=spec.is_causal(part.pattern))
    sublayers = 3 if part.cross else 2  # one norm for each
    norms = [build_block_norm(part.norm, d_model) for _ in range(sublayers)]
    connections: list[residual.Residual]
    match part.residual:
        case spec.PostNorm():
            connections = [residual.PostNorm(norm, part.dropout) for norm in norms]
        case spec.PreNorm():
            connections = [residual.PreNorm(norm, part.dropout) for norm in norms]
        case spec.SandwichNorm():
            after = [build_block_norm(part.norm, d_model) for _ in norms]
            pairs = zip(norms, after, strict=True)
            connections = [residual.SandwichNorm(*pair, part.dropout) for pair in pairs]
        case spec.NoResidual(place):
            pre = place == "pre"
            connections = [residual.NoResidual(norm, part.dropout, pre=pre) for norm in norms]
        case spec.Parallel(count):
            parallel = residual.ParallelResidual(norms[:count], part.dropout)
            return block.ParallelBlock(self_attention, None, feed_forward, parallel)
        case _:
            assert_never(part.residual)
    sequential = residual.SequentialResidual(connections)
    if part.gated is not None or part.conformer is not None:
        return _extended(part, layer, self_attention, feed_forward, sequential)
    if isinstance(layer.scheme, spec.Reversible):
        return reversible.ReversibleBlock(self_attention, cross, feed_forward, sequential)
    if isinstance(layer.scheme, spec.Divided):
        return divided_attention.DividedBlock(
            build_time_attention(part, layer, layer.scheme),
            residual.PreNorm(build_block_norm(part.norm, d_model), part.dropout),
            attention=self_attention,
            cross=None,
            feedforward=feed_forward,
            residual=sequential,
            drop_path=part.drop_path,
        )
    if isinstance(layer.scheme, spec.Evoformer):
        pair_feedforward = None
        if layer.updates_pairs:
            scheme = layer.scheme
            pair_feedforward = _feedforward(scheme.feedforward, scheme.width, causal=False)
        return build_evoformer_block(
            part,
            layer.scheme,
            d_model,
            pair_feedforward,
            attention=self_attention,
            cross=None,
            feedforward=feed_forward,
            residual=sequential,
            drop_path=part.drop_path,
        )
    layer_scales = None
    if part.layer_scale is not None:
        layer_scales = [residual.LayerScale(d_model, part.layer_scale) for _ in norms]
    return block.Block(
        self_attention, cross, feed_forward, sequential, layer_scales, part.drop_path
    )


def _extended(
    part: spec.Block,
    layer: LayerParts,
    self_attention: attention.Attention,
    feed_forward: feedforward.PositionWise,
    sequential: residual.SequentialResidual,
) -> block.AnyBlock:
    """A block with sublayers besides the usual ones."""
    if part.gated is None:
        return _conformer(part, self_attention, feed_forward, sequential, layer.d_model)
    return _gated(part, part.gated, layer, self_attention, feed_forward, sequential)


def _gated(
    part: spec.Block,
    gated: spec.GatedCross,
    layer: LayerParts,
    self_attention: attention.Attention,
    feed_forward: feedforward.PositionWise,
    sequential: residual.SequentialResidual,
) -> gated_cross_attention.GatedBlock:
    d_model = layer.d_model
    gates = gated_cross_attention.Gates(
        [build_block_norm(part.norm, d_model) for _ in range(2)],
        _feedforward(gated.feedforward, d_model, causal=False),
        part.dropout,
        1 if gated.gate == "scalar" else d_model,
    )
    cross = build_cross_attention(gated.attention, layer)
    return gated_cross_attention.GatedBlock(self_attention, cross, feed_forward, sequential, gates)


def build_resampler(part: spec.Resampler, width: int) -> gated_cross_attention.Resampler:
    plain = LayerParts(
        spec.Plain(), width, stack.LayerType(mask.NO_MASK, None), None, None, None, 1, False
    )
    layers = [
        gated_cross_attention.ResamplerLayer(
            build_cross_attention(part.attention, plain),
            _feedforward(part.feedforward, width, causal=False),
            [build_norm(part.norm, width) for _ in range(3)],
        )
        for _ in range(part.layers)
    ]
    final = build_norm(part.norm, width)
    return gated_cross_attention.Resampler(part.latents, width, layers, final)


def _conformer(
    part: spec.Block,
    self_attention: attention.Attention,
    feed_forward: feedforward.PositionWise,
    sequential: residual.SequentialResidual,
    d_model: int,
) -> conformer.ConformerBlock:
    assert part.conformer is not None
    kind = residual.PreNorm if isinstance(part.residual, spec.PreNorm) else residual.PostNorm
    more: list[feedforward.PositionWise] = [conformer.ConvolutionModule(part.conformer, d_model)]
    if part.conformer.macaron:
        more.append(_feedforward(part.feedforward, d_model, causal=False))
    sublayers = [
        (module, kind(build_block_norm(part.norm, d_model), part.dropout)) for module in more
    ]
    final = build_block_norm(part.norm, d_model)
    return conformer.ConformerBlock(self_attention, feed_forward, sequential, sublayers, final)


def _feedforward(
    part: spec.PositionWise, d_model: int, *, causal: bool
) -> feedforward.PositionWise:
    match part:
        case spec.FeedForward() | spec.GatedFeedForward():
            return _dense_feedforward(part, d_model)
        case spec.MixFeedForward():
            return feedforward.MixFeedForward(part, d_model)
        case spec.ConvFeedForward():
            return feedforward.ConvFeedForward(part, d_model, causal=causal)
        case spec.MixtureOfExperts(count, inner):
            experts = [_dense_feedforward(inner, d_model) for _ in range(count)]
            return mixture_of_experts.MixtureOfExperts(part, d_model, experts)
        case _:
            assert_never(part)


def _dense_feedforward(
    part: spec.FeedForward | spec.GatedFeedForward, d_model: int
) -> feedforward.FeedForward | feedforward.GatedFeedForward:
    if isinstance(part, spec.GatedFeedForward):
        return feedforward.GatedFeedForward(part, d_model)
    return feedforward.FeedForward(part, d_model)
