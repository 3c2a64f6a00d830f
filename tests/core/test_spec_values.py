"""Every field of every part of a spec, with values that are wrong there: answered in words."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import resource
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from regard import spec
from regard.builder import build
from regard.spec.serialization import _KINDS
from regard.spec.validation import Bounds, type_hints
from regard.system import memory
from regard.system.errors import ModelError, RegardError

WIDTH = 16
TOKENS = spec.Tokens(20)
ATTENTION = spec.Attention(2, 8, 8)
FEEDFORWARD = spec.FeedForward(8)
BLOCK = spec.Block(ATTENTION, FEEDFORWARD)
STACK = spec.Stack.of(2, BLOCK)
CAUSAL = spec.Stack.of(2, BLOCK, spec.CausalMask())
CROSS = spec.Stack.of(2, spec.Block(ATTENTION, FEEDFORWARD, ATTENTION), spec.CausalMask())
PATCHES = spec.Patches(16, 4)
RING = spec.ChunkRing(8, 4)
CONVOLUTION = spec.Convolution(8, 3, 2)
WAVEFORM = spec.Waveform((CONVOLUTION,), spec.ConvPosition(4, 4))
WINDOWS = spec.SeriesPatches(16, 2, (spec.TimeScale(4, 2),))
LAGS = spec.LaggedValues(8, 2, (1, 2))
STAGES = spec.Stages(4, 2, (1, 1))
STAGED = spec.ResidualStages((8, 12), (1, 1))
SEEING = spec.Block(ATTENTION, FEEDFORWARD, position=spec.AddedPosition())
CLIPS = spec.Tubelets(16, 4, position="learned", extras=1, frames=2)
TUBELETS = spec.Tubelets(16, 4, position="sinusoidal", extras=0, frames=2)
EPISODES = spec.Trajectories(3, 2, 9, positions=4)
PREDICTOR = spec.VariancePredictor(1, 8)
ADAPTOR = spec.VarianceAdaptor(PREDICTOR, spec.Variance(PREDICTOR), spec.Variance(PREDICTOR))
VOCODER = spec.HifiGan(8, 8, (2,), (4,), (3,), ((1,),))
IMAGES = spec.Encoder(WIDTH, PATCHES, STACK, (spec.Pool(width=8),))
TEXTS = spec.Encoder(WIDTH, TOKENS, STACK, (spec.Pool(width=8),))


# ------------------------------------------------------------------ a model around each part


def encoder(**parts: Any) -> spec.Encoder:
    given: dict[str, Any] = {"d_model": WIDTH, "input": TOKENS, "stack": STACK}
    return spec.Encoder(**given | parts)


def detector(**parts: Any) -> spec.EncoderDecoder:
    given: dict[str, Any] = {
        "d_model": WIDTH,
        "source": spec.FeatureMap(PATCHES, WIDTH),
        "target": spec.ObjectQueries(3),
        "encoder": spec.Stack.of(1, SEEING),
        "decoder": spec.Stack.of(1, dataclasses.replace(SEEING, cross=ATTENTION)),
        "heads": (spec.DetectionHead(2),),
        "share": "none",
    }
    return spec.EncoderDecoder(**given | parts)


def policy(**parts: Any) -> spec.Encoder:
    return encoder(**{"input": EPISODES, "stack": CAUSAL} | parts)


def of_block(**parts: Any) -> spec.Encoder:
    block = dataclasses.replace(BLOCK, **parts)
    return encoder(stack=spec.Stack.of(2, block))


def of_scheme(part: Any) -> spec.Encoder:
    return encoder(stack=dataclasses.replace(STACK, scheme=part))


def of_attention(**parts: Any) -> spec.Encoder:
    return of_block(attention=dataclasses.replace(ATTENTION, **parts))


def decoder(**parts: Any) -> spec.Decoder:
    return spec.Decoder(WIDTH, TOKENS, dataclasses.replace(CAUSAL, **parts))


def of_pattern(part: Any) -> spec.Encoder:
    return of_block(pattern=part)


def of_input_position(part: Any) -> spec.Encoder:
    return encoder(input=spec.Tokens(20, part))


def of_lsh(part: Any) -> spec.Encoder:
    return of_attention(mixer=part, projection="shared")


def translator(encoder: Any, decoder: Any) -> spec.SequenceToSequence:
    return spec.SequenceToSequence(WIDTH, TOKENS, TOKENS, encoder, decoder)


def recurrent(attention: Any) -> spec.SequenceToSequence:
    return translator(spec.Recurrent("gru"), spec.Recurrent("gru", looks=attention))


def of_score(part: Any) -> spec.SequenceToSequence:
    return recurrent(spec.LuongAttention(part))


def convolutional(unit: Any) -> spec.SequenceToSequence:
    decoder = spec.Convolutional(2, unit, sees="attention")
    return translator(spec.Convolutional(2, unit), decoder)


def of_graph(**parts: Any) -> spec.Encoder:
    return encoder(input=spec.NodeFeatures(4), stack=STACK.with_blocks(**parts))


def of_windows(**parts: Any) -> spec.Encoder:
    return encoder(input=dataclasses.replace(WINDOWS, **parts), heads=(spec.ForecastHead(4),))


def of_lags(**parts: Any) -> spec.SeriesEncoderDecoder:
    values = dataclasses.replace(LAGS, **parts)
    return spec.SeriesEncoderDecoder(WIDTH, values, STACK, CROSS, 4)


def of_series_head(part: Any) -> spec.Encoder:
    return encoder(input=WINDOWS, heads=(part,))


def of_waveform(**parts: Any) -> spec.Encoder:
    return encoder(input=dataclasses.replace(WAVEFORM, **parts))


def of_masked_windows(part: Any) -> spec.Encoder:
    return encoder(input=dataclasses.replace(WINDOWS, masking=part), heads=(spec.PatchHead(),))


def of_classifier(part: Any) -> spec.Encoder:
    return encoder(heads=(spec.Pool(), part))


def of_pool(part: Any) -> spec.Encoder:
    return encoder(heads=(part,))


def of_stages(part: Any) -> spec.Encoder:
    blocks = (BLOCK, dataclasses.replace(BLOCK, attention=spec.Attention(2, 16, 16)))
    return encoder(input=PATCHES, stack=spec.Stack(blocks, scheme=part))


def of_pixels(part: Any) -> spec.Encoder:
    hides = isinstance(part, spec.PixelShuffleHead)
    return encoder(input=dataclasses.replace(PATCHES, mask_token=hides), heads=(part,))


def pyramid(**parts: Any) -> spec.Encoder:
    given: dict[str, Any] = {
        "feedforward": spec.MixFeedForward(8),
        "input": spec.OverlapPatches(32),
        "scheme": spec.Pyramid((1, 1), (WIDTH, WIDTH), (2, 1), (3,), (2,)),
    }
    given |= parts
    block = dataclasses.replace(BLOCK, feedforward=given["feedforward"], residual=spec.PreNorm())
    stack = spec.Stack((block, block), scheme=given["scheme"])
    return spec.Encoder(WIDTH, given["input"], stack, (spec.Pool(),))


def divided(**parts: Any) -> spec.Encoder:
    given: dict[str, Any] = {"input": CLIPS, "scheme": spec.Divided(2, 16, 1)} | parts
    stack = dataclasses.replace(STACK.with_blocks(residual=spec.PreNorm()), scheme=given["scheme"])
    return spec.Encoder(WIDTH, given["input"], stack)


def of_alignments(part: Any) -> spec.Encoder:
    stack = dataclasses.replace(STACK.with_blocks(residual=spec.PreNorm()), scheme=part)
    return spec.Encoder(WIDTH, spec.Tokens(20, None, columns=4), stack)


def speaker(**parts: Any) -> spec.TextToSpeech:
    given: dict[str, Any] = {
        "d_model": WIDTH,
        "source": TOKENS,
        "encoder": STACK,
        "adaptor": ADAPTOR,
        "decoder": STACK,
        "heads": (spec.SpectrogramHead(8),),
    }
    return spec.TextToSpeech(**given | parts)


def drawing_speaker(**parts: Any) -> spec.VariationalTextToSpeech:
    given: dict[str, Any] = {
        "d_model": WIDTH,
        "source": TOKENS,
        "encoder": STACK,
        "durations": PREDICTOR,
        "flow": spec.CouplingFlow(8),
        "heads": (dataclasses.replace(VOCODER, of_latents=True),),
    }
    return spec.VariationalTextToSpeech(**given | parts)


def of_adaptor(**parts: Any) -> spec.TextToSpeech:
    return speaker(adaptor=dataclasses.replace(ADAPTOR, **parts))


def of_segments(part: Any) -> spec.Decoder:
    stack = spec.Stack.of(2, BLOCK, spec.CausalMask(), scheme=part)
    return spec.Decoder(WIDTH, spec.Tokens(20, None), stack)


def itself(model: Any) -> Any:
    return model


# A valid part of each kind, and the model that has it.
def image_reader(gated: Any, resampler: Any = None) -> spec.EncoderDecoder:
    block = spec.Block(ATTENTION, FEEDFORWARD, pattern=spec.CausalMask(), gated=gated)
    decoder = spec.Stack.of(1, block)
    return spec.EncoderDecoder(
        WIDTH, PATCHES, TOKENS, STACK, decoder, share="target", resampler=resampler
    )


CASES: list[tuple[Any, Callable[[Any], Any]]] = [
    (spec.Sinusoidal(), of_input_position),
    (spec.LearnedPosition(32), of_input_position),
    (spec.FixedPosition(32), of_input_position),
    (spec.ConcatenatedPosition(4), of_input_position),
    (spec.AxialPosition((4, 4), (8, 8), 16), of_input_position),
    (spec.Rope(), lambda part: of_block(position=part)),
    (spec.LinearScaling(2.0), lambda part: of_block(position=spec.Rope(scaling=part))),
    (
        spec.BandedScaling(8.0, 1.0, 4.0, 32),
        lambda part: of_block(position=spec.Rope(scaling=part)),
    ),
    (
        spec.YarnScaling(8.0, 32),
        lambda part: of_block(position=spec.Rope(scaling=part)),
    ),
    (spec.T5Bias(8, 16), lambda part: of_block(position=part)),
    (spec.Alibi(), lambda part: of_block(position=part)),
    (spec.Disentangled(8, 4), lambda part: of_block(position=part)),
    (spec.RepeatedBlockBias(4, 1, 8), lambda part: of_block(position=part)),
    (spec.ShortestPathBias(), lambda part: of_graph(position=part)),
    (spec.RelativeKeys(4), lambda part: of_block(position=part)),
    (spec.RelativeSinusoids(), lambda part: of_block(position=part)),
    (spec.LayerNorm(), lambda part: of_block(norm=part)),
    (spec.RMSNorm(), lambda part: of_block(norm=part)),
    (spec.BatchNorm(), lambda part: of_block(norm=part)),
    (spec.PostNorm(), lambda part: of_block(residual=part)),
    (spec.PreNorm(), lambda part: of_block(residual=part)),
    (spec.SandwichNorm(), lambda part: of_block(residual=part)),
    (spec.Parallel(), lambda part: of_block(residual=part)),
    (spec.NoResidual(), lambda part: of_block(residual=part)),
    (FEEDFORWARD, lambda part: of_block(feedforward=part)),
    (spec.GatedFeedForward(8), lambda part: of_block(feedforward=part)),
    (spec.ConvFeedForward(8), lambda part: of_block(feedforward=part)),
    (spec.MixtureOfExperts(3, FEEDFORWARD), lambda part: of_block(feedforward=part)),
    (spec.SoftmaxAttention(), lambda part: of_attention(mixer=part)),
    (spec.AdditiveAttention(), lambda part: of_attention(mixer=part)),
    (spec.EluFeatures(), lambda part: of_attention(mixer=spec.LinearAttention(part))),
    (spec.FavorFeatures(), lambda part: of_attention(mixer=spec.LinearAttention(part))),
    (spec.LinearAttention(), lambda part: of_attention(mixer=part)),
    (spec.Linformer(16, 4), lambda part: of_attention(mixer=part)),
    (RING, lambda part: of_attention(mixer=spec.ChunkedAttention(4, part))),
    (spec.ChunkedAttention(4, RING), lambda part: of_attention(mixer=part)),
    (spec.AutoBuckets(8), lambda part: of_lsh(spec.LshAttention(part))),
    (spec.LshAttention(8, 4), of_lsh),
    (ATTENTION, lambda part: of_block(attention=part)),
    (spec.FullMask(), of_pattern),
    (spec.CausalMask(), of_pattern),
    (spec.WindowMask(2), of_pattern),
    (spec.NeighbourMask(), lambda part: of_graph(pattern=part)),
    (spec.DilatedMask(2, 2), of_pattern),
    (spec.StridedMask(2), of_pattern),
    (spec.BlockLocalMask(4), of_pattern),
    (spec.GlobalMask(), of_pattern),
    (spec.RandomBlockMask(4), of_pattern),
    (spec.SentenceMask(2), of_pattern),
    (spec.LongerThan(8, spec.WindowMask(2)), of_pattern),
    (spec.And(spec.WindowMask(2), spec.CausalMask()), of_pattern),
    (spec.Or(spec.WindowMask(2), spec.GlobalMask()), of_pattern),
    (spec.Not(spec.WindowMask(2)), of_pattern),
    (BLOCK, lambda part: encoder(stack=spec.Stack((part, BLOCK)))),
    (spec.Plain(), of_scheme),
    (spec.Shared(), of_scheme),
    (spec.ConvLayer(3), of_scheme),
    (spec.Universal(), of_scheme),
    (
        spec.Reversible(),
        lambda part: encoder(
            stack=dataclasses.replace(STACK.with_blocks(residual=spec.PreNorm()), scheme=part)
        ),
    ),
    (STAGES, of_stages),
    (spec.Segments(4), of_segments),
    (spec.CompressiveMemory(4, 2), lambda part: of_segments(spec.Segments(4, part))),
    (STACK, lambda part: encoder(stack=part)),
    (TOKENS, lambda part: encoder(input=part)),
    (spec.Spectrogram(8, spec.Sinusoidal()), lambda part: encoder(input=part)),
    (PATCHES, lambda part: encoder(input=part)),
    (spec.InstanceNorm(), lambda part: of_block(norm=part)),
    (
        spec.InstanceNorm(),
        lambda part: of_waveform(convolutions=(dataclasses.replace(CONVOLUTION, norm=part),)),
    ),
    (CONVOLUTION, lambda part: of_waveform(convolutions=(part,))),
    (spec.ConvPosition(4, 4), lambda part: of_waveform(position=part)),
    (WAVEFORM, lambda part: encoder(input=part)),
    (spec.TimeScale(4, 2), lambda part: of_windows(scales=(part,))),
    (spec.RandomMasking(), of_masked_windows),
    (spec.ForecastMasking(), of_masked_windows),
    (WINDOWS, lambda part: encoder(input=part, heads=(spec.ForecastHead(4),))),
    (spec.StaticCategory(3, 2), lambda part: of_lags(categories=(part,))),
    (LAGS, lambda part: spec.SeriesEncoderDecoder(WIDTH, part, STACK, CROSS, 4)),
    (spec.NodeFeatures(4), lambda part: encoder(input=part)),
    (
        spec.FirstTokens(),
        lambda part: of_attention(projection="global", global_tokens=part),
    ),
    (
        spec.QuestionTokens(2),
        lambda part: of_attention(projection="global", global_tokens=part),
    ),
    (spec.HeadTransform(WIDTH), lambda part: encoder(heads=(spec.LMHead(transform=part),))),
    (spec.LMHead(), lambda part: encoder(heads=(part,))),
    (spec.EndToken(), lambda part: of_pool(spec.Pool(part))),
    (spec.AttentionPool(2, 8), lambda part: of_pool(spec.Pool(part))),
    (spec.Pool(), of_pool),
    (
        spec.HeadFeedForward(8),
        lambda part: of_classifier(spec.ClassifierHead(3, feedforward=part)),
    ),
    (spec.ClassifierHead(3), of_classifier),
    (
        spec.DistilledHead(3),
        lambda part: encoder(input=dataclasses.replace(PATCHES, extras=2), heads=(part,)),
    ),
    (spec.ContactHead(2), lambda part: encoder(heads=(part,))),
    (
        spec.ZeroedTokens(1),
        lambda part: encoder(input=dataclasses.replace(TOKENS, zeroed=part)),
    ),
    (spec.ContrastiveHead(), lambda part: encoder(input=WAVEFORM, heads=(part,))),
    (spec.Points(), lambda part: of_series_head(spec.ForecastHead(4, part))),
    (spec.Quantiles(), lambda part: of_series_head(spec.ForecastHead(4, part))),
    (spec.Distribution(), lambda part: of_series_head(spec.ForecastHead(4, part))),
    (spec.ForecastHead(4), of_series_head),
    (spec.PatchHead(), of_series_head),
    (spec.ChannelHead(3), of_series_head),
    (spec.DotScore(), of_score),
    (spec.ScaledDotScore(), of_score),
    (spec.GeneralScore(), of_score),
    (spec.AdditiveScore(), of_score),
    (spec.BahdanauAttention(), recurrent),
    (spec.LuongAttention(), recurrent),
    (spec.Recurrent("lstm"), lambda part: spec.RecurrentDecoder(WIDTH, TOKENS, part)),
    (spec.GatedUnit(), convolutional),
    (spec.BottleneckUnit(), convolutional),
    (
        spec.Convolutional(2),
        lambda part: translator(part, spec.Convolutional(2, sees="attention")),
    ),
    (spec.PixelDecoder(8, spec.Stack.of(1, spec.Block(ATTENTION, FEEDFORWARD))), of_pixels),
    (spec.PixelShuffleHead(4), of_pixels),
    (spec.EncoderDecoder(WIDTH, TOKENS, TOKENS, STACK, CROSS), itself),
    (spec.FeatureMap(PATCHES, WIDTH), lambda part: detector(source=part)),
    (spec.ObjectQueries(3), lambda part: detector(target=part)),
    (spec.DetectionHead(2), lambda part: detector(heads=(part,))),
    (
        spec.AddedPosition(),
        lambda part: detector(encoder=spec.Stack.of(1, dataclasses.replace(SEEING, position=part))),
    ),
    (translator(spec.Recurrent("gru"), spec.Recurrent("gru")), itself),
    (of_lags(), itself),
    (encoder(), itself),
    (spec.RecurrentEncoder(WIDTH, TOKENS, spec.Recurrent("gru")), itself),
    (decoder(), itself),
    (spec.RecurrentDecoder(WIDTH, TOKENS, spec.Recurrent("gru")), itself),
    (spec.ConvStem(16), lambda part: spec.ConvolutionalEncoder(WIDTH, part, STAGED)),
    (STAGED, lambda part: spec.ConvolutionalEncoder(WIDTH, spec.ConvStem(16), part)),
    (spec.ConvolutionalEncoder(WIDTH, spec.ConvStem(16), STAGED), itself),
    (spec.DualEncoder(TEXTS, IMAGES), itself),
    (spec.MemoryNetwork(WIDTH, 20), itself),
    (spec.MixFeedForward(8), lambda part: pyramid(feedforward=part)),
    (spec.OverlapPatches(32), lambda part: pyramid(input=part)),
    (
        spec.Pyramid((1, 1), (WIDTH, WIDTH), (2, 1), (3,), (2,)),
        lambda part: pyramid(scheme=part),
    ),
    (
        spec.MaskDecoder(3, WIDTH, STACK),
        lambda part: encoder(input=PATCHES, heads=(part,)),
    ),
    (CLIPS, lambda part: divided(input=part)),
    (spec.Divided(2, 16, 1), lambda part: divided(scheme=part)),
    (spec.Evoformer(8, ATTENTION, FEEDFORWARD), of_alignments),
    (
        spec.TubeletDecoder(8, spec.Stack.of(1, spec.Block(ATTENTION, FEEDFORWARD))),
        lambda part: encoder(input=TUBELETS, heads=(part,)),
    ),
    (EPISODES, lambda part: policy(input=part)),
    (spec.TrajectoryHead(), lambda part: policy(heads=(part,))),
    (spec.TextAndImage(TOKENS, PATCHES), lambda part: encoder(input=part)),
    (
        spec.Conformer(3),
        lambda part: of_block(residual=spec.PreNorm(), conformer=part),
    ),
    (spec.GatedCross(ATTENTION, FEEDFORWARD), lambda part: image_reader(gated=part)),
    (
        spec.Resampler(2, 1, ATTENTION, FEEDFORWARD),
        lambda part: image_reader(spec.GatedCross(ATTENTION, FEEDFORWARD), part),
    ),
    (PREDICTOR, lambda part: of_adaptor(durations=part)),
    (spec.Variance(PREDICTOR), lambda part: of_adaptor(pitch=part)),
    (ADAPTOR, lambda part: speaker(adaptor=part)),
    (spec.Voice(2, 3), lambda part: speaker(voice=part)),
    (spec.SpectrogramHead(8), lambda part: speaker(heads=(part,))),
    (VOCODER, lambda part: spec.Vocoder((part,))),
    (spec.Vocoder((VOCODER,)), itself),
    (speaker(), itself),
    (spec.StochasticDurations(), lambda part: drawing_speaker(durations=part)),
    (spec.CouplingFlow(8), lambda part: drawing_speaker(flow=part)),
    (drawing_speaker(), itself),
    (spec.LinearForecaster(16, 2, 4, moving_average=3), itself),
]

WRONG_VALUES: list[Any] = [
    *(None, True, "8", "", b"8", [1], {}, object(), math.nan, math.inf, -math.inf),
    *(-1, 0, 1, 3, 7, 0.5, -0.5, 2**31 - 1, 2**40, 10**5000, 1e-30, 1e17, 1e300),
    *((), (1,), (0,), (1, 2, 3), (3, 3), (2**31 - 1, 2**31 - 1), (None,), ((),), ("a", "b")),
    *(torch.tensor(3), torch.ones(2), spec.Rope, spec.Encoder, len),
    # Parts, most of them in a place of another union.
    *(spec.Rope(), spec.LayerNorm(), spec.FullMask(), FEEDFORWARD, ATTENTION, TOKENS, PATCHES),
    *(STACK, CROSS, spec.Recurrent("gru"), spec.Points(), spec.Pool(), spec.LMHead(), (BLOCK,)),
    *(spec.ClassifierHead(2), spec.LshAttention(8), spec.T5Bias(), spec.NeighbourMask(), encoder()),
    *(spec.Reversible("both"), spec.MixtureOfExperts(2, FEEDFORWARD), spec.BatchNorm(), STAGES),
]


@pytest.fixture(autouse=True)
def _little_memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A model of absurd sizes is refused on a large machine, too, and takes no other's memory."""
    monkeypatch.setattr(memory, "available", lambda: 10**8)
    limits = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (6 * 2**30, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_DATA, limits)


def test_every_part_has_a_case() -> None:
    assert {type(part) for part, _ in CASES} == set(_KINDS.values())


@pytest.mark.parametrize(
    ("part", "model_of"), CASES, ids=[type(part).__name__ for part, _ in CASES]
)
def test_a_wrong_value_is_refused_in_words(part: Any, model_of: Callable[[Any], Any]) -> None:
    build(model_of(part))
    for field in dataclasses.fields(part):
        for value in WRONG_VALUES:
            # Any other exception than these, from the part, from the model or from its modules,
            # fails.
            try:
                build(model_of(dataclasses.replace(part, **{field.name: value})))
            except RegardError as error:
                assert error.problem
                assert error.repair


BOUNDED = [
    (part, field.name, bounds)
    for part, _ in CASES
    for field in dataclasses.fields(part)
    for option in (type_hints(type(part))[field.name],)  # type: ignore[arg-type]
    for bounds in (getattr(option, "__metadata__", (None,))[0],)
    if isinstance(bounds, Bounds)
]


@pytest.mark.parametrize(
    ("part", "name", "bounds"),
    BOUNDED,
    ids=[f"{type(part).__name__}.{name}" for part, name, _ in BOUNDED],
)
def test_a_number_beyond_its_bounds_is_named(part: Any, name: str, bounds: Bounds) -> None:
    for value in (bounds.least - 1, 2 * bounds.most):
        with pytest.raises(
            ModelError, match=rf"\.{name} cannot be .*\n.*{re.escape(bounds.words)}"
        ):
            dataclasses.replace(part, **{name: value})


# ------------------------------------------------------------------ the same in JSON

WRONG_JSON: list[Any] = [
    *(None, True, "8", -1, [], [1], {}, {"kind": None}, {"kind": "Nope"}, {"kind": ["Rope"]}),
    *({"kind": {"kind": "Rope"}}, {"kind": "Rope"}, [{"kind": "Rope"}], {"kind": "FeedForward"}),
]


def wrong_descriptions(part: Any) -> Iterator[dict[str, Any]]:
    """The JSON values of a part, each with one mistake."""
    values = json.loads(json.dumps(spec.to_dict(part)))
    yield values | {"unknown": 1}
    yield values | {1: 1}
    for key in values:
        yield {other: value for other, value in values.items() if other != key}
        for wrong in WRONG_JSON:
            yield values | {key: wrong}


@pytest.mark.parametrize(
    ("part", "model_of"), CASES, ids=[type(part).__name__ for part, _ in CASES]
)
def test_a_wrong_description_is_refused_in_words(part: Any, model_of: Callable[[Any], Any]) -> None:
    for description in wrong_descriptions(part):
        try:
            model_of(spec.from_dict(description))
        except RegardError as error:
            assert error.problem
            assert error.repair


@pytest.mark.parametrize(
    "description", [None, 3, "Encoder", [], [1], b"", object(), {"kind": "Rope"}]
)
def test_what_describes_no_model_is_not_built(description: Any) -> None:
    with pytest.raises(ModelError, match=r"is not (a serialized spec|the spec of a model)"):
        build(spec.from_dict(description))


@pytest.mark.parametrize(
    ("description", "words"),
    [
        ({}, r"has no kind: \{\}\n.*add its class name"),
        ({"kind": "FeedForward"}, r"it has no 'd_ff'\n.*a whole number, at least 1"),
        ({"kind": "FeedForward", "d_ff": 0}, r"d_ff cannot be 0\n.*at least 1"),
        ({"kind": "Rope", "bass": 1.0}, r"no option 'bass'\n.*did you mean 'base'"),
        ({"kind": "Ropes"}, r"unknown kind 'Ropes'(.|\n)*did you mean 'Rope'"),
    ],
)
def test_the_error_says_what_to_write(description: Any, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        spec.from_dict(description)


def test_parts_inside_each_other_have_a_limit() -> None:
    description: Any = {"kind": "FullMask"}
    for _ in range(5000):
        description = {"kind": "Not", "inner": description}
    with pytest.raises(ModelError, match="nested too deeply"):
        spec.from_dict(description)
