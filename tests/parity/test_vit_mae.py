"""ViT-MAE against transformers: random masking, decoder, pixel loss, files of earlier versions."""

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
from regard.builder import build, trainable
from regard.builder.parameter_count import parameter_count
from regard.families import folder as folders
from regard.system.errors import ModelError
from seeds import SEEDS
from zoo import perturb

transformers = pytest.importorskip("transformers")

SIZES: dict[str, dict[str, Any]] = {
    "small": {
        "hidden_size": 20,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 31,
        "image_size": 12,
        "patch_size": 4,
        "decoder_hidden_size": 12,
        "decoder_num_hidden_layers": 2,
        "decoder_num_attention_heads": 3,
        "decoder_intermediate_size": 17,
    },
    "odd": {
        "hidden_size": 12,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 30,
        "image_size": 15,
        "patch_size": 3,
        "num_channels": 2,
        "qkv_bias": False,
        "hidden_act": "relu",
        "layer_norm_eps": 1e-3,
        "hidden_dropout_prob": 0.2,
        "attention_probs_dropout_prob": 0.3,
        "decoder_hidden_size": 28,
        "decoder_num_hidden_layers": 1,
        "decoder_num_attention_heads": 7,
        "decoder_intermediate_size": 9,
        "mask_ratio": 0.6,
        "norm_pix_loss": True,
    },
}
KINDS = ("ViTMAEModel", "ViTMAEForPreTraining")
OUTPUTS = ("loss", "last_hidden_state", "logits", "mask", "ids_restore")


def theirs(kind: str, name: str, seed: int, out: Path) -> Any:
    torch.manual_seed(seed)
    config = transformers.ViTMAEConfig(**SIZES[name])
    model = getattr(transformers, kind)(config).eval()
    # The stored positions are moved too: they are taken from the file, not computed.
    perturb(model, 0.2, frozen=True)
    model.save_pretrained(out)
    return model


def batch(config: Any, rows: int = 3) -> dict[str, Tensor]:
    size = config.image_size
    patches = (size // config.patch_size) ** 2
    pixels = torch.randn(rows, config.num_channels, size, size)
    return {"pixel_values": pixels, "noise": torch.rand(rows, patches)}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_open_run_and_write_back(kind: str, name: str, seed: int, tmp_path: Path) -> None:
    model = theirs(kind, name, seed, tmp_path / "theirs")
    ours, opened = folders.open_model(tmp_path / "theirs")
    assert trainable(ours) == parameter_count(opened.spec)
    assert spec.from_dict(spec.to_dict(opened.spec)) == opened.spec
    loaded = regard.load(tmp_path / "theirs")
    inputs = batch(model.config)

    def run(model: Any) -> dict[str, Tensor]:
        out = model(**inputs)
        return {key: out[key] for key in OUTPUTS if key in out}

    with torch.inference_mode():
        wanted = run(model)
        result = run(loaded)
        assert list(result) == list(wanted)
        for key, value in result.items():
            assert close(value.double(), wanted[key].double()), key
        check_back(opened, ours, tmp_path, type(model).from_pretrained, run, wanted)


@pytest.mark.parametrize("kind", KINDS)
def test_hidden_states_in_float64(kind: str, tmp_path: Path) -> None:
    model = theirs(kind, "small", 1, tmp_path).double()
    loaded = regard.load(tmp_path)
    loaded.model.double()
    inputs = {key: value.double() for key, value in batch(model.config).items()}
    with torch.inference_mode():
        wanted = model(**inputs, output_hidden_states=True)
        result = loaded(**inputs, output_hidden_states=True)
    for one, other in zip(result.hidden_states, wanted.hidden_states, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_every_gradient_of_the_pixel_loss_is_theirs(tmp_path: Path) -> None:
    model = theirs("ViTMAEForPreTraining", "odd", 2, tmp_path).double()
    loaded = regard.load(tmp_path)
    loaded.model.double().requires_grad_()
    inputs = {key: value.double() for key, value in batch(model.config).items()}
    loss = model(**inputs).loss
    loss.backward()
    ours = loaded(**inputs).loss
    torch.testing.assert_close(ours, loss, rtol=0, atol=1e-12)
    ours.backward()
    for name, reference in (
        ("input.extras.0", model.vit.embeddings.cls_token),
        ("pixels.mask_token", model.decoder.mask_token),
        ("pixels.output.weight", model.decoder.decoder_pred.weight),
        ("pixels.project.bias", model.decoder.decoder_embed.bias),
        ("stack.final_norm.weight", model.vit.layernorm.weight),
    ):
        gradient = loaded.model.get_parameter(name).grad
        assert gradient is not None
        torch.testing.assert_close(gradient, reference.grad.view_as(gradient), rtol=0, atol=1e-12)


def test_files_of_earlier_versions_of_transformers_open(tmp_path: Path) -> None:
    model = theirs("ViTMAEForPreTraining", "small", 0, tmp_path)
    file = tmp_path / "model.safetensors"
    former = {
        name.replace("decoder_encoder.layer.", "decoder_layers."): tensor
        for name, tensor in load_file(file).items()
    }
    assert any(name.startswith("decoder.decoder_layers.1.") for name in former)
    save_file(former, file, {"format": "pt"})
    inputs = batch(model.config)
    with torch.inference_mode():
        assert close(regard.load(tmp_path)(**inputs).logits, model(**inputs).logits)


def test_new_positions_are_theirs() -> None:
    """Columns before rows: the order of the authors' files."""
    from transformers.models.vit_mae.modeling_vit_mae import build_2d_sinusoidal_position_embedding

    ours = build(
        spec.Encoder(
            20,
            spec.Patches(12, 4, position="fixed"),
            spec.Stack.of(1, spec.Block(spec.Attention(4, 5, 5), spec.FeedForward(8))),
        )
    )
    wanted = build_2d_sinusoidal_position_embedding(3, 3, 20, cls_token=True)
    wanted = torch.cat([wanted[:, 10:], wanted[:, :10]], dim=1)
    torch.testing.assert_close(ours.get_parameter("input.position.table"), wanted)
    assert not ours.get_parameter("input.position.table").requires_grad


def test_patches_are_hidden_by_noise_that_is_drawn_where_none_is_given(tmp_path: Path) -> None:
    theirs("ViTMAEForPreTraining", "odd", 0, tmp_path)
    ours = regard.load(tmp_path)
    pixels = torch.randn(4, 2, 15, 15)
    torch.manual_seed(3)
    first = ours(pixels)
    again = ours(pixels)
    assert not torch.equal(first.mask, again.mask)
    torch.manual_seed(3)
    assert torch.equal(ours(pixels).mask, first.mask)
    # 25 patches, of which int(25 · 0.4) stay visible.
    assert bool((first.mask.sum(dim=1) == 15).all())


def test_what_is_not_understood_is_refused(tmp_path: Path) -> None:
    theirs("ViTMAEForPreTraining", "small", 0, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for change, word in (
        ({"hidden_act": "mish"}, "mish"),
        ({"head_dim": 4}, "head_dim"),
        ({"image_size": [12, 16]}, "image_size"),
        ({"mask_ratio": 1.0}, "masked"),
        ({"decoder_num_attention_heads": 5}, "heads"),
        ({"decoder_num_hidden_layers": 3}, "layer.2"),
        ({"architectures": ["ViTMAEForImageClassification"]}, "ViTMAEForImageClassification"),
    ):
        (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
        with pytest.raises(ModelError, match=word):
            folders.open_model(tmp_path)
