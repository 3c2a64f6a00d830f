"""Detection: the best matching, boxes that move with their pixels, losses that add up, a run."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import regard
from regard import spec
from regard.core import boxes
from regard.core.frontends.feature_map import ObjectQueries
from regard.data.generated.scenes import scene, write_scenes
from regard.data.padding import IGNORED
from regard.lab.plan.planner import plan
from regard.models import ObjectDetector
from regard.training.data.box_sources import BoxedImages, crop_boxes
from regard.training.data.image_augmentation import crop_and_flip
from regard.training.objectives.detection import (
    GIOU_WEIGHT,
    L1_WEIGHT,
    detection_losses,
    match,
    mean_boxes,
)
from regard.training.objectives.objective import copy_weights
from seeds import SEEDS


def random_boxes(*shape: int) -> Tensor:
    return torch.rand(*shape, 4) * 0.4 + 0.2


@pytest.mark.parametrize("seed", SEEDS)
def test_no_assignment_costs_less(seed: int) -> None:
    torch.manual_seed(seed)
    logits, guesses = torch.randn(1, 4, 3), random_boxes(1, 4)
    labels, objects = torch.randint(0, 2, (1, 3)), random_boxes(1, 3)

    def cost(queries: Any) -> float:
        total = torch.zeros(())
        for i, query in enumerate(queries):
            one, other = guesses[0, query], objects[0, i]
            overlap = boxes.generalized_iou(boxes.corners(one), boxes.corners(other))
            total += L1_WEIGHT * (one - other).abs().sum() - GIOU_WEIGHT * overlap
            total -= logits[0, query].softmax(-1)[labels[0, i]]
        return float(total)

    pairs = match(logits, guesses, labels, objects)
    chosen = pairs.query[pairs.object.argsort()].tolist()
    best = min(permutations(range(4), 3), key=cost)
    assert cost(chosen) == pytest.approx(cost(best), abs=1e-5)


def test_losses_of_a_batch_are_those_of_its_images() -> None:
    torch.manual_seed(0)
    logits, guesses = torch.randn(3, 5, 4), random_boxes(3, 5)
    labels = torch.tensor([[0, 2], [1, IGNORED], [IGNORED, IGNORED]])
    objects = random_boxes(3, 2)
    whole = detection_losses(logits, guesses, labels, objects)
    each = [
        detection_losses(
            logits[i : i + 1], guesses[i : i + 1], labels[i : i + 1], objects[i : i + 1]
        )
        for i in range(3)
    ]
    for name in whole._fields:
        total = sum(getattr(one, name) for one in each)
        torch.testing.assert_close(getattr(whole, name), total)


def test_boxes_that_are_as_they_should_be_cost_nothing() -> None:
    objects = random_boxes(2, 3)
    labels = torch.tensor([[0, 1, 1], [1, 0, 0]])
    logits = 100 * torch.nn.functional.one_hot(labels, 3).float()
    losses = detection_losses(logits.flip(1), objects.flip(1), labels, objects)
    assert float(losses.total) == pytest.approx(0, abs=1e-5)


def test_generalized_iou_of_known_boxes() -> None:
    first = torch.tensor([[0.0, 0, 2, 2], [0, 0, 1, 1], [0, 0, 2, 2]])
    second = torch.tensor([[1.0, 1, 3, 3], [2, 0, 3, 1], [0, 0, 2, 2]])
    torch.testing.assert_close(boxes.iou(first, second), torch.tensor([1 / 7, 0, 1]))
    # Around them are 9 and 3: (9 − 7) / 9 and (3 − 2) / 3 are filled by neither.
    expected = torch.tensor([1 / 7 - 2 / 9, -1 / 3, 1])
    torch.testing.assert_close(boxes.generalized_iou(first, second), expected)


@pytest.mark.parametrize("zoom", [None, 0.6, 1.3])
@pytest.mark.parametrize("mirrored", [False, True])
def test_boxes_move_with_their_pixels(zoom: float | None, mirrored: bool) -> None:
    side = 40
    pixels = torch.zeros(1, 3, side, side, dtype=torch.uint8)
    pixels[:, :, 12:22, 15:30] = 255
    crop = {"corner": torch.tensor([[4, -3]]), "mirrored": torch.tensor([mirrored])}
    if zoom is not None:
        crop["scale"] = torch.tensor([zoom])
    after = crop_and_flip(pixels, crop["corner"], crop["mirrored"], crop.get("scale"))[0, 0]
    corners = torch.tensor([[[15.0, 12, 30, 22]]]) / side
    moved, visible = crop_boxes(corners, crop, [side, side])
    rows, columns = after.nonzero().unbind(1)
    drawn = torch.stack([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]).float()
    assert visible.all()
    assert ((moved[0, 0] * side - drawn).abs() <= 1).all()


def test_an_object_outside_of_the_crop_is_none() -> None:
    crop = {"corner": torch.tensor([[0, 30]]), "mirrored": torch.tensor([False])}
    corners = torch.tensor([[[0.0, 0, 0.5, 0.5], [0.6, 0, 1, 0.5], [0.5, 0, 0.8, 0.5]]])
    _, visible = crop_boxes(corners, crop, [40, 40])
    assert visible.tolist() == [[False, True, False]]


def test_queries_ask_for_no_gradients_where_nobody_does() -> None:
    queries = ObjectQueries(3, 8)
    memory = torch.zeros(2, 5, 8)
    assert queries.added_positions(memory, None).requires_grad
    with torch.no_grad():
        assert not queries.added_positions(memory, None).requires_grad


@pytest.mark.parametrize("count", [1, 5, 16, 48])
def test_queries_begin_with_their_anchors(count: int) -> None:
    torch.manual_seed(0)
    core = regard.build(regard.preset("detr:tiny", 3, 32, queries=count)).eval()
    head = core.get_submodule("labels")
    with torch.no_grad():
        _, found = head(core(torch.randn(2, 3, 32, 32))[0])
        anchors = core.target.anchors.boxes.sigmoid()
    torch.testing.assert_close(found, anchors.expand(2, -1, -1), atol=1e-6, rtol=0)
    # No two are at one place, and together they are spread over the whole image.
    assert len(anchors[:, :2].unique(dim=0)) == count
    torch.testing.assert_close(anchors[:, 0].mean(), torch.tensor(0.5), atol=0.12, rtol=0)
    # A query is as a position of the map at its middle.
    grid = core.source.position(torch.ones(1, 8, 8, dtype=torch.bool)).flatten(1, 2)[0]
    row, column = (anchors[0, :2].flip(0) * 8).ceil().long() - 1
    places = core.target.anchors.positions(64)[0] @ grid.T
    assert places.argmax() in (row * 8 + column + step for step in (-9, -8, -1, 0, 1, 8, 9))


def test_other_classes_leave_the_boxes_as_they_were(tmp_path: Path) -> None:
    torch.manual_seed(0)
    description = regard.preset("detr:tiny", 3, 32, d_model=16, d_ff=16, heads=2, layers=1)
    base = ObjectDetector(regard.build(description), description, {})
    core = regard.build(description.with_head(spec.DetectionHead(5)))
    copy_weights(base, core)
    for name, value in core.named_parameters():
        same = (
            name in (old := dict(base.model.named_parameters())) and value.shape == old[name].shape
        )
        assert same == (not name.startswith("labels.classes."))
        assert not same or torch.equal(value, old[name]), name
    # The head and the queries have one table of anchors.
    assert core.get_submodule("labels").anchors is core.target.anchors
    made = ObjectDetector(core, description.with_head(spec.DetectionHead(5)), {})
    made.save(tmp_path)
    opened = regard.load(tmp_path, ObjectDetector).model
    assert opened.get_submodule("labels").anchors.boxes is opened.target.anchors.boxes
    assert torch.equal(opened.target.anchors.boxes, base.model.target.anchors.boxes)


def test_a_detector_is_planned() -> None:
    result = plan("detr:tiny", device="H200")
    assert result.subject.objective == "detect"
    assert result.subject.sizes.length == 64


def test_mean_boxes_are_one_for_each_class() -> None:
    train = [BoxedImages.of_scene(scene(0, number, 32)).boxes for number in range(30)]
    baseline = mean_boxes(train)
    assert [label for label, _, _ in baseline] == ["circle", "square", "triangle"]
    assert all(0 < score <= 1 for _, score, _ in baseline)


@pytest.mark.thorough
def test_a_run_learns_scenes_is_scored_and_opened_again(tmp_path: Path) -> None:
    write_scenes(tmp_path / "scenes", {"train": 12, "valid": 4}, size=32, most=2)
    folder = tmp_path / "run"
    result = regard.train(
        images=str(tmp_path / "scenes/train"), valid_images=str(tmp_path / "scenes/train"),
        objective="detect", model="detr:tiny", image_size=32, d_model=32, d_ff=64, heads=2,
        layers=1, dropout=0.0, crop_padding=0, flip=0.0, steps=150, batch_tokens=192,
        learning_rate=2e-3, schedule="cosine", optimizer="adamw", max_grad_norm=1.0,
        validate_every=150, device="cpu", threads=1, out=str(folder),
    )  # fmt: skip
    assert result.scores["valid"].ap50 > 40
    model = regard.load(folder)
    report = regard.evaluate(model, str(tmp_path / "scenes/train"))
    assert report["ap50"] == pytest.approx(result.scores["valid"].ap50, abs=1.0)
    image = next((tmp_path / "scenes/train/images").iterdir())
    [prediction] = regard.predict(model, [str(image)])
    assert [one["label"] for one in prediction.answer] == [
        one.label for one in model.detect(str(image))
    ]
    assert all(one["label"] in prediction.text for one in prediction.answer)
    for one in model.detect(str(image), threshold=0.3):
        assert one.label in ("circle", "square", "triangle")
        assert np.array(one.box).min() > -5
