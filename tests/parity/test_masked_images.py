"""Masked image modelling (SimMIM) against transformers: Swin, ViT and DeiT with mask tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from test_vision import close
from torch import Tensor

import regard
from regard import spec
from regard.builder import trainable
from regard.builder.parameter_count import parameter_count
from regard.families import folder as folders
from regard.system.errors import DataError, ModelError
from seeds import SEEDS
from zoo import perturb

transformers = pytest.importorskip("transformers")

VIT = {
    "hidden_size": 20,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 31,
    "image_size": 12,
    "patch_size": 4,
    "encoder_stride": 4,
}
# 15 pixels are 5 × 5 patches of two channels.
ODD_VIT = {
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 30,
    "image_size": 15,
    "patch_size": 3,
    "encoder_stride": 3,
    "num_channels": 2,
    "qkv_bias": False,
    "hidden_act": "relu",
    "layer_norm_eps": 1e-3,
    "hidden_dropout_prob": 0.2,
    "attention_probs_dropout_prob": 0.3,
}
SIZES: dict[str, dict[str, dict[str, Any]]] = {
    "Swin": {
        # 8 × 8 patches, then 4 × 4, of which each gives 8 × 8 pixels.
        "small": {
            "embed_dim": 12,
            "depths": [2, 2],
            "num_heads": [2, 4],
            "window_size": 4,
            "image_size": 32,
            "encoder_stride": 8,
        },
        # 12 × 12 patches of 3, then 6 × 6 and 3 × 3; one channel.
        "odd": {
            "embed_dim": 10,
            "depths": [1, 3, 2],
            "num_heads": [2, 5, 4],
            "window_size": 3,
            "image_size": 36,
            "patch_size": 3,
            "num_channels": 1,
            "mlp_ratio": 2.5,
            "qkv_bias": False,
            "hidden_act": "relu",
            "layer_norm_eps": 1e-3,
            "hidden_dropout_prob": 0.2,
            "drop_path_rate": 0.3,
            "encoder_stride": 12,
        },
    },
    "ViT": {"small": VIT, "odd": ODD_VIT},
    "DeiT": {"small": VIT, "odd": ODD_VIT},
}
# Where the reconstruction is larger or smaller than the image, transformers takes no masks.
UNEVEN: dict[str, dict[str, Any]] = {
    # 29 pixels fill 10 × 10 patches of 3, then 5 × 5.
    "Swin": {
        "embed_dim": 8,
        "depths": [1, 2],
        "num_heads": [2, 4],
        "window_size": 3,
        "image_size": 29,
        "patch_size": 3,
        "encoder_stride": 5,
    },
    "ViT": {**VIT, "image_size": 14, "encoder_stride": 7},
    "DeiT": {**VIT, "image_size": 13, "num_channels": 4},
}
CASES = [(family, name) for family, sizes in SIZES.items() for name in sizes]


def theirs(family: str, sizes: dict[str, Any], seed: int, out: Path) -> Any:
    torch.manual_seed(seed)
    config = getattr(transformers, f"{family}Config")(**sizes)
    model = getattr(transformers, f"{family}ForMaskedImageModeling")(config).eval()
    perturb(model, 0.2)  # mask tokens and the bias of positions begin at 0
    model.save_pretrained(out)
    return model


def images(config: Any, rows: int = 3) -> Tensor:
    return torch.randn(rows, config.num_channels, config.image_size, config.image_size)


def masks(config: Any, rows: int = 3) -> Tensor:
    """A different number of patches in each image."""
    patches = (config.image_size // config.patch_size) ** 2
    return torch.rand(rows, patches) < torch.linspace(0.2, 0.8, rows)[:, None]


@torch.inference_mode()
def compare(result: Any, model: Any, inputs: dict[str, Any]) -> None:
    """All outputs of both, hidden states included."""
    wanted = model(**inputs, output_hidden_states=True)
    actual = result(**inputs, output_hidden_states=True)
    names = ["loss"] if "bool_masked_pos" in inputs else []
    assert list(actual) == [*names, "reconstruction", "hidden_states"]
    for name in (*names, "reconstruction"):
        assert close(actual[name], wanted[name]), name
    for one, other in zip(actual.hidden_states, wanted.hidden_states, strict=True):
        assert close(one, other)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("family", "name"), CASES)
def test_open_run_and_write_back(family: str, name: str, seed: int, tmp_path: Path) -> None:
    model = theirs(family, SIZES[family][name], seed, tmp_path / "theirs")
    loaded = regard.load(tmp_path / "theirs")
    assert trainable(loaded.model) == parameter_count(loaded.spec)
    assert spec.from_dict(spec.to_dict(loaded.spec)) == loaded.spec
    pixels = images(model.config)
    masked = masks(model.config)
    everything: list[dict[str, Tensor]] = [
        {},
        {"bool_masked_pos": masked},
        {"bool_masked_pos": torch.zeros_like(masked)},
    ]
    for inputs in everything:
        compare(loaded, model, {"pixel_values": pixels, **inputs})
    loaded.save(tmp_path / "ours")
    before = load_file(tmp_path / "theirs" / "model.safetensors")
    after = load_file(tmp_path / "ours" / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    config = json.loads((tmp_path / "theirs" / "config.json").read_text())
    written = json.loads((tmp_path / "ours" / "config.json").read_text())
    assert written == {key: config[key] for key in written}
    again, report = type(model).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(report.values()), report
    assert again.config.to_dict() | {"_name_or_path": ""} == model.config.to_dict()
    compare(loaded, again.eval(), {"pixel_values": pixels, "bool_masked_pos": masked})


@pytest.mark.parametrize("family", SIZES)
def test_a_model_described_here_opens_in_transformers(family: str, tmp_path: Path) -> None:
    """The reverse: config.json is written from the spec alone, and so are the names of tensors."""
    theirs(family, SIZES[family]["odd"], 0, tmp_path / "theirs")
    model, opened = folders.open_model(tmp_path / "theirs")
    back = tmp_path / "ours"
    back.mkdir()
    config = folders.describe(opened.spec, None, opened.positions, opened.model_type)
    assert config["architectures"] == [f"{family}ForMaskedImageModeling"]
    assert "mask_ratio" not in config
    (back / "config.json").write_text(json.dumps(config))
    folders.write_weights(
        back / "model.safetensors", model, opened.spec, opened.positions, opened.model_type
    )
    assert folders.read(back).spec == opened.spec
    kind = getattr(transformers, f"{family}ForMaskedImageModeling")
    again, report = kind.from_pretrained(back, output_loading_info=True)
    assert not any(report.values()), report
    inputs = {"pixel_values": images(again.config), "bool_masked_pos": masks(again.config)}
    compare(regard.load(tmp_path / "theirs"), again.eval(), inputs)


@pytest.mark.parametrize("family", SIZES)
def test_the_encoder_without_its_decoder(family: str, tmp_path: Path) -> None:
    """What `model.vit.save_pretrained` writes has a mask token, of which config.json says nothing;
    ours says it for a checkpoint that has no weights beside it.
    """
    whole = theirs(family, SIZES[family]["odd"], 1, tmp_path / "whole")
    encoder = getattr(whole, whole.base_model_prefix)
    encoder.save_pretrained(tmp_path / "theirs")
    loaded = regard.load(tmp_path / "theirs")
    pixels = images(whole.config)
    masked = masks(whole.config)
    with torch.inference_mode():
        for options in ({}, {"bool_masked_pos": masked}):
            wanted = encoder(pixels, **options)
            result = loaded(pixels, **options)
            assert close(result.last_hidden_state, wanted.last_hidden_state)
    loaded.save(tmp_path / "ours")
    before = load_file(tmp_path / "theirs" / "model.safetensors")
    after = load_file(tmp_path / "ours" / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert regard.load(tmp_path / "ours").spec == loaded.spec
    description = folders.describe(loaded.spec, None, 1, loaded.config["model_type"])
    assert description["use_mask_token"] is True


@pytest.mark.parametrize("family", UNEVEN)
def test_reconstructions_of_another_size_have_no_loss(family: str, tmp_path: Path) -> None:
    model = theirs(family, UNEVEN[family], 0, tmp_path)
    loaded = regard.load(tmp_path)
    pixels = images(model.config)
    compare(loaded, model, {"pixel_values": pixels})
    count = loaded.spec.patches.side**2  # type: ignore[union-attr]
    with pytest.raises(ModelError, match="do not match images"):
        loaded(pixels, bool_masked_pos=torch.ones(3, count, dtype=torch.bool))
    with pytest.raises(DataError, match="mask of patches has the shape"):
        loaded(pixels, bool_masked_pos=torch.ones(3, count + 1, dtype=torch.bool))


@pytest.mark.parametrize("family", SIZES)
def test_every_gradient_of_the_pixel_loss_is_theirs(family: str, tmp_path: Path) -> None:
    model = theirs(family, SIZES[family]["odd"], 2, tmp_path).double()
    loaded = regard.load(tmp_path)
    loaded.model.double().requires_grad_()
    inputs = {"pixel_values": images(model.config).double(), "bool_masked_pos": masks(model.config)}
    wanted = model(**inputs).loss
    wanted.backward()
    loss = loaded(**inputs).loss
    loss.backward()
    torch.testing.assert_close(loss, wanted, rtol=0, atol=1e-12)
    base = getattr(model, model.base_model_prefix)
    for name, reference in (
        ("input.mask_token", base.embeddings.mask_token),
        ("input.project.weight", base.embeddings.patch_embeddings.projection.weight),
        ("pixels.output.weight", model.decoder[0].weight),
        ("pixels.output.bias", model.decoder[0].bias),
        ("stack.final_norm.weight", base.layernorm.weight),
    ):
        gradient = loaded.model.get_parameter(name).grad
        assert gradient is not None
        torch.testing.assert_close(gradient, reference.grad.view_as(gradient), rtol=0, atol=1e-12)


def test_units_of_several_patches_are_hidden_as_a_whole(tmp_path: Path) -> None:
    """SimMIM hides what one position of the last layer reconstructs."""
    theirs("Swin", SIZES["Swin"]["odd"], 0, tmp_path)
    loaded = regard.load(tmp_path)
    front: Any = loaded.model.input  # type: ignore[union-attr]
    assert front.spec.mask_unit == 4
    assert front.spec.maskable == 9  # 3 × 3 of 12 pixels
    masked = front.random_masking(torch.rand(5, 9)).masked
    # [B, unit, row in it, unit, column in it]
    units = masked.view(5, 3, 4, 3, 4).transpose(2, 3).flatten(3)
    assert torch.equal(units.all(dim=-1), units.any(dim=-1))
    # int(9 · 0.4) units stay visible.
    assert bool((units.all(dim=-1).flatten(1).sum(dim=1) == 6).all())


def test_mask_tokens_and_their_decoder_belong_together() -> None:
    stack = spec.Stack.of(1, spec.Block(spec.Attention(2, 4, 4), spec.FeedForward(8)))
    patches = spec.Patches(8, 4)
    with pytest.raises(ModelError, match="mask_token=True"):
        spec.Encoder(8, patches, stack, (spec.PixelShuffleHead(4),))
    with pytest.raises(ModelError, match="Patches"):
        spec.masked_image_model(spec.Encoder(8, spec.Tokens(9), stack))
    with pytest.raises(ModelError, match="9 is not divisible by the patch size 4"):
        spec.masked_image_model(spec.Encoder(8, spec.Patches(9, 4), stack))
    with pytest.raises(ModelError, match="mask_token=True"):
        spec.Patches(8, 4, mask_unit=2)
    model = spec.masked_image_model(spec.Encoder(8, patches, stack), share=0.5)
    assert model.pixels == spec.PixelShuffleHead(4)
    assert model.patches.masked_share == 0.5


def test_what_is_not_understood_is_refused(tmp_path: Path) -> None:
    theirs("ViT", VIT, 0, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for change, word in (
        ({"encoder_stride": 0}, "encoder_stride"),
        ({"encoder_stride": 8}, "decoder.0"),
        ({"mask_ratio": 1.0}, "masked"),
        ({"architectures": ["ViTForMaskedImages"]}, "ViTForMaskedImageModeling"),
    ):
        (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
        with pytest.raises(ModelError, match=word):
            folders.open_model(tmp_path)
