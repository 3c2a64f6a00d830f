"""build(spec) → model: the only place that matches on kinds of specs."""

from __future__ import annotations

import math
from typing import NamedTuple, assert_never, overload

import torch
from torch import Tensor, nn

from regard import memory, spec
from regard.baselines import additive_attention, convolutional, recurrent
from regard.baselines.memory_network import MemoryHops, MemoryNetwork
from regard.core import (
    attention,
    block,
    chunked_attention,
    compressive_memory,
    conv_layer,
    embedding,
    feedforward,
    frontend,
    global_attention,
    head,
    linear,
    linear_attention,
    linformer,
    lsh_attention,
    mask,
    mask_patterns,
    mixture_of_experts,
    norm,
    position_terms,
    positional_encoding,
    projection,
    relative_position,
    residual,
    reversible,
    rotary,
    segment_attention,
    softmax_attention,
    stack,
    universal_transformer,
)
from regard.errors import ModelError
from regard.model import Decoder, DecoderSide, DualEncoder, Encoder, EncoderDecoder, EncoderSide
from regard.model_variants import LayerMatchedEncoderDecoder, RecomputingDecoder

CoreModel = EncoderDecoder | Encoder | Decoder | DualEncoder | MemoryNetwork


@overload
def build(model: spec.EncoderDecoder) -> EncoderDecoder: ...
@overload
def build(model: spec.SequenceToSequence) -> EncoderDecoder: ...
@overload
def build(model: spec.Encoder) -> Encoder: ...
@overload
def build(model: spec.Decoder) -> Decoder: ...
@overload
def build(model: spec.RecurrentDecoder) -> Decoder: ...
@overload
def build(model: spec.DualEncoder) -> DualEncoder: ...
@overload
def build(model: spec.MemoryNetwork) -> MemoryNetwork: ...
@overload
def build(model: spec.Model) -> CoreModel: ...
def build(model: spec.Model) -> CoreModel:
    """The modules of a spec, with random weights drawn from torch's default generator."""
    # The meta device needs no memory, and a GPU reports what it lacks by itself.
    if torch.get_default_device().type == "cpu":
        memory.require(trainable(outline(model)), "this model")
    match model:
        case spec.DualEncoder():
            return DualEncoder(build(model.text), build(model.image), model.scale)
        case spec.MemoryNetwork():
            return _memory_network(model)
        case spec.EncoderDecoder() | spec.SequenceToSequence():
            return _encoder_decoder(model)
        case spec.Encoder():
            return _encoder(model)
        case spec.Decoder():
            return _decoder(model)
        case spec.RecurrentDecoder():
            return _recurrent_decoder(model)
        case _:
            assert_never(model)


def outline(model: spec.Model) -> CoreModel:
    """The model on the meta device: names and shapes without memory, no random numbers drawn."""
    try:
        with torch.device("meta"):
            return build(model)
    except (RuntimeError, OverflowError, TypeError) as error:  # more elements than 64 bits count
        raise ModelError(
            f"no model of these sizes can be built: {str(error).splitlines()[0]}",
            "correct the sizes in config.json",
        ) from None


def trainable(model: nn.Module) -> int:
    """Numbers that training changes, shared ones once."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


# ------------------------------------------------------------------ models


def _encoder_decoder(model: spec.EncoderDecoder | spec.SequenceToSequence) -> EncoderDecoder:
    d_model = model.d_model
    table = embedding.Table(model.target.vocabulary, d_model)  # [V, D]
    # Weight tying: one table for the target and the output, for source and target, or for all.
    output = table
    if model.share not in ("all", "target"):
        output = embedding.Table(model.target.vocabulary, d_model)
    shared_with_source = table if model.share in ("all", "inputs") else None
    wiring = EncoderDecoder
    if isinstance(model, spec.EncoderDecoder) and model.looks == "matching":
        wiring = LayerMatchedEncoderDecoder
    return wiring(
        source=_front_end(model.source, d_model, shared_with_source),
        target=_embedding(model.target, table, d_model),
        encoder=_encoder_side(model),
        decoder=_decoder_side(model),
        head=_lm_head(model.head, output, d_model),
    )


def _encoder(model: spec.Encoder) -> Encoder:
    front = _front_end(model.input, model.d_model)
    width = model.stack.width(model.d_model)  # 2 · d_model where both reversible streams come out
    lm_head = None
    stack_part = _stack(model.stack, model.d_model)
    pool = _pool(model.pool, width, model.d_model) if model.pool else None
    if model.head is not None and isinstance(front, embedding.Embedding):
        lm_head = _lm_head(model.head, _output_table(model, front.table, width), width)
    labels = _classifier(model.labels, model.scored) if model.labels else None
    return Encoder(front, stack_part, pool, lm_head, labels)


def _decoder(model: spec.Decoder) -> Decoder:
    table = embedding.Table(model.tokens.vocabulary, model.tokens.width or model.d_model)
    width = model.stack.width(model.d_model)
    tokens = _embedding(model.tokens, table, model.d_model)
    stack_part = _stack(model.stack, model.d_model)
    lm_head = _lm_head(model.head, _output_table(model, table, width), width)
    # A text that grows is cut into chunks anew, so no KV cache would stay right.
    if stack_part.rechunks:
        return RecomputingDecoder(tokens, stack_part, lm_head)
    return Decoder(tokens, stack_part, lm_head)


def _recurrent_decoder(model: spec.RecurrentDecoder) -> Decoder:
    table = embedding.Table(model.tokens.vocabulary, model.tokens.width or model.d_model)
    tokens = _embedding(model.tokens, table, model.d_model)
    part = model.stack
    cells = recurrent.RecurrentDecoder(part.cell, model.d_model, part.layers, part.dropout)
    output = _output_table(model, table, model.d_model)
    return Decoder(tokens, cells, _lm_head(model.head, output, model.d_model))


def _memory_network(model: spec.MemoryNetwork) -> MemoryNetwork:
    hops = MemoryHops(model.vocabulary, model.d_model, model.hops, model.sentences)
    return MemoryNetwork(hops)


def _output_table(
    model: spec.Encoder | spec.Decoder | spec.RecurrentDecoder, table: embedding.Table, width: int
) -> embedding.Table:
    """The table of the language-model head: tied to the embedding, or one of its own."""
    if model.tied or model.head is None:
        return table
    if model.head.transform is not None:
        width = model.head.transform.width  # the transform's output is what the table multiplies
    return embedding.Table(len(table.weight), width)


# ------------------------------------------------------------------ front ends


def _front_end(
    part: spec.FrontEnd, d_model: int, shared: embedding.Table | None = None
) -> frontend.FrontEnd:
    match part:
        case spec.Tokens():
            table = shared or embedding.Table(part.vocabulary, part.width or d_model)
            return _embedding(part, table, d_model)
        case spec.Spectrogram(mels, position, activation, dropout):
            input_position = _input_position(position, d_model)
            return frontend.Spectrogram(mels, d_model, input_position, activation, dropout)
        case spec.Patches():
            return _patches(part, d_model)
        case spec.Waveform():
            return _waveform(part, d_model)
        case _:
            assert_never(part)


def _patches(part: spec.Patches, d_model: int) -> frontend.Patches:
    shape = frontend.PatchShape(part.size, part.patch, part.channels)
    position: positional_encoding.LearnedPosition | positional_encoding.Sinusoidal2D
    if part.position == "learned":
        position = positional_encoding.LearnedPosition(d_model, part.positions)
    else:
        position = positional_encoding.Sinusoidal2D(d_model, shape.side, part.extras)
    return frontend.Patches(
        d_model,
        shape,
        position,
        extras=part.extras,
        bias=part.bias,
        norm=_norm(part.norm, d_model) if part.norm else None,
        dropout=part.dropout,
    )


def _waveform(part: spec.Waveform, d_model: int) -> frontend.Waveform:
    convolutions = []
    channels = 1  # samples are one channel; each convolution takes what the one before it gives
    for layer in part.convolutions:
        convolutions.append(
            frontend.Convolution(
                channels,
                layer.channels,
                kernel=layer.kernel,
                stride=layer.stride,
                bias=layer.bias,
                norm=_channel_norm(layer.norm, layer.channels),
            )
        )
        channels = layer.channels
    position = part.position
    return frontend.Waveform(
        convolutions,
        _norm(part.features, channels),
        linear.Linear(channels, d_model),
        frontend.ConvPosition(d_model, position.kernel, position.groups, part.activation),
        activation=part.activation,
        norm=_norm(part.norm, d_model) if part.norm else None,
        dropout=(part.project_dropout, part.dropout),
        masked=part.masked,
    )


def _channel_norm(
    part: spec.LayerNorm | spec.TimeNorm | None, channels: int
) -> norm.LayerNorm | frontend.TimeNorm | None:
    match part:
        case None:
            return None
        case spec.LayerNorm(eps, bias):
            return norm.LayerNorm(channels, eps, bias)
        case spec.TimeNorm(eps):
            return frontend.TimeNorm(channels, eps)
        case _:
            assert_never(part)


def _embedding(part: spec.Tokens, table: embedding.Table, d_model: int) -> embedding.Embedding:
    width = part.width or d_model
    # Positions are added to the embedding, or concatenated with it, never both.
    position = None
    concatenated = None
    if isinstance(part.position, spec.ConcatenatedPosition):
        concatenated = positional_encoding.Sinusoidal(
            part.position.width, part.position.order, part.position.base
        )
    else:
        position = _input_position(part.position, width)
    total_width = width + (concatenated.d_model if concatenated else 0)
    project = None
    # A width that is set explicitly has a projection, even where it equals d_model.
    if part.width or concatenated:
        project = linear.Linear(total_width, d_model)
    return embedding.Embedding(
        table,
        position,
        scale=part.scale,
        dropout=part.dropout,
        segments=embedding.Table(part.segments, width) if part.segments else None,
        norm=_norm(part.norm, total_width) if part.norm else None,
        project=project,
        concatenated=concatenated,
    )


def _input_position(
    part: spec.InputPosition | None, width: int
) -> positional_encoding.InputPosition | None:
    match part:
        case None:
            return None
        case spec.Sinusoidal(order, base):
            return positional_encoding.Sinusoidal(width, order, base)
        case spec.LearnedPosition(length, offset):
            return positional_encoding.LearnedPosition(width, length, offset)
        case spec.FixedPosition(length):
            return positional_encoding.FixedPosition(width, length)
        case spec.AxialPosition(shape, widths):
            if sum(widths) != width:
                raise ModelError(
                    f"axes of widths {widths} do not add up to {width}", "correct one of them"
                )
            return positional_encoding.AxialPosition(shape, widths, part.length)
        case spec.ConcatenatedPosition():
            raise ModelError("only tokens have positions beside them", "add sinusoids instead")
        case _:
            assert_never(part)


# ------------------------------------------------------------------ heads


def _lm_head(part: spec.LMHead, table: embedding.Table, d_model: int) -> head.LMHead:
    transform = None
    if part.transform is not None:
        width = part.transform.width
        transform_norm = _norm(part.transform.norm, width)
        transform = head.HeadTransform(d_model, width, part.transform.activation, transform_norm)
    return head.LMHead(table, part.bias, part.scale, transform)


def _pool(part: spec.Pool, input_width: int, d_model: int) -> head.Pool:
    which: str
    end = None
    if isinstance(part.which, spec.EndToken):
        end = part.which.token
        which = "end"
    else:
        which = part.which
    return head.Pool(
        d_model,
        which,
        part.activation,
        part.dropout,
        end=end,
        norm=_norm(part.norm, input_width) if part.norm else None,
        width=part.width,
        input_width=input_width,
    )


def _classifier(
    part: spec.ClassifierHead | spec.DistilledHead, d_model: int
) -> head.ClassifierHead | head.DistilledHead:
    match part:
        case spec.ClassifierHead(count, _, hidden, bias, dropout):
            return head.ClassifierHead(
                d_model, count, per_token=part.each, hidden=hidden, bias=bias, dropout=dropout
            )
        case spec.DistilledHead(count, voters):
            return head.DistilledHead(d_model, count, voters)
        case _:
            assert_never(part)


# ------------------------------------------------------------------ sides of an encoder–decoder


def _encoder_side(model: spec.EncoderDecoder | spec.SequenceToSequence) -> EncoderSide:
    part = model.encoder
    d_model = model.d_model
    match part:
        case spec.Stack():
            return _stack(part, d_model)
        case spec.Recurrent(cell, layers, bidirectional, _, dropout):
            return recurrent.RecurrentEncoder(
                cell, d_model, layers, dropout, bidirectional=bidirectional
            )
        case spec.Convolutional():
            return convolutional.ConvolutionalEncoder(
                _conv_units(part, d_model), _conv_norm(part, d_model)
            )
        case _:
            assert_never(part)


def _decoder_side(model: spec.EncoderDecoder | spec.SequenceToSequence) -> DecoderSide:
    part = model.decoder
    d_model = model.d_model
    match part:
        case spec.Stack():
            return _stack(part, d_model)
        case spec.Recurrent():
            bidirectional = (
                isinstance(model.encoder, spec.Recurrent) and model.encoder.bidirectional
            )
            return _attentive_decoder(part, d_model, halves=bidirectional)
        case spec.Convolutional():
            glances = []
            aligned = None
            if part.sees == "attention":
                glances = [convolutional.ConvAttention(d_model) for _ in range(part.layers)]
            if part.sees == "aligned":
                # Of the target's embedding and the encoder's output at its position.
                aligned = linear.Linear(2 * d_model, d_model)
            units = _conv_units(part, d_model)
            return convolutional.ConvolutionalDecoder(
                units, _conv_norm(part, d_model), glances, aligned
            )
        case _:
            assert_never(part)


def _attentive_decoder(
    part: spec.Recurrent, d_model: int, *, halves: bool
) -> recurrent.RecurrentDecoder:
    """A recurrent decoder that starts from an encoder, with or without attention to it."""
    looks = part.looks
    before = None
    after = None
    feeding = False
    # The order of creation is the order of random draws.
    bridge = recurrent.Bridge(d_model, part.layers, halves=halves, cell=part.cell == "lstm")
    if isinstance(looks, spec.BahdanauAttention):
        before = _alignment(looks, d_model)
    if isinstance(looks, spec.LuongAttention):
        after = _alignment(looks, d_model)
        feeding = looks.feeding
    return recurrent.RecurrentDecoder(
        part.cell,
        d_model,
        part.layers,
        part.dropout,
        bridge=bridge,
        before=before,
        after=after,
        feeding=feeding,
    )


def _alignment(
    part: spec.BahdanauAttention | spec.LuongAttention, d_model: int
) -> additive_attention.AlignmentAttention:
    join = linear.Linear(2 * d_model, d_model)  # of [context; state]
    match part.score:
        case spec.DotScore():
            mixer = softmax_attention.SoftmaxAttention(1.0 / part.temperature, 0.0)
            return additive_attention.AlignmentAttention(mixer, join)
        case spec.ScaledDotScore():
            scale = d_model**-0.5 / part.temperature
            mixer = softmax_attention.SoftmaxAttention(scale, 0.0)
            return additive_attention.AlignmentAttention(mixer, join)
        case spec.GeneralScore():
            mixer = softmax_attention.SoftmaxAttention(1.0 / part.temperature, 0.0)
            # W of q · W k is applied to the keys, once for all queries.
            key = linear.Linear(d_model, d_model, bias=False)
            return additive_attention.AlignmentAttention(mixer, join, key=key)
        case spec.AdditiveScore(score_width):
            width = score_width or d_model
            # One bias is enough: the score is a function of the sum of both.
            query = linear.Linear(d_model, width)
            key = linear.Linear(d_model, width, bias=False)
            additive = additive_attention.AdditiveAttention(width, part.temperature)
            return additive_attention.AlignmentAttention(additive, join, query, key)
        case _:
            assert_never(part.score)


def _conv_units(part: spec.Convolutional, d_model: int) -> list[convolutional.Unit]:
    kind: type[convolutional.Unit] = convolutional.BottleneckUnit
    if isinstance(part.unit, spec.GatedUnit):
        kind = convolutional.GatedUnit
    units = []
    for i in range(part.layers):
        dilation = part.unit.dilations[i % len(part.unit.dilations)]
        units.append(kind(d_model, part.unit.kernel, dilation, part.dropout))
    return units


def _conv_norm(part: spec.Convolutional, d_model: int) -> norm.Norm | None:
    """The norm after the last unit: bottleneck units normalize their inputs, not their output."""
    if isinstance(part.unit, spec.BottleneckUnit):
        return norm.LayerNorm(d_model, 1e-5)
    return None


# ------------------------------------------------------------------ stacks and blocks


class _Shared(NamedTuple):
    """What all layers of a stack share: its spec, positions, and Linformer's projections."""

    stack: spec.Stack
    position: position_terms.StackPosition | None
    self_lengths: linformer.LengthProjection | None
    cross_lengths: linformer.LengthProjection | None


def _stack(part: spec.Stack, d_model: int) -> stack.Stack:
    position = _stack_position(part, d_model)
    self_lengths = _length_projection(part.block.attention, shared=True)
    cross_lengths = _length_projection(part.block.cross, shared=True)
    # One object for all blocks: what it holds is shared by reference.
    shared = _Shared(part, position, self_lengths, cross_lengths)
    blocks = [_block(one, shared, d_model) for one in part.unique_blocks]
    final = _norm(part.final, part.width(d_model)) if part.final else None
    pattern = _pattern(part.pattern)
    segment_length = _segment_length(part)
    if part.beside is not None:
        layer = _conv_layer(part.beside, d_model)
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
    )


def _segment_length(part: spec.Stack) -> int | None:
    """How many positions layers have room for before those of a segment."""
    if part.memory is None or part.compressed is None:
        return part.memory
    # Up to factor − 1 old positions wait until there are enough of them to compress.
    return part.memory + part.compressed.places + part.compressed.factor - 1


def _universal(part: spec.Universal, d_model: int) -> universal_transformer.Universal:
    return universal_transformer.Universal(
        d_model, timing=part.timing, halts=part.halts, least=part.least, cost=part.cost
    )


def _conv_layer(part: spec.ConvLayer, d_model: int) -> conv_layer.ConvLayer:
    layer_norm = _norm(part.norm, d_model)
    return conv_layer.ConvLayer(
        d_model, part.width, part.groups, part.activation, layer_norm, part.dropout
    )


def _block(part: spec.Block, shared: _Shared, d_model: int) -> block.AnyBlock:
    self_attention = _self_attention(part.attention, shared, d_model)
    cross = None
    if part.cross is not None:
        cross = _cross_attention(part.cross, shared, d_model)
    feed_forward = _feedforward(part.feedforward, d_model)
    sublayers = 3 if part.cross else 2  # one norm for each
    norms = [_norm(part.norm, d_model) for _ in range(sublayers)]
    match part.residual:
        case spec.PostNorm():
            post_norm = [residual.PostNorm(norm, part.dropout) for norm in norms]
            connections = residual.SequentialResidual(list(post_norm))
            return block.Block(self_attention, cross, feed_forward, connections)
        case spec.PreNorm():
            pre_norm = [residual.PreNorm(norm, part.dropout) for norm in norms]
            connections = residual.SequentialResidual(list(pre_norm))
            return block.Block(self_attention, cross, feed_forward, connections)
        case spec.Reversible(gives):
            streams = reversible.ReversibleResidual(norms, part.dropout, gives)
            return reversible.ReversibleBlock(self_attention, cross, feed_forward, streams)
        case spec.Parallel(count):
            parallel = residual.ParallelResidual(norms[:count], part.dropout)
            return block.ParallelBlock(self_attention, feed_forward, parallel)
        case _:
            assert_never(part.residual)


def _norm(part: spec.Norm, width: int) -> norm.Norm:
    match part:
        case spec.LayerNorm(eps, bias):
            return norm.LayerNorm(width, eps, bias)
        case spec.RMSNorm(eps, offset):
            return norm.RMSNorm(width, eps, offset)
        case _:
            assert_never(part)


def _feedforward(part: spec.PositionWise, d_model: int) -> block.PositionWise:
    match part:
        case spec.FeedForward() | spec.GatedFeedForward():
            return _dense_feedforward(part, d_model)
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


# ------------------------------------------------------------------ positions and masks


def _stack_position(part: spec.Stack, d_model: int) -> position_terms.StackPosition | None:
    match part.position:
        case None | spec.RelativeKeys() | spec.RelativeSinusoids():
            return None  # the last two have weights in each layer: see _layer_position
        case spec.Rope(base, share, pairs, scaling):
            # d of Su et al.; partial rotation (GPT-NeoX, GPT-J) leaves the other dimensions alone.
            dimensions = int(part.block.attention.d_k * share)
            frequencies = rotary.rope_frequencies(dimensions, base)
            return rotary.Rope(_scaled_frequencies(frequencies, scaling), pairs)
        case spec.T5Bias(count, distance):
            # Decoders need no buckets for later keys.
            both_ways = not spec.is_causal(part.pattern)
            heads = part.block.attention.heads
            return relative_position.T5Bias(heads, count, distance, both_ways)
        case spec.Alibi():
            return relative_position.Alibi(part.block.attention.heads)
        case spec.RepeatedBlockBias(size, times, length):
            return relative_position.RepeatedBlockBias(size, times, length)
        case spec.Disentangled(distance, buckets, terms, table_norm, dropout):
            both = ("c2p", "p2c") if terms == "both" else (terms,)
            normed = _norm(table_norm, d_model) if table_norm else None
            return relative_position.Disentangled(d_model, distance, buckets, both, normed, dropout)
        case _:
            own_attention = part.block.attention
            causal = spec.is_causal(part.pattern)
            sizes = spec.PositionSizes(d_model, own_attention.heads, own_attention.d_k, causal)
            own_position: position_terms.Position = part.position.build(sizes)
            return own_position


def _layer_position(
    part: spec.StackPosition | None, attention_spec: spec.Attention, d_model: int
) -> relative_position.LayerPosition | None:
    match part:
        case spec.RelativeKeys(distance):
            return relative_position.RelativeKeys(attention_spec.d_k, distance)
        case spec.RelativeSinusoids():
            heads = attention_spec.heads
            return relative_position.RelativeSinusoids(d_model, heads, attention_spec.d_k)
        case _:
            return None


def _scaled_frequencies(frequencies: Tensor, scaling: spec.RopeScaling | None) -> Tensor:
    match scaling:
        case None:
            return frequencies
        case spec.LinearScaling(factor):
            return frequencies / factor
        case spec.BandedScaling(factor, low, high, length):
            return rotary.banded_frequencies(frequencies, factor, low, high, length)
        case _:
            assert_never(scaling)


def _pattern(part: spec.MaskPattern) -> mask.MaskPattern:
    match part:
        case spec.FullMask():
            return mask.FullMask()
        case spec.CausalMask(window):
            return mask.CausalMask(window)
        case spec.WindowMask(reach):
            return mask_patterns.DilatedMask(reach)  # with dilation 1
        case spec.DilatedMask(reach, step):
            return mask_patterns.DilatedMask(reach, step)
        case spec.StridedMask(stride):
            return mask_patterns.StridedMask(stride)
        case spec.BlockLocalMask(block_size, neighbours):
            return mask_patterns.BlockLocalMask(block_size, neighbours)
        case spec.GlobalMask(first, last, block_size):
            return mask_patterns.GlobalMask(first, last, block_size)
        case spec.RandomBlockMask(block_size, count, seed, drawn):
            return mask_patterns.RandomBlockMask(block_size, count, seed, drawn == "before")
        case _:
            return _combined_pattern(part)


def _combined_pattern(part: spec.MaskPattern) -> mask.MaskPattern:
    match part:
        case spec.LongerThan(length, inner):
            return mask_patterns.LongerThan(length, _pattern(inner))
        case spec.And(one, other):
            return _pattern(one) & _pattern(other)
        case spec.Or(one, other):
            return _pattern(one) | _pattern(other)
        case spec.Not(inner):
            return ~_pattern(inner)
        case _:
            raise AssertionError(part)


# ------------------------------------------------------------------ attention


def _self_attention(part: spec.Attention, shared: _Shared, d_model: int) -> attention.Attention:
    relative = _layer_position(shared.stack.position, part, d_model)
    compression = _compression(shared.stack, d_model)
    mixer = _mixer(part, _scale(part, shared.position), shared.self_lengths)
    sizes = (d_model, part.heads, part.key_heads, part.d_k, part.d_v, part.bias)
    if part.projection == "global":
        assert isinstance(mixer, softmax_attention.SoftmaxAttention)
        # Longformer's query_global, key_global and value_global.
        global_projection = projection.SelfProjection(*sizes)
        local_projection = projection.SelfProjection(*sizes)
        return global_attention.GlobalTokenAttention(
            local_projection, mixer, _output_projection(part, d_model), global_projection
        )
    project: projection.Projection
    if part.projection == "shared":
        project = projection.SharedProjection(*sizes)
    else:
        project = projection.SelfProjection(*sizes)
    output = _output_projection(part, d_model)
    if shared.stack.memory is not None:
        return segment_attention.SegmentAttention(project, mixer, output, relative, compression)
    rope = shared.position if isinstance(shared.position, rotary.Rope) else None
    return attention.Attention(project, mixer, output, rope, relative)


def _cross_attention(part: spec.Attention, shared: _Shared, d_model: int) -> attention.Attention:
    # Positions of the stack concern its own sequence: they do not act on cross-attention.
    mixer = _mixer(part, _scale(part, None), shared.cross_lengths)
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
        terms += len(position.terms)
    return (terms * part.d_k) ** -0.5


def _compression(part: spec.Stack, d_model: int) -> compressive_memory.CompressiveMemory | None:
    if part.compressed is None or part.memory is None:
        return None
    kind = part.compressed.function
    factor = part.compressed.factor
    function: compressive_memory.ConvCompression | compressive_memory.PoolCompression
    if kind == "convolution":
        function = compressive_memory.ConvCompression(d_model, factor)
    else:
        function = compressive_memory.PoolCompression(kind)
    return compressive_memory.CompressiveMemory(
        function, d_model, recent=part.memory, length=part.compressed.places, factor=factor
    )


def _mixer(
    part: spec.Attention, scale: float, lengths: linformer.LengthProjection | None
) -> nn.Module:
    match part.mixer:
        case spec.SoftmaxAttention(dropout, top):
            return softmax_attention.SoftmaxAttention(scale, dropout, top=top)
        case spec.LinearAttention(features):
            return linear_attention.LinearAttention(_features(features, part.d_k, scale))
        case spec.Linformer(dropout=dropout):
            lengths = lengths or _length_projection(part)
            assert lengths is not None
            return linformer.Linformer(scale, dropout, lengths)
        case spec.ChunkedAttention(chunk, ring, before, after, dropout):
            return chunked_attention.ChunkedAttention(
                scale, chunk=chunk, around=(before, after), ring=_ring(ring), dropout=dropout
            )
        case spec.LshAttention():
            return _lsh_attention(part, part.mixer, scale)
        case _:
            sizes = spec.AttentionSizes(part.heads, part.key_heads, part.d_k, part.d_v, scale)
            own_kernel: nn.Module = part.mixer.build(sizes)
            return own_kernel


def _features(
    part: spec.EluFeatures | spec.FavorFeatures, d_k: int, scale: float
) -> linear_attention.Features:
    match part:
        case spec.EluFeatures():
            return linear_attention.EluFeatures(d_k)
        case spec.FavorFeatures(count, seed, redraw):
            # d ln d features suffice for uniform approximation (Choromanski et al., Theorem 4).
            count = count or math.ceil(d_k * math.log(d_k)) or 1
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


def _ring(part: spec.ChunkRing | None) -> chunked_attention.ChunkRing | None:
    if part is None:
        return None
    return chunked_attention.ChunkRing(part.places, part.beyond)


def _length_projection(
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
