"""Wav2Vec2 and HuBERT against transformers: tiny random models, odd sizes, ragged sound, three seeds, both
directions.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from test_vision import check_back, close, shaken
from torch import Tensor

import regard
from regard import spec
from regard.builder import build, trainable
from regard.builder.parameter_count import parameter_count
from regard.families import folder as folders
from regard.system.errors import DataError, ModelError
from seeds import SEEDS

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
KINDS = ["Wav2Vec2Model", "Wav2Vec2ForCTC", "Wav2Vec2ForSequenceClassification"]
HUBERT_KINDS = ["HubertModel", "HubertForCTC", "HubertForSequenceClassification"]
# What only HuBERT has, on top of a case of both.
HUBERT_CASES: dict[str, dict[str, Any]] = {
    "norms after": {"feat_proj_layer_norm": False, "classifier_proj_size": 13, "num_labels": 3},
    "norms before": {},
}
SAMPLES = [101, 60, 77]


def theirs(kind: str, name: str, seed: int, out: Path) -> Any:
    torch.manual_seed(seed)
    options = {**SMALL, **CASES[name]}
    if kind.startswith("Hubert"):
        config = transformers.HubertConfig(**options, **HUBERT_CASES[name])
    else:
        config = transformers.Wav2Vec2Config(**options)
    model = shaken(getattr(transformers, kind)(config))
    model.save_pretrained(out)
    return model


def sound() -> tuple[Tensor, Tensor]:
    padding_mask = torch.arange(SAMPLES[0]) < torch.tensor(SAMPLES)[:, None]
    return torch.randn(padding_mask.shape) * padding_mask, padding_mask


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *itertools.product(CASES, KINDS),
        *itertools.product(HUBERT_CASES, HUBERT_KINDS),
    ],
)
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

    def at_sound(output: Tensor) -> Tensor:
        """A classifier has no positions."""
        return output if output.dim() == 2 else output[places]

    def run(model: Any) -> dict[str, Tensor]:
        return {
            "padded": at_sound(model(waves, attention_mask=padding_mask.long())[0]),
            "whole": model(waves)[0],
        }

    def run_ours(padding_mask: Tensor | None) -> Tensor:
        hidden, _ = ours(waves, padding_mask)  # type: ignore[call-arg, arg-type]
        return hidden if kind.endswith("Model") else ours.classes(hidden, padding_mask)  # type: ignore[union-attr, operator]

    with torch.inference_mode():
        wanted = run(model)
        assert close(at_sound(run_ours(padding_mask)), wanted["padded"], 2e-5)
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


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", ["norms after", "norms before"])
def test_pre_training(name: str, seed: int, tmp_path: Path) -> None:
    """Quantizer, projections and both losses, with the masks and negatives that are given."""
    torch.manual_seed(seed)
    codes = {"num_codevectors_per_group": 5, "codevector_dim": 6, "proj_codevector_dim": 9}
    weights = {"contrastive_logits_temperature": 0.3, "diversity_loss_weight": 0.7}
    config = transformers.Wav2Vec2Config(**{**SMALL, **CASES[name]}, **codes, **weights)
    model = shaken(transformers.Wav2Vec2ForPreTraining(config))
    model.save_pretrained(tmp_path / "theirs")
    ours = regard.load(tmp_path / "theirs", device="cpu")
    waves, padding_mask = sound()
    places = ours.model.input.output_padding_mask(padding_mask)  # type: ignore[union-attr, operator]
    masked = (torch.rand(places.shape) < 0.5) & places
    # Positions of the same recording, the target's own among them.
    negatives = torch.randint(places.shape[1], (*places.shape, 4))
    negatives += torch.arange(len(places))[:, None, None] * places.shape[1]
    inputs = {
        "input_values": waves,
        "attention_mask": padding_mask.long(),
        "mask_time_indices": masked,
        "sampled_negative_indices": negatives,
    }

    def run(model: Any) -> dict[str, Tensor]:
        out = model(**inputs)
        results = {key: value for key, value in out.items() if value is not None}
        results["projected_states"] = results["projected_states"][places]
        return results

    with torch.inference_mode():
        wanted = run(model)
        results = run(ours)
        assert results.keys() == wanted.keys()
        for key, value in wanted.items():
            assert close(results[key], value, 5e-5), key
        plain = model(waves)
        assert close(ours(input_values=waves).codevector_perplexity, plain[2], 2e-5)
        _, opened = folders.open_model(tmp_path / "theirs")
        check_back(opened, ours.model, tmp_path, type(model).from_pretrained, run, wanted)


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
        ({"architectures": ["Wav2Vec2ForXVector"]}, "Wav2Vec2ForXVector"),
        ({"conv_kernel": [5, 3, 3]}, "shape"),
        ({"num_hidden_layers": 1}, "wav2vec2.encoder.layers.1"),
        ({"conv_bias": True}, "lacks"),
    ):
        (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
        with pytest.raises(ModelError, match=word):
            folders.open_model(tmp_path)


@pytest.mark.parametrize(
    ("kind", "change", "word"),
    [
        ("HubertModel", {"conv_pos_batch_norm": True}, "conv_pos_batch_norm"),
        ("HubertModel", {"adapter_attn_dim": 16}, "adapter_attn_dim"),
        ("HubertModel", {"architectures": ["HubertForXVector"]}, "HubertForXVector"),
        ("HubertForSequenceClassification", {"use_weighted_layer_sum": True}, "weighted_layer_sum"),
    ],
)
def test_hubert_says_what_it_does_not_know(
    kind: str, change: dict[str, Any], word: str, tmp_path: Path
) -> None:
    theirs(kind, "norms before", 0, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(ModelError, match=word):
        folders.open_model(tmp_path)


@pytest.mark.parametrize("kind", ["HubertForSequenceClassification", KINDS[-1]])
def test_recordings_are_classified(kind: str, tmp_path: Path) -> None:
    """Padding changes nothing, and the labels have the names of the folder."""
    model = theirs(kind, "norms before", 0, tmp_path)
    waves, padding_mask = sound()
    recordings = [row[mask].numpy() for row, mask in zip(waves, padding_mask, strict=True)]
    (tmp_path / "preprocessor_config.json").write_text('{"do_normalize": false}')
    ours = regard.load(tmp_path, device="cpu")
    assert ours.tasks == ["classify"]
    scores: Any = ours.classify([*recordings])
    for recording, score in zip(recordings, scores, strict=True):
        with torch.inference_mode():
            wanted = model(torch.from_numpy(recording)[None]).logits[0].softmax(dim=-1)
        assert [score["LABEL_0"], score["LABEL_1"]] == pytest.approx(wanted.tolist(), abs=1e-5)


def test_too_little_sound_is_refused_and_the_least_is_one_position() -> None:
    block = spec.Block(spec.Attention(2, 4, 4), spec.FeedForward(8))
    layers = (spec.Convolution(4, 5, 3), spec.Convolution(4, 3, 2))
    model = build(
        spec.Encoder(8, spec.Waveform(layers, spec.ConvPosition(4, 2)), spec.Stack.of(1, block))
    )
    assert model(torch.randn(1, 11))[0].shape == (1, 1, 8)
    with pytest.raises(DataError, match="11"):
        model(torch.randn(1, 10))
