"""Whole models from specs."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, assert_never, overload

import torch
from torch import Tensor, nn

from regard import spec
from regard.builder.front_ends import (
    build_embedding,
    build_front_end,
    build_residual_stages,
    build_step_embedding,
)
from regard.builder.heads import build_heads
from regard.builder.stacks import build_resampler, build_stack
from regard.core import linear
from regard.core.frontends import (
    embedding,
    feature_map,
    lagged_values,
    stochastic_durations,
    variance_adaptor,
)
from regard.core.heads import series_head
from regard.core.meta_parameters import are_parameters_on_meta
from regard.core.mixers.local_chunk_attention import ChunkedAttention
from regard.core.mixers.scaled_dot_product_attention import SoftmaxAttention
from regard.core.projection import CrossProjection
from regard.core.side import Side
from regard.core.stacks import coupling_flow
from regard.system import memory
from regard.system.errors import ModelError
from regard.wirings.baselines import additive_attention, convolutional, recurrent
from regard.wirings.baselines.linear_forecaster import LinearForecaster
from regard.wirings.baselines.memory_network import MemoryHops, MemoryNetwork
from regard.wirings.core_model import CoreModel
from regard.wirings.decoder import Decoder
from regard.wirings.dual_encoder import DualEncoder
from regard.wirings.encoder import Encoder
from regard.wirings.encoder_decoder import EncoderDecoder
from regard.wirings.model_variants import (
    ImageReadingDecoder,
    LayerMatchedEncoderDecoder,
    RecomputingDecoder,
)
from regard.wirings.series_encoder_decoder import SeriesEncoderDecoder
from regard.wirings.text_to_speech import TextToSpeech, Vocoder
from regard.wirings.variational_text_to_speech import VariationalTextToSpeech

if TYPE_CHECKING:
    from torch._subclasses.fake_tensor import FakeTensorMode


@overload
def build(model: spec.EncoderDecoder | spec.SequenceToSequence) -> EncoderDecoder: ...
@overload
def build(model: spec.SeriesEncoderDecoder) -> SeriesEncoderDecoder: ...
@overload
def build(model: spec.Encoder | spec.RecurrentEncoder | spec.ConvolutionalEncoder) -> Encoder: ...
@overload
def build(model: spec.Decoder | spec.RecurrentDecoder) -> Decoder: ...
@overload
def build(model: spec.DualEncoder) -> DualEncoder: ...
@overload
def build(model: spec.MemoryNetwork) -> MemoryNetwork: ...
@overload
def build(model: spec.LinearForecaster) -> LinearForecaster: ...
@overload
def build(model: spec.Model) -> CoreModel: ...
def build(model: spec.Model) -> CoreModel:
    """Builds the modules of a spec, with random weights from torch's default generator.

    Example:
        The guide "Build from parts" shows complete specs.
    """
    # The meta device needs no memory, and a GPU reports what it lacks by itself.
    if torch.get_default_device().type == "cpu" and not are_parameters_on_meta():
        stored = outline(model)
        tensors = (*stored.parameters(), *stored.buffers())  # trained or not
        memory.require(sum(tensor.numel() for tensor in tensors), "this model")
    built = _build(model)
    built.inputs = model.inputs
    return built


def _build(model: spec.Model) -> CoreModel:
    match model:
        case spec.DualEncoder():
            return DualEncoder(build(model.text), build(model.image), model.scale, model.bias)
        case spec.MemoryNetwork():
            return MemoryNetwork(MemoryHops(model))
        case spec.LinearForecaster():
            return LinearForecaster(model)
        case spec.EncoderDecoder() | spec.SequenceToSequence():
            return _encoder_decoder(model)
        case spec.SeriesEncoderDecoder():
            return _series_encoder_decoder(model)
        case spec.Encoder() | spec.RecurrentEncoder() | spec.ConvolutionalEncoder():
            return _encoder(model)
        case spec.Decoder() | spec.RecurrentDecoder():
            return _decoder(model)
        case spec.TextToSpeech():
            return _text_to_speech(model)
        case spec.VariationalTextToSpeech():
            return _variational_text_to_speech(model)
        case spec.Vocoder():
            return Vocoder(build_heads(model, 0, 0, _no_table))
        case spec.ModelSpec():  # from outside the package: it builds itself
            return model.build()
        case _:
            raise ModelError(
                f"{type(model).__name__} is not the spec of a model",
                "pass a spec.Encoder, spec.Decoder, …",
            )


def outline(model: spec.Model) -> CoreModel:
    """The model on the meta device: names and shapes without memory, no random numbers drawn."""
    try:
        with torch.device("meta"):
            return build(model)
    except (RuntimeError, OverflowError, TypeError) as error:  # more elements than 64 bits count
        raise ModelError(
            f"a model of these sizes cannot be built: {str(error).splitlines()[0]}",
            "correct the sizes of the spec or config.json",
        ) from None


def make_fake(core: nn.Module, fake: FakeTensorMode) -> None:
    """Moves a model from the meta device to the CPU without memory; what is shared stays shared."""
    replaced: dict[int, Tensor] = {}

    def on_cpu(tensor: Tensor) -> Tensor:
        if id(tensor) not in replaced:
            with fake:
                empty = torch.empty_like(tensor, device="cpu")
                if isinstance(tensor, nn.Parameter):
                    empty = nn.Parameter(empty, tensor.requires_grad)
            replaced[id(tensor)] = empty
        return replaced[id(tensor)]

    for module in core.modules():
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if tensor is not None:
                    tensors[name] = on_cpu(tensor)  # type: ignore[assignment]


def trainable(model: nn.Module) -> int:
    """The number of trainable parameters; shared ones count once."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


# ------------------------------------------------------------------ models


def _encoder_decoder(model: spec.EncoderDecoder | spec.SequenceToSequence) -> EncoderDecoder:
    d_model = model.d_model
    tables = _shared_tables(model)
    width = d_model
    project = None
    wiring = EncoderDecoder
    resampler = None
    if isinstance(model, spec.EncoderDecoder):
        width = model.encoder_width or d_model
        wiring = LayerMatchedEncoderDecoder if model.looks == "matching" else EncoderDecoder
        if model.is_gated:
            wiring = ImageReadingDecoder
        if model.resampler is not None:
            resampler = build_resampler(model.resampler, width)
        if model.maps_memory:
            project = linear.Linear(model.memory_width, d_model)
    built = wiring(
        source=build_front_end(model.source, width, tables.source),
        target=build_front_end(model.target, d_model, tables.target),
        encoder=_encoder_side(model.encoder, width),
        decoder=_decoder_side(model),
        heads=build_heads(model, d_model, d_model, lambda: tables.output),
        project=project,
    )
    if isinstance(built, ImageReadingDecoder):
        built.resampler = resampler
    if isinstance(tables.target, feature_map.Anchors):
        _look_near_anchors(built.decoder)
    return built


@torch.no_grad()
def _look_near_anchors(decoder: nn.Module) -> None:
    """Keys of cross-attention begin as queries do: where positions are alike, scores are high, so
    that a query first looks at the surroundings of its anchor."""
    for project in decoder.modules():
        if isinstance(project, CrossProjection):
            queries = project.q.weight
            project.kv.weight[: len(queries)] = queries


def _series_encoder_decoder(model: spec.SeriesEncoderDecoder) -> SeriesEncoderDecoder:
    d_model = model.d_model
    part = model.input
    head = None
    if model.output is not None:
        head = series_head.DistributionParameters(model.output.name, d_model, part.channels)
    return SeriesEncoderDecoder(
        input=lagged_values.LaggedValues(part),
        source=build_step_embedding(part, d_model, model.horizon, start=0),
        target=build_step_embedding(part, d_model, model.horizon, start=part.length),
        encoder=build_stack(model.encoder, d_model),
        decoder=build_stack(model.decoder, d_model),
        series=head,
        horizon=model.horizon,
    )


def _text_to_speech(model: spec.TextToSpeech) -> TextToSpeech:
    d_model = model.d_model
    return TextToSpeech(
        source=build_front_end(model.source, d_model),
        encoder=build_stack(model.encoder, d_model),
        adaptor=variance_adaptor.VarianceAdaptor(model.adaptor, model.voice, d_model),
        decoder=build_stack(model.decoder, d_model),
        heads=build_heads(model, d_model, d_model, _no_table),
    )


def _variational_text_to_speech(
    model: spec.VariationalTextToSpeech,
) -> VariationalTextToSpeech:
    d_model = model.d_model
    stochastic = isinstance(model.durations, spec.StochasticDurations)
    kind: Any = stochastic_durations.VoicedDurations
    if stochastic:
        kind = stochastic_durations.StochasticDurations
    voices = None
    if model.speakers and model.voice:
        voices = (model.speakers, model.voice)
    built = VariationalTextToSpeech(
        source=build_front_end(model.source, d_model),
        encoder=build_stack(model.encoder, d_model),
        prior=linear.Linear(d_model, 2 * model.flow.channels),
        durations=kind(model.durations, d_model, model.voice),
        flow=coupling_flow.CouplingFlow(model.flow, d_model, model.voice),
        heads=build_heads(model, d_model, d_model, _no_table),
        voices=voices,
    )
    built.speaking_rate = model.rate
    built.noise_scale = model.noise
    built.noise_scale_duration = model.duration_noise
    return built


def _no_table() -> embedding.Table:
    raise AssertionError("speech has no vocabulary")


def _encoder(model: spec.Encoder | spec.RecurrentEncoder | spec.ConvolutionalEncoder) -> Encoder:
    d_model = model.d_model
    front = build_front_end(model.input, d_model)
    width = model.stack.width(d_model)  # 2 · d_model where both reversible streams come out
    side = _encoder_side(model.stack, d_model)
    # The order of creation is the order of random draws: a pool comes before an untied table.
    embedded: Any = getattr(front, "table", None)  # of tokens; other front ends have none
    table = partial(_output_table, model, embedded, width)
    return Encoder(front, side, build_heads(model, d_model, width, table))


def _decoder(model: spec.Decoder | spec.RecurrentDecoder) -> Decoder:
    d_model = model.d_model
    table = embedding.Table(model.tokens.vocabulary, model.tokens.width or d_model)
    tokens = build_embedding(model.tokens, table, d_model)
    side: Side
    if isinstance(model.stack, spec.Recurrent):
        side = recurrent.RecurrentDecoder(model.stack, d_model)
    else:
        side = build_stack(model.stack, d_model)
    width = model.stack.width(d_model)
    heads = build_heads(model, d_model, width, partial(_output_table, model, table, width))
    # A text that grows is cut into chunks anew, so no KV cache would stay right.
    if any(isinstance(part, ChunkedAttention) for part in side.modules()):
        return RecomputingDecoder(tokens, side, heads)
    return Decoder(tokens, side, heads)


# ------------------------------------------------------------------ sides


def _encoder_side(
    part: spec.Stack | spec.Recurrent | spec.Convolutional | spec.ResidualStages, d_model: int
) -> Side:
    match part:
        case spec.Stack():
            return build_stack(part, d_model)
        case spec.Recurrent():
            return recurrent.RecurrentEncoder(part, d_model)
        case spec.Convolutional():
            return convolutional.ConvolutionalEncoder(part, d_model)
        case spec.ResidualStages():
            return build_residual_stages(part, d_model)
        case _:
            assert_never(part)


def _decoder_side(model: spec.EncoderDecoder | spec.SequenceToSequence) -> Side:
    part = model.decoder
    d_model = model.d_model
    match part:
        case spec.Stack():
            return build_stack(part, d_model)
        case spec.Recurrent():
            halves = isinstance(model.encoder, spec.Recurrent) and model.encoder.bidirectional
            # The order of creation is the order of random draws.
            bridge = recurrent.Bridge(part, d_model, halves=halves)
            attention = _alignment(part.looks, d_model) if part.looks else None
            return recurrent.RecurrentDecoder(part, d_model, bridge, attention)
        case spec.Convolutional():
            return convolutional.ConvolutionalDecoder(part, d_model)
        case _:
            assert_never(part)


def _alignment(
    part: spec.BahdanauAttention | spec.LuongAttention, d_model: int
) -> additive_attention.AlignmentAttention:
    join = linear.Linear(2 * d_model, d_model)  # of [context; state]
    scale = 1.0
    query = None
    key = None
    match part.score:
        case spec.DotScore():
            pass
        case spec.ScaledDotScore():
            scale = d_model**-0.5
        case spec.GeneralScore():
            # W of q · W k is applied to the keys, once for all queries.
            key = linear.Linear(d_model, d_model, bias=False)
        case spec.AdditiveScore(score_width):
            width = score_width or d_model
            # One bias is enough: the score is a function of the sum of both.
            query = linear.Linear(d_model, width)
            key = linear.Linear(d_model, width, bias=False)
            additive = additive_attention.AdditiveAttention(width, part.temperature)
            return additive_attention.AlignmentAttention(additive, join, query, key)
        case _:
            assert_never(part.score)
    mixer = SoftmaxAttention(scale / part.temperature, 0.0)
    return additive_attention.AlignmentAttention(mixer, join, query, key)


# ------------------------------------------------------------------ weight tying


def _output_table(
    model: spec.Encoder
    | spec.RecurrentEncoder
    | spec.ConvolutionalEncoder
    | spec.Decoder
    | spec.RecurrentDecoder,
    table: embedding.Table,
    width: int,
) -> embedding.Table:
    """The table of the language-model head: tied to the embedding, or one of its own."""
    if model.tied or model.head is None:
        return table
    if model.head.transform is not None:
        width = model.head.transform.width  # the transform's output is what the table multiplies
    return embedding.Table(len(table.weight), width)


# What the target and the head may have in common: a table of tokens, or the anchors of queries.
Shared = embedding.Table | feature_map.Anchors | None


class _SharedTables(NamedTuple):
    """The tables [V, D] of an encoder–decoder; two of them, or all, may be one."""

    target: Shared  # None: object queries without anchors
    output: Shared
    source: embedding.Table | None  # None: one of its own


def _shared_tables(model: spec.EncoderDecoder | spec.SequenceToSequence) -> _SharedTables:
    """One table for the target and the output, for source and target, or for all (Section 3.4)."""
    if isinstance(model.target, spec.ObjectQueries):
        anchors = None
        if model.target.anchors:
            anchors = feature_map.Anchors(model.target.count, model.feature_map.temperature)
        return _SharedTables(anchors, anchors, None)
    target = embedding.Table(model.target.vocabulary, model.d_model)
    output: embedding.Table | None = target
    if model.share not in ("all", "target") and model.head is not None:
        output = embedding.Table(model.target.vocabulary, model.d_model)
    source = target if model.share in ("all", "inputs") else None
    return _SharedTables(target, output, source)
