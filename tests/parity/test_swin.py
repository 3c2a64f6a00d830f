"""Swin against transformers: shifted windows, patch merging, odd sizes that are filled up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from test_vision import check_back, close
from torch import Tensor

import regard
from regard import spec
from regard.builder import trainable
from regard.builder.parameter_count import parameter_count
from regard.core.stacks.shifted_window_attention import Windows
from regard.families import folder as folders
from regard.system.errors import DataError, ModelError
from seeds import SEEDS
from zoo import perturb

transformers = pytest.importorskip("transformers")

SIZES: dict[str, dict[str, Any]] = {
    # 8 × 8 patches in windows of 4, then 4 × 4 in one.
    "small": {
        "embed_dim": 12,
        "depths": [2, 2],
        "num_heads": [2, 4],
        "window_size": 4,
        "image_size": 32,
        "num_labels": 5,
    },
    # 29 pixels fill 10 × 10 patches of 3, windows of 3 fill up to 12 × 12, 5 × 5 to 6 × 6.
    "odd": {
        "embed_dim": 10,
        "depths": [1, 3, 2],
        "num_heads": [2, 5, 4],
        "window_size": 3,
        "image_size": 29,
        "patch_size": 3,
        "num_channels": 2,
        "mlp_ratio": 2.5,
        "qkv_bias": False,
        "hidden_act": "relu",
        "layer_norm_eps": 1e-3,
        "hidden_dropout_prob": 0.2,
        "attention_probs_dropout_prob": 0.3,
        "drop_path_rate": 0.3,
        "num_labels": 3,
    },
}
KINDS = ("SwinModel", "SwinForImageClassification")
OUTPUTS = ("logits", "last_hidden_state", "pooler_output")


def theirs(kind: str, name: str, seed: int, out: Path) -> Any:
    torch.manual_seed(seed)
    model = getattr(transformers, kind)(transformers.SwinConfig(**SIZES[name])).eval()
    perturb(model, 0.2)  # the bias of positions begins at 0
    model.save_pretrained(out)
    return model


def images(config: Any, rows: int = 3) -> Tensor:
    return torch.randn(rows, config.num_channels, config.image_size, config.image_size)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_open_run_and_write_back(kind: str, name: str, seed: int, tmp_path: Path) -> None:
    model = theirs(kind, name, seed, tmp_path / "theirs")
    ours, opened = folders.open_model(tmp_path / "theirs")
    assert trainable(ours) == parameter_count(opened.spec)
    assert spec.from_dict(spec.to_dict(opened.spec)) == opened.spec
    loaded = regard.load(tmp_path / "theirs")
    pixels = images(model.config)

    def run(model: Any) -> dict[str, Tensor]:
        out = model(pixels)
        return {key: out[key] for key in OUTPUTS if key in out}

    with torch.inference_mode():
        wanted = run(model)
        result = run(loaded)
        assert list(result) == list(wanted)
        for key, value in result.items():
            assert close(value, wanted[key]), key
        check_back(opened, ours, tmp_path, type(model).from_pretrained, run, wanted)


@pytest.mark.parametrize("name", SIZES)
def test_hidden_states_and_attentions_of_stages_in_float64(name: str, tmp_path: Path) -> None:
    model = theirs("SwinForImageClassification", name, 1, tmp_path).double()
    loaded = regard.load(tmp_path)
    loaded.model.double()
    pixels = images(model.config).double()
    with torch.inference_mode():
        wanted = model(pixels, output_hidden_states=True)
        result = loaded(pixels, output_hidden_states=True)
    assert len(result.hidden_states) == len(wanted.hidden_states)
    for one, other in zip(result.hidden_states, wanted.hidden_states, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
    # Their softmax in float32 is the one that gives weights.
    model.set_attn_implementation("eager")
    with torch.inference_mode():
        weights = model(pixels, output_attentions=True).attentions
        result = loaded(pixels, output_attentions=True)
    for one, other in zip(result.attentions, weights, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


def test_gradients_are_theirs(tmp_path: Path) -> None:
    model = theirs("SwinForImageClassification", "odd", 2, tmp_path).double()
    loaded = regard.load(tmp_path)
    loaded.model.double().requires_grad_()
    pixels = images(model.config).double()
    model(pixels).logits.square().sum().backward()
    loaded(pixels).logits.square().sum().backward()
    layers = model.swin.encoder.layers
    for name, reference in (
        ("input.norm.weight", model.swin.embeddings.norm.weight),
        ("stack.merges.1.reduce.weight", layers[1].downsample.reduction.weight),
        ("stack.blocks.2.attention.output.weight", layers[1].blocks[1].attention.o_proj.weight),
        (
            "stack.blocks.5.attention.bias.table",
            layers[2].blocks[1].attention.relative_position_bias.relative_position_bias_table,
        ),
    ):
        gradient = loaded.model.get_parameter(name).grad
        torch.testing.assert_close(gradient, reference.grad, rtol=0, atol=1e-9)


@pytest.mark.parametrize(("side", "size", "shift"), [(8, 4, 2), (7, 3, 1), (5, 5, 0), (9, 2, 1)])
def test_windows_are_put_back_where_they_were(side: int, size: int, shift: int) -> None:
    windows = Windows(side, size, shift)
    x = torch.randn(2, side**2, 3)
    rows = windows.partition(x)
    count = (-(-side // size)) ** 2
    assert rows.shape == (2 * count, size**2, 3)
    assert torch.equal(windows.merge(rows), x)
    regions = windows.regions()
    assert regions.shape == (count, size**2)
    # Only the windows at the last edges mix regions, and only if they are shifted.
    mixed = (regions != regions[:, :1]).any(dim=1)
    edge = -(-side // size)
    assert int(mixed.sum()) == (2 * edge - 1 if shift else 0)


def test_positions_of_files_of_earlier_versions_are_ignored(tmp_path: Path) -> None:
    model = theirs("SwinModel", "small", 0, tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    index = torch.zeros(16, 16, dtype=torch.long)
    tensors["encoder.layers.0.blocks.1.attention.self.relative_position_index"] = index
    save_file(tensors, file, {"format": "pt"})
    pixels = images(model.config)
    with torch.inference_mode():
        result = regard.load(tmp_path)(pixels).last_hidden_state
        assert close(result, model(pixels).last_hidden_state)


def test_what_is_not_understood_is_refused(tmp_path: Path) -> None:
    theirs("SwinForImageClassification", "small", 0, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for change, word in (
        ({"hidden_act": "mish"}, "mish"),
        ({"image_size": [32, 16]}, "image_size"),
        ({"use_absolute_embeddings": True}, "use_absolute_embeddings"),
        ({"window_size": 5}, "larger than the last of 2 stages"),
        ({"num_heads": [2, 5]}, "heads"),
        ({"num_heads": [2]}, "stages"),
        ({"depths": [2, 3]}, "blocks.2"),
        ({"architectures": ["SwinBackbone"]}, "SwinBackbone.*\n.*SwinForMaskedImageModeling"),
    ):
        (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
        with pytest.raises(ModelError, match=word):
            folders.open_model(tmp_path)


def test_images_of_another_size_are_refused(tmp_path: Path) -> None:
    theirs("SwinModel", "small", 0, tmp_path)
    with pytest.raises(DataError, match="image has the shape"):
        regard.load(tmp_path)(torch.randn(1, 3, 64, 64))
