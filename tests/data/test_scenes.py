"""Generated scenes: what is drawn is what is said of it; boxes are read as they were written."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from regard.data.boxes import Box, boxes_of_text, boxes_to_text, read_boxes
from regard.data.generated.scenes import COLOURS, SHAPES, scene, write_scenes
from regard.system.errors import DataError


@pytest.mark.parametrize("number", range(8))
def test_a_scene_follows_from_its_number(number: int) -> None:
    one, again, other = scene(3, number), scene(3, number), scene(4, number)
    assert np.array_equal(one.image, again.image)
    assert one.items == again.items
    assert one.questions == again.questions
    assert not np.array_equal(one.image, other.image)


@pytest.mark.parametrize("number", range(20))
def test_boxes_masks_and_words_are_of_what_is_drawn(number: int) -> None:
    one = scene(0, number, size=96)
    assert {SHAPES[i - 1] for i in np.unique(one.mask) if i} == {item.shape for item in one.items}
    for item in one.items:
        left, top, right, bottom = item.box
        inside = one.mask[top:bottom, left:right] == 1 + SHAPES.index(item.shape)
        # Each side of the box touches the shape.
        assert all(side.any() for side in (inside[0], inside[-1], inside[:, 0], inside[:, -1]))
        rows, columns = np.nonzero(inside)
        colour = np.median(one.image[top:bottom, left:right][rows, columns], axis=0)
        distances = {name: abs(colour - paint).sum() for name, paint in COLOURS.items()}
        overlapped = sum(other.shape == item.shape for other in one.items) > 1
        assert overlapped or min(distances, key=distances.__getitem__) == item.colour
    assert one.caption.count(" and ") == (len(one.items) > 1)
    for item in one.items:
        assert item.name in one.caption
    answers = dict(one.questions)
    for shape in SHAPES:
        count = answers.get(f"how many {shape}s are there?")
        assert count in (None, str(sum(item.shape == shape for item in one.items)))


def test_a_folder_is_read_as_it_was_drawn(tmp_path: Path) -> None:
    write_scenes(tmp_path, {"train": 3, "valid": 2}, seed=5, size=32)
    for split, first, count in (("train", 0, 3), ("valid", 3, 2)):
        examples = read_boxes(tmp_path / split)
        assert examples == read_boxes(tmp_path / split / "annotations.json")
        assert len(examples) == count
        for number, example in enumerate(examples, first):
            one = scene(5, number, 32)
            assert isinstance(example.image, Path)
            assert np.array_equal(np.array(Image.open(example.image)), one.image)
            mask = tmp_path / split / "masks" / example.image.name
            assert np.array_equal(np.array(Image.open(mask)), one.mask)
            assert example.boxes == tuple(Box(item.shape, item.box) for item in one.items)
    lines = (tmp_path / "train" / "captions.tsv").read_text().splitlines()
    assert lines[0] == f"images/000000.png\t{scene(5, 0, 32).caption}"
    asked = (tmp_path / "train" / "questions.tsv").read_text().splitlines()
    assert len(asked) == sum(len(scene(5, number, 32).questions) for number in range(3))


_VOC = """<annotation><filename>{name}</filename>{objects}</annotation>"""
_OBJECT = """<object><name>cell</name><bndbox><xmin>3</xmin><ymin>1</ymin><xmax>7</xmax>
<ymax>4</ymax></bndbox></object>"""


def voc(folder: Path, name: str, objects: str = _OBJECT) -> None:
    for kind in ("Annotations", "JPEGImages", "ImageSets/Main"):
        (folder / kind).mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 6)).save(folder / "JPEGImages" / f"{name}.png")
    text = _VOC.format(name=f"{name}.jpg", objects=objects)
    (folder / "Annotations" / f"{name}.xml").write_text(text)


def test_pascal_voc(tmp_path: Path) -> None:
    voc(tmp_path, "a")
    voc(tmp_path, "b", "")
    (tmp_path / "ImageSets/Main/train.txt").write_text("b\na 1\n")
    one, other = read_boxes(tmp_path)
    # Pixels are counted from 1 there, and the last one is inside.
    assert one.boxes == (Box("cell", (2.0, 0.0, 7.0, 4.0)),)
    assert other.boxes == ()
    assert read_boxes(tmp_path / "ImageSets/Main/train.txt") == [other, one]


def test_boxes_as_text() -> None:
    boxes = (Box("a", (1.0, 2.0, 3.0, 4.0)), Box("ö", (0.0, 0.0, 8.0, 6.0)))
    assert boxes_of_text(boxes_to_text(boxes, 8, 16), 8, 16) == boxes
    assert json.loads(boxes_to_text(boxes, 8, 16))[0] == ["a", 0.125, 0.125, 0.375, 0.25]


def test_what_is_no_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError):
        read_boxes(tmp_path)
    (tmp_path / "annotations.json").write_text('{"images": [{"id": 1}]}')
    with pytest.raises(DataError):
        read_boxes(tmp_path)
    voc(tmp_path / "voc", "a", _OBJECT.replace("xmin", "left"))
    with pytest.raises(DataError):
        read_boxes(tmp_path / "voc")
    (tmp_path / "voc/Annotations/a.xml").write_text("<annotation>")
    with pytest.raises(DataError):
        read_boxes(tmp_path / "voc")
