"""Segmentation: masks move with their pixels, scores by hand, both heads, a run, what it draws."""

from __future__ import annotations

import io
import json
from base64 import b64decode
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import regard
from regard import look, spec
from regard.core.heads.mask_decoder import MaskDecoder
from regard.data.generated.scenes import scene, write_scenes
from regard.data.masks import NO_CLASS, nlvr_mask, read_masks
from regard.data.padding import IGNORED
from regard.evaluation.metrics.registry import metric
from regard.look.backdrop import MaskBackdrop
from regard.models import ImageEncoder
from regard.studio.answers import Question, answer, answer_probes
from regard.system.errors import DataError, ModelError
from regard.training.data.image_sources import Images
from regard.training.data.mask_sources import SegmentedImages
from regard.training.objectives.segmentation import image_segmenter
from seeds import SEEDS

SMALL: dict[str, Any] = {
    "objective": "segment", "image_size": 32, "crop_padding": 2, "steps": 2,
    "batch_tokens": 1024, "warmup_steps": 1, "schedule": "cosine", "learning_rate": 2e-3,
    "device": "cpu", "threads": 1, "validate_every": 2, "save_every": 2, "log_every": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scenes")
    write_scenes(folder, {"train": 6, "valid": 3}, size=32)
    return folder


@pytest.fixture(scope="module")
def run(scenes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    result = regard.train(
        images=str(scenes / "train"), valid_images=str(scenes / "valid"), model="segformer:tiny",
        metric="miou", out=tmp_path_factory.mktemp("run") / "run", **SMALL,
    )  # fmt: skip
    return result.folder


# --- data ---


def test_a_folder_holds_the_masks_of_its_scenes(scenes: Path) -> None:
    examples = read_masks(scenes / "train")
    assert examples[0].names == ("background", "circle", "square", "triangle")
    for number, one in enumerate(examples):
        np.testing.assert_array_equal(one.mask, scene(0, number, 32).mask)


def test_masks_move_with_their_pixels() -> None:
    draw = torch.Generator().manual_seed(0)
    labels = torch.randint(-1, 4, (3, 20, 16), generator=draw)
    labels[labels < 0] = IGNORED
    # A picture whose red is the class says what a crop of the mask must be.
    red = (labels.clamp_min(-1) + 1)[..., None].expand(-1, -1, -1, 3).to(torch.uint8)
    crop = {
        "corner": torch.tensor([[3.0, -2.0], [0, 0], [-1, 4]]),
        "mirrored": torch.tensor([False, True, True]),
        "scale": torch.tensor([0.7, 1.0, 1.2]),
    }
    source: Any = SegmentedImages.__new__(SegmentedImages)
    moved = source.pixel_classes({"labels": labels, **crop})
    expected = Images.cropped(red, crop)[:, 0].long() - 1
    assert torch.equal(moved, expected.masked_fill(expected < 0, IGNORED))
    assert (moved == IGNORED).any()


def test_nlvr_masks_are_drawn_from_objects(tmp_path: Path) -> None:
    one = {"type": "square", "size": 20, "x_loc": 10, "y_loc": 30, "color": "Black"}
    circle = {"type": "circle", "size": 30, "x_loc": 40, "y_loc": 0, "color": "Yellow"}
    mask = nlvr_mask([[], [one], [circle]])
    assert mask.shape == (100, 400)
    rows, columns = (mask == 2).nonzero()
    assert (rows.min(), rows.max(), columns.min(), columns.max()) == (30, 49, 160, 179)
    assert (mask == 2).sum() == 400
    assert (mask == 1).sum() == pytest.approx(np.pi * 15**2, rel=0.02)
    (tmp_path / "images" / "0").mkdir(parents=True)
    Image.new("RGB", (400, 100)).save(tmp_path / "images/0/dev-1-2-0.png")
    about = {"identifier": "1-2", "directory": "0", "structured_rep": [[], [one], [circle]]}
    (tmp_path / "dev.json").write_text(json.dumps(about) + "\n")
    [example] = read_masks(tmp_path / "dev.json")
    np.testing.assert_array_equal(example.mask, mask)
    (tmp_path / "dev.json").write_text('{"identifier": "1-2"}\n')
    with pytest.raises(DataError):
        read_masks(tmp_path / "dev.json")


# --- scores ---


@pytest.mark.parametrize("seed", SEEDS)
def test_scores_are_those_of_a_confusion_matrix(seed: int) -> None:
    draw = np.random.default_rng(seed)
    shapes = [(4, 5), (6, 3), (2, 2)]
    references = [draw.integers(0, 4, shape).astype(np.uint8) for shape in shapes]
    references[0][0] = NO_CLASS
    predictions = [draw.integers(0, 4, shape).astype(np.uint8) for shape in shapes]
    confusion = np.zeros((4, 4))
    for one, other in zip(predictions, references, strict=True):
        there = other != NO_CLASS
        np.add.at(confusion, (other[there], one[there]), 1)
    hits = np.diag(confusion)
    expected = hits / (confusion.sum(axis=0) + confusion.sum(axis=1) - hits)
    scored = metric("miou").compute(predictions, references)
    assert scored == pytest.approx(100 * expected.mean())
    share = 100 * hits.sum() / confusion.sum()
    assert metric("pixel_accuracy").compute(predictions, references) == pytest.approx(share)


def test_a_mask_of_another_size_is_refused() -> None:
    with pytest.raises(DataError):
        metric("miou").compute([np.zeros((2, 3), np.uint8)], [np.zeros((3, 2), np.uint8)])


# --- the mask Transformer ---


def segmenter(**changes: Any) -> spec.Encoder:
    sizes = {"d_model": 16, "d_ff": 16, "heads": 2, "layers": 1, "patch": 8, **changes}
    return image_segmenter(regard.preset("vit:tiny", 3, 32, **sizes), 3)


@pytest.mark.parametrize("seed", SEEDS)
def test_masks_are_scalar_products_of_patches_and_classes(seed: int) -> None:
    torch.manual_seed(seed)
    core = regard.build(segmenter()).eval()
    head = core.require(MaskDecoder)
    hidden, _ = core(torch.randn(2, 3, 32, 32))
    logits = head(hidden)
    assert logits.shape == (2, 16, 3)
    # Every image's patches and classes see each other and no other image.
    torch.testing.assert_close(head(hidden[1:]), logits[1:])
    # The norm over classes leaves the order of cosines; without it they are at most 1.
    both = head.stack(
        torch.cat([head.project(hidden[:, 1:]), head.classes.expand(2, -1, -1)], dim=1)
    )
    patches, classes = head.patch_map(both[:, :16]), head.class_map(both[:, 16:])
    cosines = torch.cosine_similarity(patches[:, :, None], classes[:, None], dim=-1)
    assert torch.equal(cosines.argsort(dim=-1), logits.argsort(dim=-1))
    # The class token is no patch.
    changed = hidden.clone()
    changed[:, 0] += 1
    assert torch.equal(head(changed), logits)


def test_any_encoder_of_images_becomes_a_segmenter(tmp_path: Path) -> None:
    for description in (segmenter(), image_segmenter(regard.preset("swin:tiny", 2, 32), 3)):
        core = regard.build(description)
        made = ImageEncoder(core, description, {"id2label": {i: str(i) for i in range(3)}})
        made.save(tmp_path / "model")
        opened = regard.load(tmp_path / "model", ImageEncoder)
        assert opened.spec == description
        assert opened.evaluations == ("segment",)
        assert opened(torch.randn(1, 3, 32, 32))["logits"].shape[:2] == (1, 3)


# --- a run, and what is done with it ---


def test_a_run_is_scored_asked_and_drawn(run: Path, scenes: Path) -> None:
    model = regard.load(run, ImageEncoder)
    report = regard.evaluate(model, str(scenes / "valid"))
    assert report.task == "segment"
    line = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert report["miou"] == pytest.approx(line["miou"], abs=1e-6)
    file = scenes / "valid/images/000000.png"
    [prediction] = regard.predict(model, [str(file)])
    content = b64decode(prediction.answer["mask"].partition("base64,")[2])
    found = model.segment(str(file))
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(content))), found.mask)
    assert prediction.answer["shares"] == found.shares
    # A larger picture has a larger mask, of the same logits.
    assert model.segment(Image.open(file).resize((80, 48))).mask.shape == (48, 80)
    looked = model.look(file, ask=("*.weights", "logits"))
    backdrop = looked.attention("encoder.0.self").backdrop
    assert isinstance(backdrop, MaskBackdrop)
    np.testing.assert_array_equal(backdrop.mask, found.mask)
    for layer in range(3):
        looked.attention(f"encoder.{layer}.self").scene()
    assert answer_probes(model.model) == ("logits",)
    said = answer(Question(model, looked, "a picture"))
    shares = {one.label: one.probability for one in said.shares}
    assert shares == pytest.approx(found.shares)
    assert "attention" in look.fitting_views(model)


def test_a_classifier_segments_nothing() -> None:
    description = regard.preset("vit:tiny", 3, 32, d_model=16, d_ff=16, heads=2, layers=1)
    model = ImageEncoder(regard.build(description), description, {})
    with pytest.raises(ModelError):
        model.segment([])


LEARNT = {
    "segformer:tiny": ({"steps": 150, "validate_every": 150}, 80),
    "vit:tiny": (
        {
            "steps": 150, "validate_every": 150, "learning_rate": 3e-3, "warmup_steps": 50,
            "patch": 4, "d_model": 64, "heads": 4, "layers": 2,
        },
        70,
    ),
}  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("model", LEARNT)
def test_scenes_are_learnt_by_heart(model: str, scenes: Path, tmp_path: Path) -> None:
    changes, least = LEARNT[model]
    settings = SMALL | {"crop_padding": 0, "flip": 0.0} | changes
    result = regard.train(
        images=str(scenes / "train"), valid_images=str(scenes / "train"), model=model,
        out=tmp_path / "run", optimizer="adamw", **settings,
    )  # fmt: skip
    assert result.scores["valid"].miou > least  # always the most frequent class: 22
