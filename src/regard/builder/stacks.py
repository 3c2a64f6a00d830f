"""Stacks and blocks from specs."""

from __future__ import annotations

from typing import assert_never

from regard import spec
from regard.builder.attention_layers import (
    SharedParts,
    build_cross_attention,
    build_length_projection,
    build_self_attention,
    global_tokens,
)
from regard.builder.masks import build_mask_pattern
from regard.builder.norms import build_block_norm, build_norm
from regard.builder.positions import build_stack_position
from regard.core import block, feedforward, linear, mixture_of_experts, residual, stack
from regard.core.mixers import global_attention
from regard.core.stacks import (
    conv_layer,
    reversible,
    shifted_window_attention,
    universal_transformer,
)
from regard.system.errors import ModelError


def build_stack(part: spec.Stack, d_model: int) -> stack.Stack:
    if part.stages is not None:
        return _staged_stack(part, part.stages, d_model)
    position = build_stack_position(part, d_model)
    self_lengths = build_length_projection(part.block.attention, shared=True)
    cross_lengths = build_length_projection(part.block.cross, shared=True)
    # One object for all blocks: what it holds is shared by reference.
    shared = SharedParts(part, position, self_lengths, cross_lengths)
    blocks = [_block(one, shared, d_model) for one in part.unique_blocks]
    final = build_block_norm(part.final, part.width(d_model)) if part.final else None
    pattern = build_mask_pattern(part.pattern)
    if part.block.attention.projection == "global":
        default = global_tokens(part.block.attention.global_tokens)
        pattern = global_attention.GlobalTokens(pattern, default)
    segment_length = _segment_length(part)
    if part.conv_layer is not None:
        layer = _conv_layer(part.conv_layer, d_model)
        return conv_layer.ConvStack(
            blocks, part.layers, final, pattern, position, conv_layer=layer, dropout=part.dropout
        )
    if part.universal is not None:
        return universal_transformer.UniversalStack(
            blocks,
            part.layers,
            final,
            pattern,
            position,
            universal=_universal(part.universal, d_model),
            dropout=part.dropout,
            segment_length=segment_length,
        )
    kind = stack.Stack
    if isinstance(part.block.residual, spec.Reversible):
        kind = reversible.ReversibleStack
    return kind(
        blocks,
        part.layers,
        final,
        pattern,
        position,
        dropout=part.dropout,
        segment_length=segment_length,
        layer_drop=part.layer_drop,
    )


def _staged_stack(
    part: spec.Stack, stages: spec.Stages, d_model: int
) -> shifted_window_attention.StagedStack:
    blocks = iter(part.blocks)
    parts: list[block.AnyBlock] = []
    merges = []
    for stage, depth in enumerate(stages.depths):
        width = 2**stage * d_model
        side = stages.sides[stage]
        for layer in range(depth):
            windows = shifted_window_attention.Windows(
                side, stages.window, stages.shift(stage, layer)
            )
            parts.append(_block(next(blocks), SharedParts(part, None, None, None, windows), width))
        if stage + 1 < len(stages.depths):
            # The authors' ε here is always PyTorch's own.
            merging_norm = build_norm(spec.LayerNorm(1e-5), 4 * width)
            reduce = linear.Linear(4 * width, 2 * width, bias=False)
            merges.append(shifted_window_attention.PatchMerging(side, merging_norm, reduce))
    final = build_block_norm(part.final, part.width(d_model)) if part.final else None
    pattern = build_mask_pattern(part.pattern)
    return shifted_window_attention.StagedStack(
        parts, stages.depths, merges, final, pattern, dropout=part.dropout
    )


def _segment_length(part: spec.Stack) -> int | None:
    """How many earlier positions the layers keep for a segment."""
    if part.memory is None or part.compressed is None:
        return part.memory
    # Up to factor − 1 old positions wait until there are enough of them to compress.
    return part.memory + part.compressed.length + part.compressed.factor - 1


def _universal(part: spec.Universal, d_model: int) -> universal_transformer.Universal:
    return universal_transformer.Universal(
        d_model, timing=part.timing, halts=part.halts, least=part.least, cost=part.cost
    )


def _conv_layer(part: spec.ConvLayer, d_model: int) -> conv_layer.ConvLayer:
    if d_model % part.groups:
        raise ModelError(
            f"d_model {d_model} is not divisible by groups={part.groups} of the convolution",
            "change one of them",
        )
    layer_norm = build_norm(part.norm, d_model)
    return conv_layer.ConvLayer(
        d_model, part.width, part.groups, part.activation, layer_norm, part.dropout
    )


def _block(part: spec.Block, shared: SharedParts, d_model: int) -> block.AnyBlock:
    self_attention = build_self_attention(part.attention, shared, d_model)
    cross = None
    if part.cross is not None:
        cross = build_cross_attention(part.cross, shared, d_model)
    causal = spec.is_causal(shared.stack.pattern)
    feed_forward = _feedforward(part.feedforward, d_model, causal=causal)
    sublayers = 3 if part.cross else 2  # one norm for each
    norms = [build_block_norm(part.norm, d_model) for _ in range(sublayers)]
    connections: list[residual.Residual]
    match part.residual:
        case spec.PostNorm():
            connections = [residual.PostNorm(norm, part.dropout) for norm in norms]
        case spec.PreNorm():
            connections = [residual.PreNorm(norm, part.dropout) for norm in norms]
        case spec.NoResidual(place):
            pre = place == "pre"
            connections = [residual.NoResidual(norm, part.dropout, pre=pre) for norm in norms]
        case spec.Reversible(gives):
            streams = reversible.ReversibleResidual(norms, part.dropout, gives)
            return reversible.ReversibleBlock(self_attention, cross, feed_forward, streams)
        case spec.Parallel(count):
            parallel = residual.ParallelResidual(norms[:count], part.dropout)
            return block.ParallelBlock(self_attention, feed_forward, parallel)
        case _:
            assert_never(part.residual)
    layer_scales = None
    if part.layer_scale is not None:
        layer_scales = [residual.LayerScale(d_model, part.layer_scale) for _ in norms]
    return block.Block(
        self_attention,
        cross,
        feed_forward,
        residual.SequentialResidual(connections),
        layer_scales,
        part.drop_path,
    )


def _feedforward(
    part: spec.PositionWise, d_model: int, *, causal: bool
) -> feedforward.PositionWise:
    match part:
        case spec.FeedForward() | spec.GatedFeedForward():
            return _dense_feedforward(part, d_model)
        case spec.ConvFeedForward(d_ff, kernels, activation, dropout, bias):
            return feedforward.ConvFeedForward(
                d_model, d_ff, kernels, activation, dropout, bias=bias, causal=causal
            )
        case spec.MixtureOfExperts(count, inner, top, capacity, balance):
            experts = [_dense_feedforward(inner, d_model) for _ in range(count)]
            return mixture_of_experts.MixtureOfExperts(
                d_model, experts, top=top, capacity=capacity, balance=balance
            )
        case _:
            assert_never(part)


def _dense_feedforward(
    part: spec.FeedForward | spec.GatedFeedForward, d_model: int
) -> feedforward.FeedForward | feedforward.GatedFeedForward:
    kind: type[feedforward.FeedForward | feedforward.GatedFeedForward] = feedforward.FeedForward
    if isinstance(part, spec.GatedFeedForward):
        kind = feedforward.GatedFeedForward
    return kind(d_model, part.d_ff, part.activation, part.dropout, part.bias)
