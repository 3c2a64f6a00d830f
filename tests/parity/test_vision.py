"""Image families against transformers: tiny random models, odd sizes, three seeds, both
directions.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import regard
from regard import spec
from regard.builder import build, trainable
from regard.builder.parameter_count import parameter_count
from regard.families import folder as folders
from regard.system import disk
from regard.system.errors import DataError, ModelError
from seeds import SEEDS
from zoo import perturb

transformers = pytest.importorskip("transformers")

SMALL = {
    "hidden_size": 20,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 31,
    "image_size": 12,
}
OTHER = {
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 30,
    "image_size": 11,
    "patch_size": 3,
    "num_channels": 2,
    "qkv_bias": False,
    "hidden_act": "relu",
    "pooler_act": "silu",
    "layer_norm_eps": 1e-3,
    "hidden_dropout_prob": 0.2,
    "attention_probs_dropout_prob": 0.3,
    "num_labels": 3,
}
SIZES: dict[str, dict[str, Any]] = {
    "small": {**SMALL, "patch_size": 4, "num_labels": 5},
    "other": OTHER,
}
HEADS = {
    "vit": ["ViTModel", "ViTForImageClassification"],
    "deit": ["DeiTModel", "DeiTForImageClassification", "DeiTForImageClassificationWithTeacher"],
}
CASES = [(head, name) for heads in HEADS.values() for head in heads for name in SIZES]


def shaken(model: Any) -> Any:
    """The model with noise in all parameters, so that biases, norms and tokens matter."""
    perturb(model)
    return model.eval()


def theirs(kind: str, name: str, seed: int, out: Path, **options: Any) -> Any:
    torch.manual_seed(seed)
    kinds = transformers.ViTConfig if kind.startswith("ViT") else transformers.DeiTConfig
    model = shaken(getattr(transformers, kind)(kinds(**SIZES[name]), **options))
    model.save_pretrained(out)
    return model


def close(result: Tensor, wanted: Tensor, tolerance: float = 1e-5) -> bool:
    return (result - wanted).abs().max().item() <= tolerance * max(1.0, wanted.abs().mean().item())


def check_back(
    opened: Any,
    ours: Any,
    place: Path,
    reopen: Callable[..., Any],
    run: Callable[[Any], dict[str, Tensor]],
    wanted: Any,
) -> None:
    """Ours written again: the same tensors, and transformers opens them whole and computes the
    same.
    """
    back = place / "ours"
    back.mkdir()
    names = opened.positions, opened.model_type
    disk.write_json(back / "config.json", folders.describe(opened.spec, None, *names))
    folders.write_weights(back / "model.safetensors", ours, opened.spec, *names)
    assert folders.read(back).spec == opened.spec
    before, after = (load_file(at / "model.safetensors") for at in (place / "theirs", back))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    again, report = reopen(back, output_loading_info=True)
    assert not any(report.values()), report
    for key, value in run(again.eval()).items():
        torch.testing.assert_close(value, wanted[key], rtol=0, atol=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("kind", "name"), CASES)
def test_open_run_and_write_back(kind: str, name: str, seed: int, tmp_path: Path) -> None:
    model = theirs(kind, name, seed, tmp_path / "theirs")
    ours, opened = folders.open_model(tmp_path / "theirs")
    assert trainable(ours) == parameter_count(opened.spec)
    assert spec.from_dict(spec.to_dict(opened.spec)) == opened.spec
    config = model.config
    pixels = torch.randn(3, config.num_channels, config.image_size, config.image_size)

    def run(model: Any) -> dict[str, Tensor]:
        out = model(pixels)
        return {
            key: out[key] for key in ("last_hidden_state", "pooler_output", "logits") if key in out
        }

    with torch.inference_mode():
        wanted = run(model)
        hidden, _ = ours(pixels)  # type: ignore[call-arg]
        if kind.endswith("Model"):
            assert close(hidden, wanted["last_hidden_state"])
            assert close(ours.vector(pixels), wanted["pooler_output"])  # type: ignore[union-attr, operator]
        else:
            assert close(ours.classes(hidden), wanted["logits"])  # type: ignore[union-attr, operator]
        check_back(opened, ours, tmp_path, type(model).from_pretrained, run, wanted)


def test_two_voters_are_heard_apart(tmp_path: Path) -> None:
    model = theirs("DeiTForImageClassificationWithTeacher", "small", 0, tmp_path)
    ours, _ = folders.open_model(tmp_path)
    pixels = torch.randn(2, 3, 12, 12)
    with torch.inference_mode():
        wanted = model(pixels)
        votes = ours.labels.each(ours(pixels)[0])  # type: ignore
    assert close(votes, torch.stack([wanted.cls_logits, wanted.distillation_logits], 1))


def test_without_a_pooler(tmp_path: Path) -> None:
    """The weights say it where config.json cannot; ours says it again for a checkpoint that has no
    weights beside it.
    """
    model = theirs("ViTModel", "small", 0, tmp_path / "theirs", add_pooling_layer=False)
    ours, opened = folders.open_model(tmp_path / "theirs")
    assert opened.spec.pool is None  # type: ignore[union-attr]
    pixels = torch.randn(2, 3, 12, 12)

    def run(model: Any) -> dict[str, Tensor]:
        return {"hidden": model(pixels).last_hidden_state}

    def reopen(place: Path, **options: Any) -> Any:
        return transformers.ViTModel.from_pretrained(place, add_pooling_layer=False, **options)

    with torch.inference_mode():
        wanted = run(model)
        assert close(ours(pixels)[0], wanted["hidden"])  # type: ignore[call-arg]
        check_back(opened, ours, tmp_path, reopen, run, wanted)
    assert folders.read(tmp_path / "ours", opened.weights).spec == opened.spec


def test_what_is_not_understood_is_refused(tmp_path: Path) -> None:
    theirs("ViTForImageClassification", "small", 0, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for change, word in (
        ({"hidden_act": "mish"}, "mish"),
        ({"head_dim": 4}, "head_dim"),
        ({"image_size": [12, 16]}, "image_size"),
        ({"pooler_output_size": 7}, "pooler_output_size"),
        ({"num_attention_heads": 3}, "not divisible by 3 heads"),
        ({"patch_size": 13}, "patch"),
        ({"architectures": ["ViTForObjectDetection"]}, "ViTForObjectDetection"),
        ({"num_hidden_layers": 2}, "vit.encoder.layer.2"),
        ({"patch_size": 3}, "shape"),
        ({"id2label": {"0": "a"}}, "classifier"),
    ):
        (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
        with pytest.raises(ModelError, match=word):
            folders.open_model(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config))
    tensors = load_file(tmp_path / "model.safetensors")
    lacking = {
        name: tensor for name, tensor in tensors.items() if name != "vit.embeddings.cls_token"
    }
    for changed, word in (
        (lacking, "lacks vit.embeddings.cls_token"),
        ({**tensors, "more": torch.ones(1)}, "more"),
    ):
        save_file(changed, tmp_path / "model.safetensors")
        with pytest.raises(ModelError, match=word):
            folders.open_model(tmp_path)


def test_images_of_another_size_are_refused() -> None:
    block = spec.Block(spec.Attention(2, 4, 4), spec.FeedForward(8))
    model = build(spec.Encoder(8, spec.Patches(12, 4), spec.Stack.of(1, block)))
    with pytest.raises(DataError, match="preprocessor_config"):
        model(torch.randn(1, 3, 16, 16))
    with pytest.raises(ModelError, match="Patches"):
        spec.Encoder(8, spec.Patches(12, 4), spec.Stack.of(1, block), (spec.LMHead(),))


# ------------------------------------------------------------------ images of other sizes

SIGLIP = {key: value for key, value in SMALL.items() if key != "qkv_bias"}
INTERPOLATING = {
    "vit": ("ViTForImageClassification", "ViTConfig", SIZES["small"]),
    "deit": ("DeiTForImageClassificationWithTeacher", "DeiTConfig", SIZES["small"]),
    "clip": ("CLIPVisionModelWithProjection", "CLIPVisionConfig", SMALL | {"patch_size": 4}),
    "siglip": ("SiglipVisionModel", "SiglipVisionConfig", SIGLIP | {"patch_size": 4}),
}


@pytest.mark.parametrize("shape", [(20, 16), (9, 8), (12, 12)])
@pytest.mark.parametrize("name", INTERPOLATING)
def test_learned_positions_are_interpolated_on_demand(
    name: str, shape: tuple[int, int], tmp_path: Path
) -> None:
    kind, config, sizes = INTERPOLATING[name]
    torch.manual_seed(4)
    model = shaken(getattr(transformers, kind)(getattr(transformers, config)(**sizes)))
    model.save_pretrained(tmp_path)
    loaded = regard.load(tmp_path)
    pixels = torch.randn(2, 3, *shape)
    with torch.inference_mode():
        wanted = model(pixels, interpolate_pos_encoding=True)
        result = loaded(pixels, interpolate_pos_encoding=True)
        for key in ("logits", "last_hidden_state", "image_embeds", "pooler_output"):
            if key in result:
                assert result[key].shape == wanted[key].shape
                assert close(result[key], wanted[key]), key
        if shape != (12, 12):
            with pytest.raises(DataError):
                loaded(pixels)
