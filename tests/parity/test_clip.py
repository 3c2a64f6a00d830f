"""CLIP and its two towers against transformers: tiny random models, odd sizes, three seeds, both
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
from regard.builder import trainable
from regard.builder.parameter_count import parameter_count
from regard.families import folder as folders
from regard.system.errors import ModelError
from seeds import SEEDS

transformers = pytest.importorskip("transformers")

END = 36
TEXT = {
    "vocab_size": 37,
    "hidden_size": 20,
    "intermediate_size": 31,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 13,
    "bos_token_id": 35,
    "eos_token_id": END,
    "pad_token_id": 1,
    "projection_dim": 9,
}
VISION = {
    "hidden_size": 12,
    "intermediate_size": 30,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 14,
    "patch_size": 4,
    "num_channels": 2,
    "projection_dim": 9,
}
OTHER = {"hidden_act": "gelu", "layer_norm_eps": 1e-3, "attention_dropout": 0.2}
CASES: dict[str, Any] = {
    "plain": (TEXT, VISION),
    "an end inside the vocabulary": ({**TEXT, **OTHER, "eos_token_id": 20}, {**VISION, **OTHER}),
    "the highest token": ({**TEXT, "eos_token_id": 2}, VISION),
}
RAGGED = [11, 5, 8]


def texts(end: int) -> tuple[Tensor, Tensor]:
    """Rows that end with the end token and go on with padding, which is the end token again, as
    CLIP's tokenizer has it.
    """
    padding_mask = torch.arange(11) < torch.tensor(RAGGED)[:, None]
    tokens = torch.randint(3, 20, padding_mask.shape)
    tokens[:, 3] = 21  # above an end inside the vocabulary
    tokens[torch.arange(3), torch.tensor(RAGGED) - 1] = end
    return tokens.masked_fill(~padding_mask, end), padding_mask


def images() -> Tensor:
    return torch.randn(2, 2, 14, 14)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", CASES)
def test_the_pair(name: str, seed: int, tmp_path: Path) -> None:
    torch.manual_seed(seed)
    text, vision = CASES[name]
    config = transformers.CLIPConfig(
        text_config=text, vision_config=vision, projection_dim=7, logit_scale_init_value=1.5
    )
    model = shaken(transformers.CLIPModel(config))
    model.save_pretrained(tmp_path / "theirs")
    ours, opened = folders.open_model(tmp_path / "theirs")
    assert trainable(ours) == parameter_count(opened.spec)
    assert spec.from_dict(spec.to_dict(opened.spec)) == opened.spec
    tokens, padding_mask = texts(END if text["eos_token_id"] == 2 else text["eos_token_id"])
    pixels = images()

    def run(model: Any) -> dict[str, Tensor]:
        out = model(input_ids=tokens, attention_mask=padding_mask.long(), pixel_values=pixels)
        return {key: out[key] for key in ("logits_per_text", "text_embeds", "image_embeds")}

    with torch.inference_mode():
        wanted = run(model)
        assert close(ours(tokens, pixels, padding_mask)[0], wanted["logits_per_text"], 2e-5)  # type: ignore[call-arg, arg-type]
        assert close(ours.texts(tokens, padding_mask), wanted["text_embeds"], 2e-5)  # type: ignore[union-attr, operator]
        assert close(ours.texts(tokens), wanted["text_embeds"], 2e-5)  # type: ignore[union-attr, operator]
        assert close(ours.images(pixels), wanted["image_embeds"], 2e-5)  # type: ignore[union-attr, operator]
        check_back(opened, ours, tmp_path, transformers.CLIPModel.from_pretrained, run, wanted)


@pytest.mark.parametrize("kind", ["CLIPTextModel", "CLIPTextModelWithProjection"])
@pytest.mark.parametrize("name", CASES)
def test_the_text_tower(name: str, kind: str, tmp_path: Path) -> None:
    text = CASES[name][0]
    model = shaken(getattr(transformers, kind)(transformers.CLIPTextConfig(**text)))
    model.save_pretrained(tmp_path / "theirs")
    tokens, padding_mask = texts(END if text["eos_token_id"] == 2 else text["eos_token_id"])

    def run(model: Any) -> dict[str, Tensor]:
        out = model(input_ids=tokens, attention_mask=padding_mask.long())
        return {
            "hidden": out.last_hidden_state[padding_mask],
            "vector": out[0 if kind.endswith("Projection") else "pooler_output"],
        }

    check_tower(model, tmp_path, run, (tokens, padding_mask))


@pytest.mark.parametrize("kind", ["CLIPVisionModel", "CLIPVisionModelWithProjection"])
@pytest.mark.parametrize("options", [{}, OTHER], ids=["plain", "other"])
def test_the_image_tower(options: dict[str, Any], kind: str, tmp_path: Path) -> None:
    model = shaken(getattr(transformers, kind)(transformers.CLIPVisionConfig(**VISION, **options)))
    model.save_pretrained(tmp_path / "theirs")
    pixels = images()

    def run(model: Any) -> dict[str, Tensor]:
        out = model(pixels)
        return {
            "hidden": out.last_hidden_state,
            "vector": out[0 if kind.endswith("Projection") else "pooler_output"],
        }

    check_tower(model, tmp_path, run, (pixels, None))


def check_tower(model: Any, place: Path, run: Any, inputs: tuple[Tensor, Tensor | None]) -> None:
    ours, opened = folders.open_model(place / "theirs")
    assert trainable(ours) == parameter_count(opened.spec)
    with torch.inference_mode():
        wanted = run(model)
        hidden, _ = ours(*inputs)  # type: ignore[call-arg, arg-type]
        assert close(hidden if inputs[1] is None else hidden[inputs[1]], wanted["hidden"], 2e-5)
        assert close(ours.vector(*inputs), wanted["vector"], 2e-5)  # type: ignore[union-attr, operator]
        check_back(opened, ours, place, type(model).from_pretrained, run, wanted)


def test_files_of_other_times(tmp_path: Path) -> None:
    """Old files hold position_ids, say a tower twice, and have a prefix before a tower alone."""
    config = transformers.CLIPConfig(text_config=TEXT, vision_config=VISION, projection_dim=7)
    transformers.CLIPModel(config).save_pretrained(tmp_path / "pair")
    before = load_file(tmp_path / "pair" / "model.safetensors")
    config_json = json.loads((tmp_path / "pair" / "config.json").read_text())
    doubled = {
        **config_json,
        "text_config_dict": config_json["text_config"],
        "text_config": {**config_json["text_config"], "hidden_act": "relu"},
    }
    (tmp_path / "pair" / "config.json").write_text(json.dumps(doubled))
    ids = {
        "text_model.embeddings.position_ids": torch.arange(13)[None],
        "vision_model.embeddings.position_ids": torch.arange(10)[None],
    }
    save_file({**before, **ids}, tmp_path / "pair" / "model.safetensors")
    _, opened = folders.open_model(tmp_path / "pair")
    assert opened.spec.text.stack.block.feedforward.activation == "quick_gelu"  # type: ignore[union-attr]

    transformers.CLIPTextModel(config.text_config).save_pretrained(tmp_path / "text")
    tower = {name: tensor for name, tensor in before.items() if name.startswith("text_model.")}
    save_file(tower, tmp_path / "text" / "model.safetensors")
    _, opened = folders.open_model(tmp_path / "text")
    assert torch.equal(
        opened.weights["input.table.weight"], before["text_model.embeddings.token_embedding.weight"]
    )


def test_what_is_not_understood_is_refused(tmp_path: Path) -> None:
    transformers.CLIPModel(
        transformers.CLIPConfig(text_config=TEXT, vision_config=VISION)
    ).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())

    def tower(side: str, **changes: Any) -> dict[str, Any]:
        return {f"{side}_config": {**config[f"{side}_config"], **changes}}

    for change, word in (
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        (tower("text", rope_theta=1.0), "rope_theta"),
        (tower("vision", hidden_act="mish"), "mish"),
        (tower("vision", num_hidden_layers=1), "vision_model.encoder.layers.1"),
        ({"projection_dim": 5}, "shape"),
        ({"architectures": ["CLIPForImageClassification"]}, "CLIPForImageClassification"),
    ):
        (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
        with pytest.raises(ModelError, match=word):
            folders.open_model(tmp_path)


def test_towers_of_different_widths_are_no_pair() -> None:
    block = spec.Block(spec.Attention(2, 4, 4), spec.FeedForward(8))
    text = spec.Encoder(8, spec.Tokens(9), spec.Stack.of(1, block), (spec.Pool(width=5),))
    image = spec.Encoder(8, spec.Patches(12, 4), spec.Stack.of(1, block), (spec.Pool(),))
    with pytest.raises(ModelError, match="the same width"):
        spec.DualEncoder(text, image)
