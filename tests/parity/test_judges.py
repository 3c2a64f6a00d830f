"""Decoders with labels on top against transformers: the last real token is judged, in both directions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import regard
from regard.builder import trainable
from regard.builder.parameter_count import parameter_count
from regard.families import folder as folders
from regard.models.text_encoder import TextEncoder
from regard.system import disk
from regard.system.errors import ModelError
from seeds import SEEDS
from zoo import perturb

transformers = pytest.importorskip("transformers")

SMALL = {
    "vocab_size": 61, "hidden_size": 36, "intermediate_size": 50, "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0,
}  # fmt: skip
GPT = {
    "vocab_size": 61,
    "n_positions": 40,
    "n_embd": 36,
    "n_layer": 2,
    "n_head": 6,
    "pad_token_id": 0,
}
NEOX = {key: value for key, value in SMALL.items() if key != "num_key_value_heads"}
CASES: dict[str, Any] = {
    "gpt2": lambda: transformers.GPT2Config(**GPT, num_labels=3),
    "gpt2, untied": lambda: transformers.GPT2Config(**GPT, tie_word_embeddings=False),
    "gpt": lambda: transformers.OpenAIGPTConfig(**GPT, num_labels=5),
    "llama": lambda: transformers.LlamaConfig(**SMALL, num_labels=3),
    "llama, tied": lambda: transformers.LlamaConfig(
        **SMALL, num_labels=1, tie_word_embeddings=True
    ),
    "mistral": lambda: transformers.MistralConfig(**SMALL, sliding_window=4),
    "qwen2": lambda: transformers.Qwen2Config(**SMALL, num_labels=4),
    "gemma": lambda: transformers.GemmaConfig(**SMALL, head_dim=8),
    "neox": lambda: transformers.GPTNeoXConfig(**NEOX, num_labels=3),
}


def theirs(name: str, seed: int, out: Path) -> Any:
    torch.manual_seed(seed)
    auto = transformers.AutoModelForSequenceClassification
    model = auto.from_config(CASES[name](), attn_implementation="eager").eval()
    perturb(model)
    model.save_pretrained(out)
    return model


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", CASES)
def test_open_run_and_write_back(name: str, seed: int, tmp_path: Path) -> None:
    model = theirs(name, seed, tmp_path / "theirs")
    ours, opened = folders.open_model(tmp_path / "theirs")
    assert trainable(ours) == parameter_count(opened.spec)
    padding_mask = torch.arange(11) < torch.tensor([11, 8, 1])[:, None]
    tokens = torch.randint(1, 61, (3, 11)) * padding_mask
    loaded = regard.load(tmp_path / "theirs", device="cpu")
    assert isinstance(loaded, TextEncoder)
    with torch.inference_mode():
        wanted = model(input_ids=tokens, attention_mask=padding_mask.long()).logits
        tolerance = (2e-5 if name == "gemma" else 1e-5) * max(1.0, wanted.abs().mean().item())
        for result in (
            loaded(input_ids=tokens, attention_mask=padding_mask.long()),
            loaded(input_ids=tokens),
        ):
            assert result.logits.shape == wanted.shape
            assert (result.logits - wanted).abs().max().item() <= tolerance
        alone = loaded(input_ids=tokens[1:2, :8]).logits
        assert (alone - wanted[1:2]).abs().max().item() <= tolerance

    back = tmp_path / "ours"
    back.mkdir()
    config_json = folders.describe(
        opened.spec, positions=opened.positions, model_type=opened.model_type
    ) | {"pad_token_id": 0}
    disk.write_json(back / "config.json", config_json)
    folders.write_weights(
        back / "model.safetensors",
        ours,
        opened.spec,
        opened.positions,
        model_type=opened.model_type,
    )
    before, after = (
        load_file(place / "model.safetensors") for place in (tmp_path / "theirs", back)
    )
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    auto = transformers.AutoModelForSequenceClassification
    again, loading = auto.from_pretrained(
        back, attn_implementation="eager", output_loading_info=True
    )
    assert not loading["missing_keys"]
    assert not loading["unexpected_keys"]
    with torch.inference_mode():
        same = again.eval()(input_ids=tokens, attention_mask=padding_mask.long()).logits
    torch.testing.assert_close(same, wanted, rtol=0, atol=1e-6)


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    theirs("llama", 0, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for change, word in (
        ({"id2label": {"0": "a"}}, "score.weight"),
        ({"architectures": ["LlamaForTokenClassification"]}, "score.bias"),
        ({"architectures": ["LlamaForCausalLM"]}, "lm_head.weight"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
    ):
        (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
        with pytest.raises(ModelError, match=word):
            folders.open_model(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config))
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({**tensors, "lm_head.weight": torch.ones(61, 36)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=r"unexpected tensors: lm_head\.weight"):
        folders.open_model(tmp_path)
    del tensors["score.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match="lacks"):
        folders.open_model(tmp_path)
