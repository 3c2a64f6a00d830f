"""A model of the user's own in `regard.train`: trained, written, resumed, or refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from torch import Tensor, nn

import regard
from regard import spec
from regard.core.mixers.explicit_attention import ExplicitAttention
from regard.core.mixers.scaled_dot_product_attention import attention_weights
from regard.data.generated.builtin import write_tsv
from regard.families.decoders.gpt2 import preset as gpt2
from regard.families.encoder_decoders.transformer import preset
from regard.system.errors import ModelError, SettingError, TrainingInterrupted
from regard.training.run import resume
from regard.training.setup import objective_of_spec

SIZES: dict[str, Any] = {"d_model": 16, "d_ff": 24, "heads": 2, "layers": 1}


@dataclass(frozen=True)
class Unscaled:
    """Softmax attention without a scale."""

    dropout: float = 0.0

    def build(self, sizes: spec.AttentionSizes) -> nn.Module:
        return UnscaledAttention()


class UnscaledAttention(ExplicitAttention):
    def attention_weights(
        self, q: Tensor, k: Tensor, allowed: Tensor, bias: Tensor | None
    ) -> Tensor:
        return attention_weights(q, k, allowed, 1.0, bias)


def own_model(vocabulary: int = 300) -> spec.EncoderDecoder:
    base = preset("tiny", vocabulary, vocabulary, **SIZES)
    attention = replace(base.decoder.block.attention, mixer=Unscaled())
    return replace(base, decoder=base.decoder.with_blocks(attention=attention))


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    pairs = tmp_path / "pairs.tsv"
    with pairs.open("w", encoding="utf-8") as file:
        write_tsv(file, "train", 120)
    return {
        "pairs": str(pairs),
        "vocabulary": 300,
        "steps": 6,
        "batch_tokens": 300,
        "warmup_steps": 4,
        "threads": 1,
        "beam": 1,
        "device": "cpu",
    }


def test_a_stopped_run_resumes_exactly(
    settings: dict[str, Any], tmp_path: Path, stop_at: Callable[[int], Any]
) -> None:
    whole = regard.train(settings, model=own_model(), out=tmp_path / "whole")
    with pytest.raises(TrainingInterrupted):
        regard.train(settings, model=own_model(), out=tmp_path / "cut", on_step=stop_at(3))
    with pytest.raises(ModelError, match="unknown kind 'Unscaled'"):
        resume(tmp_path / "cut", quiet=True)
    resumed = resume(tmp_path / "cut", quiet=True, kinds=[Unscaled])
    expected = load_file(whole.folder / "model.safetensors")
    weights = load_file(resumed.folder / "model.safetensors")
    assert expected.keys() == weights.keys()
    assert all(expected[name].equal(weights[name]) for name in expected)
    assert regard.load(resumed.folder, kinds=[Unscaled]).spec == own_model()


def test_a_model_with_own_parts_is_trained_further_and_scored(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    run = regard.train(settings, model=own_model(), out=tmp_path / "run")
    pairs = settings["pairs"]
    quick: dict[str, Any] = {"steps": 2, "device": "cpu", "quiet": True}
    model = regard.load(run.folder, kinds=[Unscaled], device="cpu")
    regard.finetune(model, "translate", pairs, out=tmp_path / "loaded", **quick)
    regard.finetune(
        run.folder, "translate", pairs, kinds=[Unscaled], out=tmp_path / "folder", **quick
    )
    quick.pop("quiet")
    regard.train(model=model, data=pairs, objective="translate", out=tmp_path / "on", **quick)
    names = ("loaded", "folder", "on")
    weights = [load_file(tmp_path / name / "model.safetensors") for name in names]
    first = weights[0]
    assert all(first[name].equal(each[name]) for each in weights[1:2] for name in first)
    evaluation = regard.evaluate(run.folder, pairs, ["chrf"], kinds=[Unscaled])
    assert evaluation["chrf"] == regard.evaluate(model, pairs, ["chrf"])["chrf"]


def test_the_recipes_own_model_trains_to_the_same_weights(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    by_recipe = regard.train(settings, preset="tiny", **SIZES, out=tmp_path / "recipe")
    by_spec = regard.train(settings, model=preset("tiny", 300, 300, **SIZES), out=tmp_path / "spec")
    expected = load_file(by_recipe.folder / "model.safetensors")
    weights = load_file(by_spec.folder / "model.safetensors")
    assert all(expected[name].equal(weights[name]) for name in expected)


def test_a_language_model(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    with text.open("w", encoding="utf-8") as file:
        write_tsv(file, "train", 300)
    # The objective follows from the spec; its vocabulary may be padded beyond the tokenizer's.
    model = gpt2("tiny", 320, 32, **SIZES)
    result = regard.train(
        {"text": str(text), "vocabulary": 300, "context": 32},
        model=model,
        steps=3,
        threads=1,
        device="cpu",
        out=tmp_path / "run",
    )
    assert regard.load(result.folder).spec == model


@pytest.mark.parametrize(
    ("preset_name", "named", "objective"),
    [
        ("gpt2:tiny", "text", "causal"),
        ("bert:tiny", "text", "masked"),
        ("transformer:tiny", "pairs", "translate"),
        ("transformer:tiny", "text", "denoise"),
        ("vit:tiny", "images", "images"),
        ("wav2vec2:tiny", "data", "ctc"),
        ("patchtst:tiny", "data", "forecast"),
    ],
)
def test_the_objective_of_a_spec(preset_name: str, named: str, objective: str) -> None:
    assert objective_of_spec(regard.preset(preset_name), {named: "x"}) == objective


def test_what_contradicts_the_model_is_refused(settings: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(SettingError, match="d_model is decided by the model"):
        regard.train(settings, model=own_model(), d_model=32, out=out)
    with pytest.raises(SettingError, match="Decoder that reads text is not a model for the obj"):
        regard.train(settings, model=gpt2("tiny", 300, 32, **SIZES), out=out)
    with pytest.raises(SettingError, match="source has 299 tokens, but the tokenizer 300"):
        regard.train(settings, model=own_model(299), out=out)
