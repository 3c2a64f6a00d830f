"""SigLIP, its two towers and its classifier against transformers: tiny random models, odd sizes,
padding, three seeds, both directions.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from test_vision import check_back, close, shaken
from torch import Tensor

import regard
from regard import spec
from regard.builder import trainable
from regard.builder.parameter_count import parameter_count
from regard.families import folder as folders
from regard.system.errors import ModelError
from regard.training.objectives.contrastive import sigmoid_loss
from seeds import SEEDS

transformers = pytest.importorskip("transformers")

TEXT = {
    "vocab_size": 37,
    "hidden_size": 20,
    "intermediate_size": 31,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 13,
    "projection_size": 12,
}
VISION = {
    "hidden_size": 12,
    "intermediate_size": 30,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 14,
    "patch_size": 4,
    "num_channels": 2,
}
OTHER = {"hidden_act": "gelu", "layer_norm_eps": 1e-3, "attention_dropout": 0.2}
CASES: dict[str, dict[str, Any]] = {"plain": {}, "other": OTHER}
RAGGED = [11, 5, 8]


def texts() -> tuple[Tensor, Tensor]:
    padding_mask = torch.arange(11) < torch.tensor(RAGGED)[:, None]
    tokens = torch.randint(3, 37, padding_mask.shape)
    return tokens.masked_fill(~padding_mask, 1), padding_mask


def images() -> Tensor:
    return torch.randn(2, 2, 14, 14)


def pair_config(**options: Any) -> Any:
    return transformers.SiglipConfig(
        text_config={**TEXT, **options}, vision_config={**VISION, **options}
    )


def saved(model: Any, folder: Path) -> Any:
    model = shaken(model)
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", CASES)
def test_the_pair(name: str, seed: int, tmp_path: Path) -> None:
    torch.manual_seed(seed)
    model = saved(transformers.SiglipModel(pair_config(**CASES[name])), tmp_path / "theirs")
    ours, opened = folders.open_model(tmp_path / "theirs")
    assert trainable(ours) == parameter_count(opened.spec)
    assert spec.from_dict(spec.to_dict(opened.spec)) == opened.spec
    tokens, padding_mask = texts()
    pixels = images()

    def run(model: Any) -> dict[str, Tensor]:
        masked = model(input_ids=tokens, attention_mask=padding_mask.long(), pixel_values=pixels)
        # As it was trained: padding is read like any other token.
        plain = model(input_ids=tokens, pixel_values=pixels)
        outputs = {key: masked[key] for key in ("logits_per_text", "text_embeds", "image_embeds")}
        return {**outputs, "plain": plain.logits_per_text}

    with torch.inference_mode():
        wanted = run(model)
        assert close(ours(tokens, pixels, padding_mask)[0], wanted["logits_per_text"], 2e-5)  # type: ignore[call-arg, arg-type]
        assert close(ours(tokens, pixels)[0], wanted["plain"], 2e-5)  # type: ignore[call-arg, arg-type]
        assert close(ours.texts(tokens, padding_mask), wanted["text_embeds"], 2e-5)  # type: ignore[union-attr, operator]
        assert close(ours.images(pixels), wanted["image_embeds"], 2e-5)  # type: ignore[union-attr, operator]
        check_back(opened, ours, tmp_path, transformers.SiglipModel.from_pretrained, run, wanted)


@pytest.mark.parametrize("name", CASES)
def test_the_text_tower(name: str, tmp_path: Path) -> None:
    config = transformers.SiglipTextConfig(**TEXT, **CASES[name])
    model = saved(transformers.SiglipTextModel(config), tmp_path / "theirs")
    tokens, padding_mask = texts()
    ours = regard.load(tmp_path / "theirs", device="cpu")
    called = ours(input_ids=tokens, attention_mask=padding_mask.long())

    def run(model: Any) -> dict[str, Tensor]:
        out = model(input_ids=tokens, attention_mask=padding_mask.long())
        return {"hidden": out.last_hidden_state[padding_mask], "vector": out.pooler_output}

    with torch.inference_mode():
        wanted = run(model)
        assert close(called.last_hidden_state[padding_mask], wanted["hidden"], 2e-5)
        assert close(called.pooler_output, wanted["vector"], 2e-5)
        _, opened = folders.open_model(tmp_path / "theirs")
        check_back(opened, ours.model, tmp_path, type(model).from_pretrained, run, wanted)


@pytest.mark.parametrize("with_head", [True, False])
@pytest.mark.parametrize("kind", ["SiglipVisionModel", "SiglipForImageClassification"])
def test_the_image_tower(kind: str, with_head: bool, tmp_path: Path) -> None:
    """A classifier reads the mean of the patches; its folder has the tower's own head as well."""
    options = {**VISION, **OTHER, "vision_use_head": with_head}
    if kind == "SiglipVisionModel":
        model = transformers.SiglipVisionModel(transformers.SiglipVisionConfig(**options))
    else:
        config = transformers.SiglipConfig(text_config=TEXT, vision_config=options, num_labels=3)
        model = transformers.SiglipForImageClassification(config)
    model = saved(model, tmp_path / "theirs")
    ours = regard.load(tmp_path / "theirs", device="cpu")
    assert ours.tasks == ["embed", "classify"]
    pixels = images()

    def run(model: Any) -> dict[str, Tensor]:
        out = model(pixel_values=pixels)
        return {key: value for key, value in out.items() if value is not None}

    with torch.inference_mode():
        wanted = run(model)
        called = ours(pixel_values=pixels)
        assert called.keys() == wanted.keys()
        for key, value in wanted.items():
            assert close(called[key], value, 2e-5), key
        _, opened = folders.open_model(tmp_path / "theirs")
        check_back(opened, ours.model, tmp_path, type(model).from_pretrained, run, wanted)


def test_the_loss_is_theirs(tmp_path: Path) -> None:
    model = saved(transformers.SiglipModel(pair_config()), tmp_path)
    tokens = texts()[0][:2]
    with torch.inference_mode():
        out = model(input_ids=tokens, pixel_values=images(), return_loss=True)
        assert torch.allclose(sigmoid_loss(out.logits_per_text) / 2, out.loss)


def test_what_is_not_understood_is_refused(tmp_path: Path) -> None:
    saved(transformers.SiglipModel(pair_config()), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())

    def tower(side: str, **changes: Any) -> dict[str, Any]:
        return {f"{side}_config": {**config[f"{side}_config"], **changes}}

    for change, word in (
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        (tower("text", rope_theta=1.0), "rope_theta"),
        (tower("vision", hidden_act="mish"), "mish"),
        (tower("vision", num_hidden_layers=1), "vision_model.encoder.layers.1"),
        (tower("text", projection_size=5), "the same width"),
        ({"architectures": ["SiglipForVideo"]}, "SiglipForVideo"),
    ):
        (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
        with pytest.raises(ModelError, match=word):
            folders.open_model(tmp_path)
