"""DINOv2 against transformers: LayerScale, SwiGLU, images of other sizes, masked patches."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from test_vision import check_back, close, shaken
from torch import Tensor

import regard
from regard import spec
from regard.builder import build, trainable
from regard.builder.parameter_count import parameter_count
from regard.families import folder as folders
from regard.families import presets
from regard.system.errors import DataError, ModelError, SettingError
from seeds import SEEDS

transformers = pytest.importorskip("transformers")

SIZES: dict[str, dict[str, Any]] = {
    "small": {
        "hidden_size": 20,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "mlp_ratio": 3,
        "image_size": 12,
        "patch_size": 4,
        "layerscale_value": 0.3,
        "num_labels": 5,
    },
    "swiglu": {
        "hidden_size": 12,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "mlp_ratio": 5,
        "image_size": 11,
        "patch_size": 3,
        "num_channels": 2,
        "qkv_bias": False,
        "layer_norm_eps": 1e-3,
        "hidden_dropout_prob": 0.2,
        "attention_probs_dropout_prob": 0.3,
        "drop_path_rate": 0.1,
        "use_swiglu_ffn": True,
        "use_mask_token": False,
        "num_labels": 3,
    },
}
KINDS = ("Dinov2Model", "Dinov2ForImageClassification")


def theirs(kind: str, name: str, seed: int, out: Path) -> Any:
    torch.manual_seed(seed)
    model = shaken(getattr(transformers, kind)(transformers.Dinov2Config(**SIZES[name])))
    model.save_pretrained(out)
    return model


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_open_run_and_write_back(kind: str, name: str, seed: int, tmp_path: Path) -> None:
    model = theirs(kind, name, seed, tmp_path / "theirs")
    ours, opened = folders.open_model(tmp_path / "theirs")
    assert trainable(ours) == parameter_count(opened.spec)
    assert spec.from_dict(spec.to_dict(opened.spec)) == opened.spec
    config = model.config
    pixels = torch.randn(3, config.num_channels, config.image_size, config.image_size)

    def run(model: Any) -> dict[str, Tensor]:
        out = model(pixels)
        names = ("last_hidden_state", "pooler_output", "logits")
        return {key: out[key] for key in names if key in out}

    with torch.inference_mode():
        wanted = run(model)
        hidden, _ = ours(pixels)  # type: ignore[call-arg]
        if kind == "Dinov2Model":
            assert close(hidden, wanted["last_hidden_state"])
            assert close(ours.vector(pixels), wanted["pooler_output"])  # type: ignore[union-attr, operator]
        else:
            assert close(ours.classes(hidden), wanted["logits"])  # type: ignore[union-attr, operator]
        check_back(opened, ours, tmp_path, type(model).from_pretrained, run, wanted)


@pytest.mark.parametrize("size", [(12, 16), (8, 8), (21, 13), (13, 13), (36, 4)])
def test_positions_are_interpolated_for_images_of_any_size(
    size: tuple[int, int], tmp_path: Path
) -> None:
    model = theirs("Dinov2ForImageClassification", "small", 0, tmp_path)
    ours = regard.load(tmp_path)
    pixels = torch.randn(2, 3, *size)
    with torch.inference_mode():
        wanted = model(pixels, output_hidden_states=True)
        result = ours(pixels, output_hidden_states=True)
    assert close(result.logits, wanted.logits)
    assert close(result.hidden_states[0], wanted.hidden_states[0])


def test_images_without_a_whole_patch_are_refused(tmp_path: Path) -> None:
    theirs("Dinov2Model", "small", 0, tmp_path)
    ours = regard.load(tmp_path)
    for shape in ((1, 3, 3, 12), (1, 2, 12, 12)):
        with pytest.raises(DataError, match="image has the shape"):
            ours(torch.randn(shape))


def test_masked_patches_are_replaced_by_the_mask_token(tmp_path: Path) -> None:
    model = theirs("Dinov2Model", "small", 1, tmp_path / "with")
    ours = regard.load(tmp_path / "with")
    pixels = torch.randn(2, 3, 12, 16)
    masked = torch.rand(2, 12) < 0.4
    with torch.inference_mode():
        wanted = model(pixels, bool_masked_pos=masked).last_hidden_state
        assert close(ours(pixels, bool_masked_pos=masked).last_hidden_state, wanted)
        assert not close(ours(pixels).last_hidden_state, wanted)
    theirs("Dinov2Model", "swiglu", 1, tmp_path / "without")
    with pytest.raises(SettingError, match="bool_masked_pos"):
        regard.load(tmp_path / "without")(torch.randn(1, 2, 11, 11), bool_masked_pos=masked)


def test_what_is_not_understood_is_refused(tmp_path: Path) -> None:
    theirs("Dinov2ForImageClassification", "small", 0, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for change, word in (
        ({"hidden_act": "mish"}, "mish"),
        ({"head_dim": 4}, "head_dim"),
        ({"image_size": [12, 16]}, "image_size"),
        ({"drop_path_rate": 1.0}, "drop_path"),
        ({"architectures": ["Dinov2Backbone"]}, "Dinov2Backbone"),
        ({"use_swiglu_ffn": True}, "weights_in"),
        ({"use_mask_token": False}, "mask_token"),
        ({"mlp_ratio": 4}, "shape"),
    ):
        (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
        with pytest.raises(ModelError, match=word):
            folders.open_model(tmp_path)


def test_layer_scale_starts_at_its_value_and_draws_nothing() -> None:
    plain = presets.preset("vit:tiny", 3, 32, layers=2)
    assert isinstance(plain, spec.Encoder)
    block = plain.stack.block
    stacks = {}
    for scale in (None, 0.1):
        changed = spec.Block(
            block.attention, block.feedforward, residual=block.residual, layer_scale=scale
        )
        torch.manual_seed(5)
        stacks[scale] = build(
            spec.Encoder(192, plain.patches, spec.Stack.of(2, changed))
        ).state_dict()
    scales = {name: value for name, value in stacks[0.1].items() if "layer_scales" in name}
    assert len(scales) == 4
    assert all(bool((value == 0.1).all()) for value in scales.values())
    for name, value in stacks[None].items():
        assert torch.equal(value, stacks[0.1][name])


def test_stochastic_depth_skips_sublayers_of_whole_examples() -> None:
    block = spec.Block(
        spec.Attention(2, 4, 4),
        spec.FeedForward(8),
        residual=spec.PreNorm(),
        dropout=0.0,
        drop_path=0.5,
    )
    model = build(spec.Encoder(8, spec.Patches(12, 4), spec.Stack.of(1, block)))
    pixels = torch.randn(1, 3, 12, 12).expand(64, -1, -1, -1)
    with torch.no_grad():
        calm = model.eval()(pixels)[0]
        assert close(calm, calm[:1].expand_as(calm))
        torch.manual_seed(0)
        states = model.train()(pixels)[0]
        embedded = model.input(pixels)
    # With P = ¼ neither sublayer ran, and an example is its embedding.
    skipped = torch.isclose(states, embedded).flatten(1).all(dim=1)
    assert 6 <= int(skipped.sum()) <= 28
    with pytest.raises(ModelError, match="LayerScale"):
        replace(block, residual=spec.Parallel(), layer_scale=1.0)
    with pytest.raises(ModelError, match="LayerScale"):
        scaled = replace(block, residual=spec.PreNorm(), layer_scale=1.0)
        spec.Stack((scaled,), scheme=spec.Reversible())
