"""Unsupported families and architectures, and values that define no model, are refused."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import regard
from regard import spec
from regard.builder import build
from regard.families import folder as folders
from regard.system.errors import ModelError
from zoo import ZOO, perturb, save

transformers = pytest.importorskip("transformers")


def save_as(kind: str, family: str, folder: Path, **changes: Any) -> Any:
    """A random model of this class of transformers, with the sizes of the zoo."""
    architecture, config, options = ZOO[family]
    module = importlib.import_module(getattr(transformers, architecture).__module__)
    torch.manual_seed(0)
    config_class = getattr(transformers, config)
    model = getattr(module, kind)(config_class(**{**options, **changes})).eval()
    perturb(model)
    model.save_pretrained(folder)
    return model


def test_every_family_of_transformers_is_known_or_named_as_unknown(tmp_path: Path) -> None:
    save_file({"weight": torch.zeros(2)}, tmp_path / "model.safetensors")
    unknown = [name for name in transformers.CONFIG_MAPPING if name not in folders.FAMILIES]
    assert len(unknown) > 300
    for name in unknown:
        (tmp_path / "config.json").write_text(json.dumps({"model_type": name}))
        with pytest.raises(ModelError) as caught:
            regard.load(tmp_path)
        assert f"the unknown type {name!r}" in caught.value.problem
        assert caught.value.repair


@pytest.mark.parametrize(
    ("family", "kind", "known"),
    [
        ("bart", "BartEncoder", "BartForConditionalGeneration"),
        ("t5", "T5Stack", "T5ForConditionalGeneration"),
        ("swin", "SwinBackbone", "SwinForMaskedImageModeling"),
        ("wav2vec2", "Wav2Vec2ForXVector", "Wav2Vec2ForCTC"),
    ],
)
def test_an_architecture_is_named_with_those_that_are_known(
    family: str, kind: str, known: str, tmp_path: Path
) -> None:
    save_as(kind, family, tmp_path)
    with pytest.raises(ModelError) as caught:
        regard.load(tmp_path)
    assert kind in caught.value.problem
    assert "not supported" in caught.value.problem
    assert known in caught.value.repair


def test_damaged_weights_are_not_blamed_on_the_architecture(tmp_path: Path) -> None:
    save("llama", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    changed = {**config, "num_hidden_layers": 3}
    (tmp_path / "config.json").write_text(json.dumps(changed))
    with pytest.raises(ModelError, match="the file lacks") as caught:
        regard.load(tmp_path)
    assert "not supported" not in caught.value.problem


@pytest.mark.parametrize(
    ("family", "kind"), [("gpt2", "GPT2Model"), ("gpt", "OpenAIGPTModel"), ("gemma", "GemmaModel")]
)
def test_a_base_model_whose_head_is_tied_gives_hidden_states(
    family: str, kind: str, tmp_path: Path
) -> None:
    model = save_as(kind, family, tmp_path)
    ids = torch.randint(3, 50, (2, 9))
    with torch.inference_mode():
        wanted = model(ids)
        result = regard.load(tmp_path)(ids)
    torch.testing.assert_close(
        result.last_hidden_state, wanted.last_hidden_state, rtol=0, atol=1e-5
    )
    torch.testing.assert_close(result[0], wanted[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("family", "changes", "words"),
    [
        ("llama", {"num_key_value_heads": 4}, "6 heads are not divisible by groups=4"),
        ("gemma", {"num_attention_heads": 7}, "7 heads are not divisible"),
        ("t5", {"relative_attention_num_buckets": 2}, "2 buckets"),
        ("t5", {"relative_attention_max_distance": 4}, "up to 4"),
        ("deberta", {"max_relative_positions": 4}, "beyond 3 exact"),
        ("deberta", {"position_buckets": 1}, "1 buckets"),
        ("swin", {"mlp_ratio": 0.0}, "mlp_ratio"),
    ],
)
def test_values_that_define_no_model_are_refused_when_it_is_opened(
    family: str, changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    """transformers builds these, and fails or divides by zero when it calls them."""
    save_as(ZOO[family][0], family, tmp_path, **changes)
    with pytest.raises(ModelError, match=words):
        regard.load(tmp_path)


def test_grouped_heads_and_buckets_of_specs() -> None:
    with pytest.raises(ModelError, match="are not divisible"):
        spec.Attention(6, 4, 4, groups=4)
    block = spec.Block(spec.Attention(2, 4, 4), spec.FeedForward(8))
    # 4 buckets are one exact distance on each side of an encoder, 2 are none.
    for count, fits in ((4, True), (2, False)):
        model = spec.Encoder(
            8, spec.Tokens(9), spec.Stack.of(1, block, position=spec.T5Bias(count, 10))
        )
        if fits:
            hidden, _ = build(model)(torch.arange(9)[None])
            assert bool(hidden.isfinite().all())
        else:
            with pytest.raises(ModelError, match="buckets"):
                build(model)


def test_an_autoencoder_that_hides_nothing_gives_what_transformers_gives(tmp_path: Path) -> None:
    model = save_as("ViTMAEForPreTraining", "vit-mae", tmp_path, mask_ratio=0.0)
    pixels = torch.randn(2, 2, 16, 16)
    noise = torch.rand(2, 16)
    with torch.inference_mode():
        wanted = model(pixels, noise=noise)
        result = regard.load(tmp_path)(pixels, noise=noise)
    torch.testing.assert_close(result.logits, wanted.logits, rtol=0, atol=1e-5)
    assert torch.equal(result.mask, wanted.mask)
    assert torch.equal(result.ids_restore, wanted.ids_restore)
    for output in (result, wanted):
        assert bool(output.loss.isnan())  # of no patch


def test_a_question_needs_two_segments_or_those_of_the_caller(tmp_path: Path) -> None:
    """BigBird makes its segments from the question, as transformers does, which ends there."""
    save_as(ZOO["bigbird, answers"][0], "bigbird, answers", tmp_path, type_vocab_size=1)
    model = regard.load(tmp_path)
    ids = torch.randint(4, 30, (1, 12))
    ids[:, 4] = 7  # its separator
    with pytest.raises(ModelError, match="type_vocab_size is 1"):
        model(input_ids=ids)
    model(input_ids=ids, token_type_ids=torch.zeros_like(ids))
