"""Pictures, and pictures with texts, against transformers on the same tiny folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import regard
from regard.models import DualEncoderModel, ImageEncoder
from regard.system.errors import DataError, ModelError, SettingError

transformers = pytest.importorskip("transformers")
Image = pytest.importorskip("PIL.Image")

SIZES = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 30,
    "image_size": 12,
    "patch_size": 4,
}


@torch.no_grad()
def saved(model: Any, out: Path) -> Any:
    for parameter in model.parameters():
        parameter.add_(torch.randn_like(parameter) * 0.3)
    model.eval().save_pretrained(out)
    return model


def pictures(place: Path) -> list[Any]:
    """A file, a Pillow image, and bytes."""
    chance = np.random.default_rng(0)
    arrays = [chance.integers(0, 256, (20 + 7 * i, 31, 3), dtype=np.uint8) for i in range(3)]
    Image.fromarray(arrays[0]).save(place / "one.png")
    return [place / "one.png", Image.fromarray(arrays[1]), arrays[2]]


def pixels(processor: Any, given: list[Any]) -> Any:
    return processor(
        [Image.open(g) if isinstance(g, Path) else g for g in given], return_tensors="pt"
    )["pixel_values"]


def processor(kind: str, out: Path, **options: Any) -> Any:
    made = getattr(transformers, f"{kind}ImageProcessorPil", None) or getattr(
        transformers, f"{kind}ImageProcessor"
    )
    made = made(**options)
    made.save_pretrained(out)
    said = json.loads((out / "preprocessor_config.json").read_text())
    (out / "preprocessor_config.json").write_text(json.dumps(said))
    return made


@pytest.mark.parametrize(
    "kind", ["ViTForImageClassification", "DeiTForImageClassificationWithTeacher"]
)
def test_classify(kind: str, tmp_path: Path) -> None:
    names = dict(enumerate("abc"))
    config = transformers.ViTConfig if kind.startswith("ViT") else transformers.DeiTConfig
    model = saved(
        getattr(transformers, kind)(
            config(**SIZES, id2label=names, label2id={n: i for i, n in names.items()})
        ),
        tmp_path,
    )
    prepare = processor("ViT", tmp_path, size={"height": 12, "width": 12})
    ours, given = regard.load(tmp_path), pictures(tmp_path)
    assert isinstance(ours, ImageEncoder)
    with torch.inference_mode():
        wanted = model(pixels(prepare, given)).logits.softmax(-1).tolist()
    for found, row in zip(ours.classify(given), wanted, strict=True):
        assert found == pytest.approx(dict(zip("abc", row, strict=True)), abs=1e-4)
        assert list(found.values()) == sorted(found.values(), reverse=True)
    assert ours.classify(given[0]) == pytest.approx(ours.classify(given)[0], abs=1e-5)


def test_embed(tmp_path: Path) -> None:
    given = pictures(tmp_path)
    for name in ("ViTModel", "CLIPVisionModelWithProjection"):
        config = transformers.ViTConfig if name[0] == "V" else transformers.CLIPVisionConfig
        model = saved(getattr(transformers, name)(config(**SIZES)), tmp_path / name)
        prepare = processor("ViT", tmp_path / name, size={"height": 12, "width": 12})
        ours = regard.load(tmp_path / name)
        assert isinstance(ours, ImageEncoder)
        with torch.inference_mode():
            out = model(pixels(prepare, given))
        wanted = out.image_embeds if "image_embeds" in out else out.last_hidden_state[:, 0]
        torch.testing.assert_close(ours.embed(given), wanted, rtol=0, atol=1e-4)
        torch.testing.assert_close(ours.embed(given[2]), wanted[2], rtol=0, atol=1e-4)
        with pytest.raises(ModelError, match="no classification head"):
            ours.classify(given[0])
    (tmp_path / "ViTModel/preprocessor_config.json").unlink()
    with pytest.raises(ModelError, match="preprocessor_config"):
        regard.load(tmp_path / "ViTModel").embed(given[0])  # type: ignore[attr-defined]


def clip(place: Path) -> Any:
    """A pair with a byte-level vocabulary of letters, each alone and at the end of a word."""
    letters = [*"abcdefghijklmnopqrstuvwxyz"]
    tokens = [
        *letters,
        *(f"{letter}</w>" for letter in letters),
        "ca",
        "cat</w>",
        "<|startoftext|>",
        "<|endoftext|>",
    ]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    end = vocabulary["<|endoftext|>"]
    text = {
        "vocab_size": len(tokens),
        "hidden_size": 24,
        "intermediate_size": 30,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "max_position_embeddings": 20,
        "bos_token_id": end - 1,
        "eos_token_id": end,
        "pad_token_id": end,
    }
    config = transformers.CLIPConfig(text_config=text, vision_config=SIZES, projection_dim=9)
    model = saved(transformers.CLIPModel(config), place)
    (place / "vocab.json").write_text(json.dumps(vocabulary))
    (place / "merges.txt").write_text("#version: 0.2\nc a\nca t</w>\n")
    return model


def test_texts_and_pictures(tmp_path: Path) -> None:
    model = clip(tmp_path)
    prepare = processor(
        "CLIP", tmp_path, size={"shortest_edge": 12}, crop_size={"height": 12, "width": 12}
    )
    tokenizer = transformers.CLIPTokenizer.from_pretrained(tmp_path)
    ours, given = regard.load(tmp_path), pictures(tmp_path)
    assert isinstance(ours, DualEncoderModel)
    captions = ["a photo of a cat", "Dog", "no photo"]
    words = tokenizer(captions, padding=True, return_tensors="pt")
    assert "token_type_ids" not in words
    with torch.inference_mode():
        wanted = model(**words, pixel_values=pixels(prepare, given))
    torch.testing.assert_close(ours.embed_text(captions), wanted.text_embeds, rtol=0, atol=2e-5)
    torch.testing.assert_close(
        ours.embed_text(captions[1]), wanted.text_embeds[1], rtol=0, atol=2e-5
    )
    torch.testing.assert_close(ours.embed_image(given), wanted.image_embeds, rtol=0, atol=1e-4)
    expected = wanted.logits_per_image.softmax(-1).tolist()
    for found, row in zip(ours.classify(given, captions), expected, strict=True):
        assert found == pytest.approx(dict(zip(captions, row, strict=True)), abs=1e-3)
    assert ours.classify(given[0], captions) == pytest.approx(
        ours.classify(given, captions)[0], abs=1e-4
    )
    for wrong in ("a cat", [], ["cat", "cat"]):
        with pytest.raises(SettingError, match="captions"):
            ours.classify(given[0], wrong)
    with pytest.raises(DataError, match="20 tokens"):
        ours.embed_text("cat " * 30)
    again = regard.load(ours.save(tmp_path / "ours"))
    torch.testing.assert_close(again.embed_text(captions), wanted.text_embeds, rtol=0, atol=2e-5)  # type: ignore
    assert (
        transformers.CLIPModel.from_pretrained(tmp_path / "ours").config.text_config.pad_token_id
        == 55
    )
