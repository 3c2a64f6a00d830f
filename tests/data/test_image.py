"""Pictures become the pixels that transformers makes of them, bit for bit."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from regard.data import image
from regard.system.errors import DataError, ModelError

pillow = pytest.importorskip("PIL.Image")

SIZES = [(31, 47), (64, 20), (9, 9)]
SAID: list[tuple[str, dict[str, Any]]] = [
    ("ViT", {"size": {"height": 20, "width": 17}}),
    (
        "ViT",
        {"size": 20, "resample": 0, "image_mean": [0.1, 0.2, 0.3], "image_std": [0.5, 0.6, 0.7]},
    ),
    ("ViT", {"do_resize": False, "do_normalize": False, "rescale_factor": 0.01}),
    ("ViT", {"size": {"shortest_edge": 12}, "do_rescale": False, "resample": 1}),
    ("DeiT", {"size": {"height": 30, "width": 30}, "crop_size": {"height": 21, "width": 24}}),
    ("CLIP", {"size": {"shortest_edge": 20}, "crop_size": {"height": 20, "width": 20}}),
    ("CLIP", {"size": 19, "crop_size": 26}),
    (
        "CLIP",
        {
            "size": {"shortest_edge": 20},
            "crop_size": {"height": 33, "width": 11},
            "do_normalize": False,
        },
    ),
    ("CLIP", {"do_center_crop": False, "size": {"height": 10, "width": 30}, "resample": 2}),
]


def noise(height: int, width: int, channels: int = 3) -> np.ndarray:
    return np.random.default_rng(height).integers(0, 256, (height, width, channels), dtype=np.uint8)


@pytest.mark.parametrize(("kind", "said"), SAID, ids=str)
def test_pixels_equal_transformers(kind: str, said: dict[str, Any], tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    processor = getattr(transformers, f"{kind}ImageProcessorPil")(**said)
    processor.save_pretrained(tmp_path)
    prepare = image.read_image_processor(tmp_path)
    assert prepare == image.image_processor(said, kind)  # what is left out is assumed alike
    for height, width in SIZES:
        array = noise(height, width)
        wanted = processor(pillow.fromarray(array), return_tensors="pt")["pixel_values"]
        for picture in (array, pillow.fromarray(array)):
            found = prepare.batch([picture])
            assert found.dtype == torch.float32
            assert torch.equal(found, wanted.float())


def test_files_and_other_kinds_of_pictures(tmp_path: Path) -> None:
    array = noise(12, 15)
    prepare = image.ImageProcessor((8, 8))
    wanted = prepare(array)
    pillow.fromarray(array).save(tmp_path / "a.png")
    assert torch.equal(prepare(tmp_path / "a.png"), wanted)
    exif = pillow.Exif()
    exif[0x0112] = 6  # the camera was held on its side: to be turned right by 90°
    pillow.fromarray(np.rot90(array).copy()).save(tmp_path / "turned.png", exif=exif)
    assert torch.equal(prepare(str(tmp_path / "turned.png")), wanted)
    grey = noise(12, 15, 1)[:, :, 0]
    assert torch.equal(prepare(grey), prepare(np.stack([grey] * 3, -1)))
    glass = np.concatenate([array, np.zeros((12, 15, 1), dtype=np.uint8)], -1)
    assert torch.equal(prepare(glass), prepare(np.full((12, 15, 3), 255, dtype=np.uint8)))
    palette = pillow.fromarray(array).convert("P")
    assert torch.equal(prepare(palette), prepare(palette.convert("RGB")))


def test_grey_levels_of_16_bits_keep_their_shades(tmp_path: Path) -> None:
    levels = np.linspace(0, 65535, 64).reshape(8, 8)
    pillow.fromarray(levels.astype(np.uint16)).save(tmp_path / "deep.png")
    prepare = image.ImageProcessor((8, 8), mean=None, std=None)
    wanted = torch.from_numpy(np.round(levels / 257) / 255).float()
    assert (prepare(tmp_path / "deep.png") - wanted).abs().max() < 0.5 / 255
    # The same picture as 32-bit numbers, as earlier versions of Pillow read it.
    assert torch.equal(
        prepare(pillow.fromarray(levels.astype(np.int32))), prepare(tmp_path / "deep.png")
    )
    for other in (levels.astype(np.int32) * 2, levels.astype(np.float32)):
        with pytest.raises(DataError, match="white"):
            prepare(pillow.fromarray(other))


def test_a_batch_has_one_size() -> None:
    with pytest.raises(DataError, match="different sizes"):
        image.ImageProcessor(10).batch([noise(12, 15), noise(15, 12)])


@pytest.mark.parametrize(
    "picture",
    [
        noise(4, 4).astype(np.float32),
        noise(4, 4, 2),
        np.zeros((0, 3, 3), np.uint8),
        "nowhere.png",
        __file__,
    ],
    ids=["floats", "two channels", "nothing", "no file", "no picture"],
)
def test_what_is_no_picture_is_refused(picture: Any) -> None:
    with pytest.raises(DataError, match="→"):
        image.ImageProcessor(4)(picture)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"do_flip": True}, "do_flip"),
        ({"do_pad": True}, "do_pad"),
        ({"size": {"longest_edge": 9}}, "size"),
        ({"size": {"shortest_edge": 9, "longest_edge": 12}}, "size"),
        ({"size": 0}, "size"),
        ({"crop_size": {"shortest_edge": 9}}, "crop_size"),
        ({"image_mean": [0.5]}, "image_mean"),
        ({"image_processor_type": "FlavaImageProcessor"}, "flava|Flava"),
    ],
    ids=str,
)
def test_what_is_not_understood_is_refused(
    change: dict[str, Any], word: str, tmp_path: Path
) -> None:
    said = {"image_processor_type": "CLIPImageProcessor", **change}
    (tmp_path / image.FILE).write_text(json.dumps(said))
    with pytest.raises(ModelError, match=word):
        image.read_image_processor(tmp_path)


def test_old_files_go_by_the_model_beside_them(tmp_path: Path) -> None:
    (tmp_path / image.FILE).write_text(json.dumps({"size": 32, "do_normalize": True}))
    with pytest.raises(ModelError, match="not understood"):
        image.read_image_processor(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "vit"}))
    assert image.read_image_processor(tmp_path).size == (32, 32)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "clip_vision_model"}))
    assert image.read_image_processor(tmp_path).size == 32
    with pytest.raises(ModelError, match="holds no"):
        image.read_image_processor(tmp_path / "nowhere")


def test_without_pillow_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(DataError, match=r"regard\[image\]"):
        image.ImageProcessor(4)(noise(4, 4))


@pytest.mark.parametrize("side", [32, 400])
def test_resnets_processor_crops_a_share(side: int, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    settings: dict[str, Any] = {
        "image_processor_type": "ConvNextImageProcessor",
        "size": {"shortest_edge": side},
        "crop_pct": 0.875,
        "resample": 3,
        "image_mean": [0.485, 0.456, 0.406],
        "image_std": [0.229, 0.224, 0.225],
    }
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    ours = image.read_image_processor(tmp_path)
    picture = np.random.default_rng(0).integers(0, 256, (61, 47, 3), dtype=np.uint8)
    theirs = transformers.AutoImageProcessor.from_pretrained(tmp_path, backend="pil")
    wanted = theirs(pillow.fromarray(picture), return_tensors="pt").pixel_values[0]
    assert torch.allclose(ours(pillow.fromarray(picture)), wanted, atol=1e-5)
    # What is written in its place does the same.
    again = image.image_processor(ours.to_config(), "clip")
    assert torch.equal(again(picture), ours(picture))
    assert ours.for_side(2 * side)(picture).shape == (3, 2 * side, 2 * side)
