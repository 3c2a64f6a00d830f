"""What a detector has found, on the image: boxes of queries, and where each of them looks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import regard
from regard import look
from regard.data.generated.scenes import scene
from regard.look.backdrop import DetectionBackdrop
from regard.look.drawing import Line
from regard.models import ObjectDetector
from regard.models.labels import label_config
from regard.studio.answers import Question, answer, answer_probes


@pytest.fixture
def detector(tmp_path: Path) -> ObjectDetector:
    """Three of its six queries are sure of a class, at places of their own."""
    torch.manual_seed(0)
    model = regard.preset("detr:tiny", 3, 40, d_model=16, d_ff=16, heads=2, layers=2, queries=6)
    core = regard.build(model)
    head = core.get_submodule("labels")
    with torch.no_grad():
        head.classes.weight.mul_(30)
    made = ObjectDetector(core, model, label_config(["circle", "square", "triangle"]))
    made.model.eval()
    made.save(tmp_path / "model")
    (tmp_path / "model/preprocessor_config.json").write_text(
        '{"image_processor_type": "ViTImageProcessor", "size": {"height": 40, "width": 40}}'
    )
    return regard.load(tmp_path / "model", ObjectDetector)


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    path = tmp_path / "scene.png"
    Image.fromarray(scene(0, 2, 80).image).save(path)
    return path


def lines(marks: object) -> int:
    return sum(isinstance(mark, Line) and mark.width == 2.0 for mark in marks)  # type: ignore[attr-defined]


def test_boxes_on_the_image_are_those_that_are_detected(
    detector: ObjectDetector, picture: Path
) -> None:
    run = detector.look(picture)
    cross = run.attention("decoder.1.cross")
    backdrop = cross.backdrop
    assert isinstance(backdrop, DetectionBackdrop)
    assert cross.rows == tuple(f"query {i}" for i in range(6))
    assert len(cross.columns) == 10 * 10  # positions of 4 pixels
    objects = detector.detect(picture)
    sure = [box for box in backdrop.boxes if box.score > 0.5]
    assert sorted(box.label for box in sure) == sorted(one.label for one in objects)
    # The picture has 40 pixels a side, the file 80.
    for box, one in zip(sorted(sure, key=lambda box: -box.score), objects, strict=True):
        np.testing.assert_allclose(2 * np.array(box.corners), one.box, atol=1e-3)
        assert box.score == pytest.approx(one.score, abs=1e-6)
    # Four sides of each box, in its own tile; on the encoder's maps all of them.
    shown = len(backdrop.detected)
    assert lines(cross.scene().marks) == 4 * shown
    heads = run.attention("encoder.0.self")
    assert lines(heads.scene().marks) == 4 * shown * 2
    name = backdrop.detected[0].query
    row = run.attention("decoder.1.cross", rows=[int(name.split()[1])])
    assert lines(row.scene().marks) == 4


def test_views_and_the_answer_of_the_studio(detector: ObjectDetector, picture: Path) -> None:
    assert {"attention", "alignment", "entropy"} <= set(look.fitting_views(detector))
    run = detector.look(picture, ask=("*.weights", "logits"))
    assert answer_probes(detector.model) == ("logits",)
    said = answer(Question(detector, run, "a picture"))
    objects = detector.detect(picture)
    assert [share.label for share in said.shares] == [one.label for one in objects]
    assert not said.distribution
    look.alignment(run).scene()
    look.entropy(run).scene()
