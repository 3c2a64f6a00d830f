"""Presets by name: every family has a size that runs, and each count is the published one or says why not."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from regard import spec
from regard.builder import build
from regard.builder.parameter_count import parameter_count
from regard.core.frontends.lagged_values import Covariates
from regard.families import folder as folders
from regard.families import presets
from regard.families.encoder_decoders import recurrent
from regard.families.presets import ALIASES, PRESET_FAMILIES, about, listing, preset
from regard.families.registry import FAMILIES as MODEL_TYPES
from regard.system.errors import SettingError

ALL = [entry.name for entry in listing()]


# --- counts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_the_count_is_the_published_one_or_has_a_reason(name: str) -> None:
    entry = about(name)
    if entry.published is None:
        assert not entry.reason
        return
    count = parameter_count(preset(name)) / 1e6
    near = abs(count - entry.published) <= presets.TOLERANCE * entry.published
    assert near != bool(entry.reason), (name, count, entry)


def test_the_rows_of_gpt_3_are_those_of_its_table() -> None:
    # Table 2.1 of Brown et al. 2020: name, millions of parameters, layers, d_model.
    table = [
        ("small", 125, 12, 768),
        ("medium", 350, 24, 1024),
        ("large", 760, 24, 1536),
        ("xl", 1300, 24, 2048),
        ("2.7b", 2700, 32, 2560),
        ("6.7b", 6700, 32, 4096),
        ("13b", 13_000, 40, 5120),
        ("175b", 175_000, 96, 12_288),
    ]
    assert [row[0] for row in table] == [
        size for size in PRESET_FAMILIES["gpt3"].sizes if size != "tiny"
    ]
    for size, millions, layers, d_model in table:
        model = preset(f"gpt3:{size}")
        assert isinstance(model, spec.Decoder)
        assert (model.stack.layers, model.d_model) == (layers, d_model)
        assert about(f"gpt3:{size}").published == millions
        assert parameter_count(model) / 1e6 == pytest.approx(millions, rel=0.02)
        assert model.tokens.position == spec.LearnedPosition(2048)


# Table 3 of Vaswani et al. 2017: what a row changes of base, and its millions of parameters.
TABLE_3: list[tuple[dict[str, Any], float]] = [
    ({}, 65),
    ({"heads": 1, "d_k": 512, "d_v": 512}, 65),
    ({"d_k": 16}, 58),
    ({"d_k": 32}, 60),
    ({"layers": 2}, 36),
    ({"layers": 4}, 50),
    ({"layers": 8}, 80),
    ({"d_model": 256, "d_k": 32, "d_v": 32}, 28),
    ({"d_model": 1024, "d_k": 128, "d_v": 128}, 168),
    ({"d_ff": 1024}, 53),
    ({"d_ff": 4096}, 90),
    ({"position": "learned"}, 65),
]


@pytest.mark.parametrize(("changes", "millions"), TABLE_3)
def test_the_rows_of_the_transformer_are_those_of_its_table(
    changes: dict[str, Any], millions: float
) -> None:
    model = preset("transformer:base", 41_000, 256, **changes)
    assert parameter_count(model) / 1e6 == pytest.approx(millions, rel=0.021)


def test_the_names_of_gpt_2_are_its_own() -> None:
    assert parameter_count(preset("gpt2:xl")) == pytest.approx(1558e6, rel=1e-3)


# --- every family ---------------------------------------------------------------------------------


def joint_forward(model: Any) -> torch.Tensor:
    """The same over a text and an image."""
    pixels = torch.randn(model.patches.shape(2, 1))
    module: Any = build(model).eval()
    return module(torch.randint(0, 60, (2, 24)), pixels=pixels)[0]


def episode(part: spec.Trajectories) -> dict[str, torch.Tensor]:
    """What is read beside the states of two episodes of five steps."""
    return {
        "actions": torch.randn(2, 5, part.actions),
        "returns_to_go": torch.randn(2, 5, 1),
        "timesteps": torch.arange(5).expand(2, -1),
    }


def forward(model: spec.Model) -> torch.Tensor:
    """One forward pass over random inputs of the smallest sizes."""
    torch.manual_seed(0)
    module: Any = build(model).eval()
    tokens = torch.randint(0, 60, (2, 24))
    with torch.no_grad():
        match model:
            case spec.EncoderDecoder(source=spec.Spectrogram(mels=mels)):
                return module(torch.randn(1, mels, 3000), tokens[:1])[0]
            case spec.EncoderDecoder(
                source=spec.Patches(size=size) | spec.FeatureMap(size=size)
            ):  # object queries read no tokens
                read = tokens[:1] if model.embeddings else None
                return module(torch.randn(1, 3, size, size), read)[0]
            case spec.EncoderDecoder() | spec.SequenceToSequence():
                return module(tokens, tokens)[0]
            case (
                spec.Encoder(input=(spec.Patches() | spec.OverlapPatches()) as part)
                | spec.ConvolutionalEncoder(input=spec.ConvStem() as part)
            ):
                return module(torch.randn(part.shape(1, 0)))[0]
            case spec.Encoder(input=spec.Waveform()):
                return module(torch.randn(1, 4000))[0]
            case spec.Encoder(input=spec.Trajectories() as part):
                return module(torch.randn(part.shape(2, 5)), **episode(part))[0]
            case spec.SeriesEncoderDecoder():
                return series_encoder_decoder_forward(module, model)
            case spec.Encoder(
                input=spec.SeriesPatches(length=length, channels=channels)
            ) | spec.LinearForecaster(length, channels):
                return module(torch.randn(2, length, channels))[0]
            case spec.Encoder(input=spec.NodeFeatures(features=features)):
                edges = torch.tensor([[0, i, j] for i in range(5) for j in (i, (i + 1) % 5)])
                distances = torch.ones(1, 5, 5)
                nodes = torch.rand(1, 5, features)
                return module(nodes, edges=edges, distances=distances)[0]
            case spec.DualEncoder():
                size = model.image.patches.size
                return module(tokens, torch.randn(1, 3, size, size))[0]
            case spec.MemoryNetwork():
                return module(torch.randint(0, 60, (2, 5, 6)), torch.randint(0, 60, (2, 6)))[0]
            case _:
                return module(tokens)[0]


def series_encoder_decoder_forward(module: Any, model: spec.SeriesEncoderDecoder) -> torch.Tensor:
    part = model.input
    past = torch.randn(2, part.past, part.channels)
    future = torch.randn(2, model.horizon, part.channels)
    time = torch.randn(2, part.past + model.horizon, part.covariates)
    covariates = Covariates(past=time[:, : part.past], future=time[:, part.past :])
    hidden: torch.Tensor = module(past, future=future, covariates=covariates)[0]
    return hidden


@pytest.mark.parametrize("family", PRESET_FAMILIES)
def test_every_family_has_a_tiny_size_that_runs(family: str) -> None:
    assert "tiny" in PRESET_FAMILIES[family].sizes
    kind = PRESET_FAMILIES[family].kind
    vocabulary = 7 if kind in ("image", "video") else 61
    context = PRESET_FAMILIES[family].context if kind in ("image", "ctc") else 64
    model = preset(f"{family}:tiny", vocabulary, context)
    output = joint_forward(model) if "pixel_values" in model.reads.split()[1:] else forward(model)
    assert bool(torch.isfinite(output).all())


def test_every_family_that_opens_has_presets() -> None:
    named = {ALIASES.get(kind, kind) for kind in MODEL_TYPES if kind != "regard"}
    # The towers of SigLIP open by themselves, and are trained as a pair.
    parts = {"siglip_text_model", "siglip_vision_model"}
    # A vocoder is trained by itself, and not here; nor is VITS, which has one.
    parts |= {"fastspeech2_conformer_hifigan", "fastspeech2_conformer_with_hifigan", "vits"}
    assert named - parts <= PRESET_FAMILIES.keys()


# Presets of architectures that transformers has no class for, or that are written as another's.
OTHER_FAMILIES = {
    "camembert": "roberta",
    "clip-image": "clip_vision_model",
    "clip-text": "clip_text_model",
    "deberta-v3": "deberta-v2",
    "gpt3": "gpt2",
    "esm2": "esm",
    "fastspeech2": "fastspeech2_conformer",
    "gemma3": "gemma3_text",
    "gpt-neox": "gpt_neox",
    "gpt-oss": "gpt_oss",
    "gpt1": "openai-gpt",
    "llama2": "llama",
    "llama3": "llama",
    "bigbird": "big_bird",
    "vit-mae": "vit_mae",
    "pythia": "gpt_neox",
    "qwen2": "qwen2",
    "t5-v1.1": "t5",
    "time-series-transformer": "time_series_transformer",
    "decision-transformer": "decision_transformer",
    "transformer": "marian",
    "vit-gpt2": "vision-encoder-decoder",
    "xlm-roberta": "roberta",
} | dict.fromkeys(
    ["palm", "transformer-xl", "universal", "memory", "rnn-lm", "rnn_relu-lm", "gru-lm", "lstm-lm",
     "dlinear", "nlinear", "resnet-cifar", "graph", "graphormer", *recurrent.FAMILIES],
    "regard",
)  # fmt: skip


@pytest.mark.parametrize("family", PRESET_FAMILIES)
def test_a_preset_is_saved_as_a_folder_of_its_family(family: str) -> None:
    for size in PRESET_FAMILIES[family].sizes:
        # The small backbones of DETR are ours alone.
        own = (family, size) in (("detr", "tiny"), ("detr", "small"))
        kind = "regard" if own else OTHER_FAMILIES.get(family, family)
        config = folders.describe(preset(f"{family}:{size}"), model_type=kind)
        assert config["model_type"] == kind, size


def test_mistakes_are_answered() -> None:
    for name, answer in (
        ("gtp2", "gpt2"),
        ("gpt2:lage", "large"),
        ("bert:xxl", "base"),
        ("", "bert"),
        ("bert:roberta:tiny", "model = 'roberta:tiny'"),
    ):
        with pytest.raises(SettingError, match=answer):
            preset(name)
    with pytest.raises(SettingError, match="did you mean 'heads'"):
        preset("llama:tiny", hads=2)
    assert preset("bert") == preset("bert:base")
    assert preset("gpt_neox") == preset("gpt-neox")
