"""build(spec) → model: the only place that matches on kinds."""

from __future__ import annotations

import math
from typing import assert_never, overload

import torch
from torch import Tensor, nn

from regard import memory, spec
from regard.baselines import additive_attention, convolutional, memory_network, recurrent
from regard.core import (
    attention,
    block,
    chunked_attention,
    compressive_memory,
    embedding,
    feedforward,
    frontend,
    head,
    linear,
    linear_attention,
    linformer,
    lsh_attention,
    mask,
    mask_patterns,
    mixture_of_experts,
    norm,
    position,
    residual,
    reversible,
    softmax_attention,
    stack,
    universal,
)
from regard.core import (
    conv_layer as beside,
)
from regard.errors import ModelError
from regard.model import (
    Decoder,
    DecoderPart,
    DualEncoder,
    Encoder,
    EncoderDecoder,
    EncoderPart,
    MemoryNetwork,
)

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
    """Parts from a spec, with fresh random weights drawn from torch's default generator."""
    if torch.get_default_device().type == "cpu":
        memory.require(trainable(outline(model)), "this model")
    if isinstance(model, spec.DualEncoder):
        return DualEncoder(build(model.text), build(model.image), model.scale)
    if isinstance(model, spec.MemoryNetwork):
        return MemoryNetwork(
            memory_network.MemoryHops(model.vocabulary, model.d_model, model.hops, model.sentences)
        )
    d = model.d_model
    match model:
        case spec.EncoderDecoder() | spec.SequenceToSequence():
            target = embedding.Table(model.target.vocabulary, d)
            output = (
                target
                if model.share in ("all", "target")
                else embedding.Table(model.target.vocabulary, d)
            )
            return EncoderDecoder(
                source=_front_end(
                    model.source, d, target if model.share in ("all", "inputs") else None
                ),
                target=_embedding(model.target, target, d),
                encoder=_encoder_part(model),
                decoder=_decoder_part(model),
                head=_head(model.head, output, d),
                matching=isinstance(model, spec.EncoderDecoder) and model.looks == "matching",
            )
        case spec.Encoder():
            front, wide = _front_end(model.input, d), model.stack.width(d)
            table = front.table if isinstance(front, embedding.Embedding) else None
            return Encoder(
                input=front,
                stack=_stack(model.stack, d),
                pool=_pool(model.pool, wide, d) if model.pool else None,
                head=_head(model.head, _output(model, table, wide), wide)
                if model.head and table
                else None,
                labels=_labels(model.labels, model.scored) if model.labels else None,
            )
        case spec.Decoder() | spec.RecurrentDecoder():
            table = embedding.Table(model.tokens.vocabulary, model.tokens.width or d)
            wide = model.stack.width(d) if isinstance(model, spec.Decoder) else d
            return Decoder(
                tokens=_embedding(model.tokens, table, d),
                stack=_stack(model.stack, d)
                if isinstance(model, spec.Decoder)
                else _cells(model.stack, d),
                head=_head(model.head, _output(model, table, wide), wide),
            )
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


def _output(
    model: spec.Encoder | spec.Decoder | spec.RecurrentDecoder, table: embedding.Table, wide: int
) -> embedding.Table:
    if model.tied or model.head is None:
        return table
    return embedding.Table(
        len(table.weight), model.head.transform.width if model.head.transform else wide
    )


def _front_end(
    part: spec.FrontEnd, d_model: int, shared: embedding.Table | None = None
) -> frontend.FrontEnd:
    match part:
        case spec.Tokens():
            return _embedding(
                part, shared or embedding.Table(part.vocabulary, part.width or d_model), d_model
            )
        case spec.Spectrogram(mels, place, activation, dropout):
            return frontend.Spectrogram(
                mels, d_model, _input_position(place, d_model), activation, dropout
            )
        case spec.Patches():
            side = part.size // part.patch
            return frontend.Patches(
                d_model,
                position=position.LearnedPosition(d_model, part.positions)
                if part.position == "learned"
                else position.Sinusoidal2D(d_model, side, part.extras),
                size=part.size,
                patch=part.patch,
                channels=part.channels,
                extras=part.extras,
                bias=part.bias,
                norm=_norm(part.norm, d_model) if part.norm else None,
                dropout=part.dropout,
            )
        case spec.Waveform():
            channels = part.convolutions[-1].channels
            return frontend.Waveform(
                _convolutions(part),
                linear.Linear(channels, d_model),
                frontend.ConvPosition(
                    d_model, part.position.kernel, part.position.groups, part.activation
                ),
                activation=part.activation,
                features=_norm(part.features, channels),
                project_dropout=part.project_dropout,
                norm=_norm(part.norm, d_model) if part.norm else None,
                dropout=part.dropout,
                masked=part.masked,
            )
        case _:
            assert_never(part)


def _convolutions(part: spec.Waveform) -> list[frontend.Convolution]:
    made, inputs = [], 1
    for each in part.convolutions:
        made.append(
            frontend.Convolution(
                inputs,
                each.channels,
                kernel=each.kernel,
                stride=each.stride,
                bias=each.bias,
                norm=_channel_norm(each.norm, each.channels),
            )
        )
        inputs = each.channels
    return made


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
    width, beside = part.width or d_model, None
    if isinstance(part.position, spec.ConcatenatedPosition):
        beside = position.Sinusoidal(part.position.width, part.position.order, part.position.base)
    whole = width + (beside.d_model if beside else 0)
    return embedding.Embedding(
        table,
        None if beside else _input_position(part.position, width),
        scale=part.scale,
        dropout=part.dropout,
        segments=embedding.Table(part.segments, width) if part.segments else None,
        norm=_norm(part.norm, whole) if part.norm else None,
        project=linear.Linear(whole, d_model) if part.width or beside else None,
        beside=beside,
    )


def _input_position(
    part: spec.InputPosition | None, width: int
) -> (
    position.Sinusoidal
    | position.LearnedPosition
    | position.FixedPosition
    | position.AxialPosition
    | None
):
    match part:
        case None:
            return None
        case spec.Sinusoidal(order, base):
            return position.Sinusoidal(width, order, base)
        case spec.LearnedPosition(length, offset):
            return position.LearnedPosition(width, length, offset)
        case spec.FixedPosition(length):
            return position.FixedPosition(width, length)
        case spec.AxialPosition(shape, widths):
            if sum(widths) != width:
                raise ModelError(
                    f"axes of widths {widths} do not add up to {width}", "correct one of them"
                )
            return position.AxialPosition(shape, widths, part.length)
        case spec.ConcatenatedPosition():
            raise ModelError("only tokens have positions beside them", "add sinusoids instead")
        case _:
            assert_never(part)


def _head(part: spec.LMHead, table: embedding.Table, d_model: int) -> head.LMHead:
    transform = None
    if part.transform is not None:
        width = part.transform.width
        transform = head.HeadTransform(
            d_model, width, part.transform.activation, _norm(part.transform.norm, width)
        )
    return head.LMHead(table, part.bias, part.scale, transform)


def _pool(part: spec.Pool, wide: int, d_model: int) -> head.Pool:
    which, end = (
        ("end", part.which.token) if isinstance(part.which, spec.EndToken) else (part.which, None)
    )
    norm = _norm(part.norm, wide) if part.norm else None
    return head.Pool(
        d_model,
        which,
        part.activation,
        part.dropout,
        end=end,
        norm=norm,
        width=part.width,
        wide=wide,
    )


def _labels(
    part: spec.ClassifierHead | spec.DistilledHead, d_model: int
) -> head.ClassifierHead | head.DistilledHead:
    match part:
        case spec.ClassifierHead(count, _, hidden, bias, dropout):
            return head.ClassifierHead(
                d_model, count, each=part.each, hidden=hidden, bias=bias, dropout=dropout
            )
        case spec.DistilledHead(count, voters):
            return head.DistilledHead(d_model, count, voters)
        case _:
            assert_never(part)


def _encoder_part(model: spec.EncoderDecoder | spec.SequenceToSequence) -> EncoderPart:
    part, d = model.encoder, model.d_model
    match part:
        case spec.Stack():
            return _stack(part, d)
        case spec.Recurrent(cell, layers, bidirectional, _, dropout):
            return recurrent.RecurrentEncoder(cell, d, layers, dropout, backwards=bidirectional)
        case spec.Convolutional():
            return convolutional.ConvolutionalEncoder(_units(part, d), _last_norm(part, d))
        case _:
            assert_never(part)


def _decoder_part(model: spec.EncoderDecoder | spec.SequenceToSequence) -> DecoderPart:
    part, d = model.decoder, model.d_model
    match part:
        case spec.Stack():
            return _stack(part, d)
        case spec.Recurrent(cell, layers, _, looks, dropout):
            halves = isinstance(model.encoder, spec.Recurrent) and model.encoder.bidirectional
            return recurrent.RecurrentDecoder(
                cell, d, layers, dropout,
                bridge=recurrent.Bridge(d, layers, halves=halves, cell=cell == "lstm"),
                before=_looking(looks, d) if isinstance(looks, spec.BahdanauAttention) else None,
                after=_looking(looks, d) if isinstance(looks, spec.LuongAttention) else None,
                feeding=isinstance(looks, spec.LuongAttention) and looks.feeding,
            )  # fmt: skip
        case spec.Convolutional():
            glances = (
                [convolutional.ConvAttention(d) for _ in range(part.layers)]
                if part.sees == "attention"
                else []
            )
            aligned = linear.Linear(2 * d, d) if part.sees == "aligned" else None
            return convolutional.ConvolutionalDecoder(
                _units(part, d), _last_norm(part, d), glances, aligned
            )
        case _:
            assert_never(part)


def _cells(part: spec.Recurrent, d_model: int) -> recurrent.RecurrentDecoder:
    """Those of a language model, which starts from nothing."""
    return recurrent.RecurrentDecoder(part.cell, d_model, part.layers, part.dropout)


def _units(part: spec.Convolutional, d_model: int) -> list[convolutional.Unit]:
    kind = (
        convolutional.GatedUnit
        if isinstance(part.unit, spec.GatedUnit)
        else convolutional.BottleneckUnit
    )
    dilations = part.unit.dilations
    return [
        kind(d_model, part.unit.kernel, dilations[i % len(dilations)], part.dropout)
        for i in range(part.layers)
    ]


def _last_norm(part: spec.Convolutional, d_model: int) -> norm.Norm | None:
    return norm.LayerNorm(d_model, 1e-5) if isinstance(part.unit, spec.BottleneckUnit) else None


def _looking(
    part: spec.BahdanauAttention | spec.LuongAttention, d_model: int
) -> additive_attention.AlignmentAttention:
    join = linear.Linear(2 * d_model, d_model)
    match part.score:
        case spec.DotScore():
            return additive_attention.AlignmentAttention(
                softmax_attention.SoftmaxAttention(1.0 / part.temperature, 0.0), join
            )
        case spec.ScaledDotScore():
            return additive_attention.AlignmentAttention(
                softmax_attention.SoftmaxAttention(d_model**-0.5 / part.temperature, 0.0), join
            )
        case spec.GeneralScore():
            product = softmax_attention.SoftmaxAttention(1.0 / part.temperature, 0.0)
            return additive_attention.AlignmentAttention(
                product, join, key=linear.Linear(d_model, d_model, bias=False)
            )
        case spec.AdditiveScore(given):
            width = given or d_model
            query, key = linear.Linear(d_model, width), linear.Linear(d_model, width, bias=False)
            return additive_attention.AlignmentAttention(
                additive_attention.AdditiveAttention(width, part.temperature), join, query, key
            )
        case _:
            assert_never(part.score)


def _stack(part: spec.Stack, d_model: int) -> stack.Stack:
    place = _stack_position(part, d_model)
    lengths = [_lengths(each, shared=True) for each in (part.block.attention, part.block.cross)]
    blocks = [_block(one, part, d_model, place, lengths) for one in part.own]
    final = _norm(part.final, part.width(d_model)) if part.final else None
    other = _beside(part.beside, d_model) if part.beside else None
    return stack.Stack(
        blocks, part.layers, final, _pattern(part.pattern), place,
        beside=other, dropout=part.dropout, memory=_carried(part), universal=_universal(part.universal, d_model),
    )  # fmt: skip


def _carried(part: spec.Stack) -> int | None:
    """How many places layers have room for before those of a segment."""
    more = part.compressed
    return (
        part.memory
        if part.memory is None or more is None
        else part.memory + more.places + more.factor - 1
    )


def _compression(part: spec.Stack, d_model: int) -> compressive_memory.CompressiveMemory | None:
    if part.compressed is None or part.memory is None:
        return None
    kind, factor = part.compressed.function, part.compressed.factor
    return compressive_memory.CompressiveMemory(
        compressive_memory.ConvCompression(d_model, factor)
        if kind == "convolution"
        else compressive_memory.PoolCompression(kind),
        d_model,
        recent=part.memory,
        kept=part.compressed.places,
        factor=factor,
    )


def _universal(part: spec.Universal | None, d_model: int) -> universal.Universal | None:
    if part is None:
        return None
    return universal.Universal(
        d_model, timing=part.timing, halts=part.halts, least=part.least, cost=part.cost
    )


def _beside(part: spec.ConvLayer, d_model: int) -> beside.ConvLayer:
    norm = _norm(part.norm, d_model)
    return beside.ConvLayer(d_model, part.width, part.groups, part.activation, norm, part.dropout)


def _stack_position(part: spec.Stack, d_model: int) -> position.StackPosition | None:
    match part.position:
        case None | spec.RelativeKeys() | spec.RelativeSinusoids():
            return None
        case spec.Rope(base, share, pairs, scaling):
            dimensions = int(part.block.attention.d_k * share)
            return position.Rope(
                _scaled(position.rope_frequencies(dimensions, base), scaling), pairs
            )
        case spec.T5Bias(count, distance):
            both_ways = not spec.is_causal(part.pattern)
            return position.T5Bias(part.block.attention.heads, count, distance, both_ways)
        case spec.Alibi():
            return position.Alibi(part.block.attention.heads)
        case spec.RepeatedBlockBias(size, times, length):
            return position.RepeatedBlockBias(size, times, length)
        case spec.Disentangled(distance, buckets, terms, norm, dropout):
            both = ("c2p", "p2c") if terms == "both" else (terms,)
            normed = _norm(norm, d_model) if norm else None
            return position.Disentangled(d_model, distance, buckets, both, normed, dropout)
        case _:
            assert_never(part.position)


def _layer_position(
    place: spec.StackPosition | None, part: spec.Attention, d_model: int
) -> position.LayerPosition | None:
    match place:
        case spec.RelativeKeys(distance):
            return position.RelativeKeys(part.d_k, distance)
        case spec.RelativeSinusoids():
            return position.RelativeSinusoids(d_model, part.heads, part.d_k)
        case _:
            return None


def _scaled(frequencies: Tensor, scaling: spec.RopeScaling | None) -> Tensor:
    match scaling:
        case None:
            return frequencies
        case spec.LinearScaling(factor):
            return frequencies / factor
        case spec.BandedScaling(factor, low, high, length):
            return position.banded(frequencies, factor, low, high, length)
        case _:
            assert_never(scaling)


def _pattern(part: spec.MaskPattern) -> mask.MaskPattern:
    match part:
        case spec.FullMask():
            return mask.FullMask()
        case spec.CausalMask(window):
            return mask.CausalMask(window)
        case spec.WindowMask(reach):
            return mask_patterns.DilatedMask(reach)
        case spec.DilatedMask(reach, step):
            return mask_patterns.DilatedMask(reach, step)
        case spec.StridedMask(stride):
            return mask_patterns.StridedMask(stride)
        case spec.BlockLocalMask(size, neighbours):
            return mask_patterns.BlockLocalMask(size, neighbours)
        case spec.GlobalMask(first, last, size):
            return mask_patterns.GlobalMask(first, last, size)
        case spec.LongerThan(length, inner):
            return mask_patterns.LongerThan(length, _pattern(inner))
        case spec.RandomBlockMask(size, count, seed, drawn):
            return mask_patterns.RandomBlockMask(size, count, seed, drawn == "before")
        case spec.And(one, other):
            return _pattern(one) & _pattern(other)
        case spec.Or(one, other):
            return _pattern(one) | _pattern(other)
        case spec.Not(inner):
            return ~_pattern(inner)
        case _:
            assert_never(part)


def _block(
    part: spec.Block,
    whole: spec.Stack,
    d_model: int,
    place: position.StackPosition | None,
    lengths: list[linformer.LengthProjection | None],
) -> block.Block:
    """`place` and `lengths` are what all layers of the `whole` stack share: positions, and of self- and cross-attention
    each."""
    relative = _layer_position(whole.position, part.attention, d_model)
    compression = _compression(whole, d_model)
    own = (
        attention.SharedProjection
        if part.attention.projection == "shared"
        else attention.SelfProjection
    )
    return block.Block(
        attention=_attention(
            part.attention, d_model, own, lengths[0], place, relative, compression
        ),
        cross=_attention(part.cross, d_model, attention.CrossProjection, lengths[1])
        if part.cross
        else None,
        feedforward=_feedforward(part.feedforward, d_model),
        residual=_residual(part, d_model),
    )


def _residual(part: spec.Block, d_model: int) -> block.Scheme:
    sublayers = 3 if part.cross else 2
    norms = [_norm(part.norm, d_model) for _ in range(sublayers)]
    match part.residual:
        case spec.PostNorm():
            return residual.SequentialResidual(
                [residual.PostNorm(norm, part.dropout) for norm in norms]
            )
        case spec.PreNorm():
            return residual.SequentialResidual(
                [residual.PreNorm(norm, part.dropout) for norm in norms]
            )
        case spec.Reversible(gives):
            return reversible.ReversibleResidual(norms, part.dropout, gives)
        case spec.Parallel(count):
            return residual.ParallelResidual(norms[:count], part.dropout)
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


def _attention(
    part: spec.Attention,
    d_model: int,
    projection: type[attention.Projection],
    lengths: linformer.LengthProjection | None,
    place: position.StackPosition | None = None,
    relative: position.LayerPosition | None = None,
    compression: compressive_memory.CompressiveMemory | None = None,
) -> attention.Attention:
    terms = 1 + len(place.terms) if isinstance(place, position.Disentangled) else 1
    scale = 1.0 if part.projection == "shared" else (terms * part.d_k) ** -0.5
    widths = (d_model, part.heads, part.key_heads, part.d_k, part.d_v, part.bias)
    mixer, everywhere = _mixer(part, scale if part.scale is None else part.scale, lengths), None
    if part.projection == "global":
        assert isinstance(mixer, softmax_attention.SoftmaxAttention)
        everywhere = attention.GlobalAttention(attention.SelfProjection(*widths), mixer)
    return attention.Attention(
        projection(*widths),
        mixer,
        linear.Linear(part.heads * part.d_v, d_model, bias="o" in part.bias),
        place if isinstance(place, position.Rope) else None,
        relative,
        everywhere,
        compression,
    )


def _mixer(
    part: spec.Attention, scale: float, lengths: linformer.LengthProjection | None
) -> attention.Mixer:
    match part.mixer:
        case spec.SoftmaxAttention(dropout, top):
            return softmax_attention.SoftmaxAttention(scale, dropout, top=top)
        case spec.LinearAttention(spec.EluFeatures()):
            return linear_attention.LinearAttention(linear_attention.EluFeatures(part.d_k))
        case spec.LinearAttention(spec.FavorFeatures(count, seed, redraw)):
            count = count or math.ceil(part.d_k * math.log(part.d_k)) or 1
            return linear_attention.LinearAttention(
                linear_attention.FavorFeatures(part.d_k, count, scale, seed, redraw)
            )
        case spec.Linformer(dropout=dropout):
            own = lengths or _lengths(part)
            assert own is not None
            return linformer.Linformer(scale, dropout, own)
        case spec.ChunkedAttention(chunk, ring, before, after, dropout):
            return chunked_attention.ChunkedAttention(
                scale, chunk=chunk, around=(before, after), ring=_ring(ring), dropout=dropout
            )
        case spec.LshAttention(buckets, chunk, rounds, before, after, seed, dropout, around):
            limit = buckets.limit if isinstance(buckets, spec.AutoBuckets) else 0
            return lsh_attention.LshAttention(
                part.d_k, part.heads, scale, buckets=part.mixer.factors, limit=limit, chunk=chunk, rounds=rounds,
                around=(before, after), ring=_ring(around), seed=seed, dropout=dropout,
            )  # fmt: skip
        case _:
            raise AssertionError(part.mixer)


def _ring(part: spec.ChunkRing | None) -> chunked_attention.ChunkRing | None:
    return None if part is None else chunked_attention.ChunkRing(part.places, part.beyond)


def _lengths(
    part: spec.Attention | None, *, shared: bool = False
) -> linformer.LengthProjection | None:
    """The projections of one layer, or those that all layers share; None where there are none such."""
    if (
        part is None
        or not isinstance(part.mixer, spec.Linformer)
        or (part.mixer.share == "layers") != shared
    ):
        return None
    heads = part.key_heads if part.mixer.share == "none" else 1
    return linformer.LengthProjection(
        part.mixer.length, part.mixer.rank, heads, values=part.mixer.share in ("none", "heads")
    )


def _feedforward(part: spec.PositionWise, d_model: int) -> block.PositionWise:
    match part:
        case spec.FeedForward(d_ff, activation, dropout, bias):
            return feedforward.FeedForward(d_model, d_ff, activation, dropout, bias)
        case spec.GatedFeedForward(d_ff, activation, dropout, bias):
            return feedforward.GatedFeedForward(d_model, d_ff, activation, dropout, bias)
        case spec.MixtureOfExperts(count, inner, top, capacity, balance):
            made = [_feedforward(inner, d_model) for _ in range(count)]
            return mixture_of_experts.MixtureOfExperts(
                d_model,
                made,  # type: ignore[arg-type]
                top=top,
                capacity=capacity,
                balance=balance,
            )
        case _:
            assert_never(part)
