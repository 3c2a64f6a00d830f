"""Wav2Vec2 against transformers: tiny random models, odd sizes, ragged sound, three seeds, both
directions.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from test_vision import check_back, close, shaken
from torch import Tensor

from regard import spec
from regard.builder import build, trainable
from regard.errors import DataError, ModelError
from regard.families import folder as folders
from regard.parameter_count import parameter_count

transformers = pytest.importorskip("transformers")

SMALL = {
    "vocab_size": 11,
    "hidden_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 31,
    "conv_dim": [7, 9, 6],
    "conv_stride": [3, 2, 2],
    "conv_kernel": [5, 3, 2],
    "num_conv_pos_embeddings": 6,
    "num_conv_pos_embedding_groups": 2,
}
CASES: dict[str, dict[str, Any]] = {
    "norms after": {},
    "norms before": {"do_stable_layer_norm": True, "feat_extract_norm": "layer", "conv_bias": True},
    "odd kernel": {
        "num_conv_pos_embeddings": 5,
        "num_conv_pos_embedding_groups": 5,
        "feat_extract_activation": "relu",
        "hidden_act": "gelu_new",
        "layer_norm_eps": 1e-3,
        "feat_extract_norm": "layer",
        "final_dropout": 0.3,
        "hidden_dropout": 0.2,
        "activation_dropout": 0.4,
        "attention_dropout": 0.15,
        "feat_proj_dropout": 0.25,
    },
    "no mask": {"do_stable_layer_norm": True, "mask_time_prob": 0.0},
}
SAMPLES = [101, 60, 77]


def theirs(kind: str, name: str, seed: int, out: Path) -> Any:
    torch.manual_seed(seed)
    model = shaken(
        getattr(transformers, kind)(transformers.Wav2Vec2Config(**{**SMALL, **CASES[name]}))
    )
    model.save_pretrained(out)
    return model


def sound() -> tuple[Tensor, Tensor]:
    padding_mask = torch.arange(SAMPLES[0]) < torch.tensor(SAMPLES)[:, None]
    return torch.randn(padding_mask.shape) * padding_mask, padding_mask


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["Wav2Vec2Model", "Wav2Vec2ForCTC"])
@pytest.mark.parametrize("name", CASES)
def test_open_run_and_write_back(name: str, kind: str, seed: int, tmp_path: Path) -> None:
    model = theirs(kind, name, seed, tmp_path / "theirs")
    ours, opened = folders.open_model(tmp_path / "theirs")
    assert trainable(ours) == parameter_count(opened.spec)
    assert spec.from_dict(spec.to_dict(opened.spec)) == opened.spec
    waves, padding_mask = sound()
    places = ours.input.output_padding_mask(padding_mask)  # type: ignore[union-attr, operator]
    assert places.sum(1).tolist() == [
        model._get_feat_extract_output_lengths(length).item() for length in padding_mask.sum(1)
    ]

    def run(model: Any) -> dict[str, Tensor]:
        return {
            "padded": model(waves, attention_mask=padding_mask.long())[0][places],
            "whole": model(waves)[0],
        }

    def run_ours(padding_mask: Tensor | None) -> Tensor:
        hidden, _ = ours(waves, padding_mask)  # type: ignore[call-arg, arg-type]
        return hidden if kind == "Wav2Vec2Model" else ours.classes(hidden, padding_mask)  # type: ignore[union-attr, operator]

    with torch.inference_mode():
        wanted = run(model)
        assert close(run_ours(padding_mask)[places], wanted["padded"], 2e-5)
        assert close(run_ours(None), wanted["whole"], 2e-5)
        check_back(opened, ours, tmp_path, type(model).from_pretrained, run, wanted)


def test_a_mask_stands_in_for_positions(tmp_path: Path) -> None:
    model = theirs("Wav2Vec2Model", "norms before", 0, tmp_path)
    ours, _ = folders.open_model(tmp_path)
    waves, padding_mask = sound()
    places = ours.input.output_padding_mask(padding_mask)  # type: ignore[union-attr, operator]
    masked = torch.rand(places.shape) < 0.4
    with torch.inference_mode():
        wanted = model(
            waves, attention_mask=padding_mask.long(), mask_time_indices=masked
        ).last_hidden_state
        result, _ = ours(waves, padding_mask, masked=masked)  # type: ignore[call-arg, arg-type]
    assert close(result[places], wanted[places], 2e-5)


def test_files_of_other_times(tmp_path: Path) -> None:
    """Old files name the halves of the kernel otherwise, and may lack the mask that their config
    speaks of.
    """
    theirs("Wav2Vec2ForCTC", "norms after", 0, tmp_path)
    before = load_file(tmp_path / "model.safetensors")
    new_name = "parametrizations.weight.original"
    old = {
        name.replace(f"{new_name}0", "weight_g").replace(f"{new_name}1", "weight_v"): t
        for name, t in before.items()
    }
    del old["wav2vec2.masked_spec_embed"]
    assert "wav2vec2.encoder.pos_conv_embed.conv.weight_g" in old
    save_file(old, tmp_path / "model.safetensors")
    _, opened = folders.open_model(tmp_path)
    assert not opened.spec.input.masked  # type: ignore[union-attr]
    kernel = f"wav2vec2.encoder.pos_conv_embed.conv.{new_name}1"
    assert torch.equal(opened.weights["input.position.direction"], before[kernel])
    assert folders.describe(opened.spec)["mask_time_prob"] == 0.0


def test_what_is_not_understood_is_refused(tmp_path: Path) -> None:
    theirs("Wav2Vec2ForCTC", "norms after", 0, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for change, word in (
        ({"add_adapter": True}, "add_adapter"),
        ({"adapter_attn_dim": 16}, "adapter_attn_dim"),
        ({"rope_parameters": {}}, "rope_parameters"),
        ({"feat_extract_norm": "batch"}, "batch"),
        ({"conv_kernel": [5, 3]}, "conv_kernel"),
        ({"num_conv_pos_embedding_groups": 3}, "groups"),
        ({"architectures": ["Wav2Vec2ForPreTraining"]}, "Wav2Vec2ForPreTraining"),
        ({"conv_kernel": [5, 3, 3]}, "shape"),
        ({"num_hidden_layers": 1}, "wav2vec2.encoder.layers.1"),
        ({"conv_bias": True}, "lacks"),
    ):
        (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
        with pytest.raises(ModelError, match=word):
            folders.open_model(tmp_path)


def test_too_little_sound_is_refused_and_the_least_is_one_position() -> None:
    block = spec.Block(spec.Attention(2, 4, 4), spec.FeedForward(8))
    layers = (spec.Convolution(4, 5, 3), spec.Convolution(4, 3, 2))
    model = build(
        spec.Encoder(8, spec.Waveform(layers, spec.ConvPosition(4, 2)), spec.Stack(1, block))
    )
    assert model(torch.randn(1, 11))[0].shape == (1, 1, 8)
    with pytest.raises(DataError, match="11"):
        model(torch.randn(1, 10))
