"""Images with the boxes of objects: COCO's JSON, and folders of Pascal VOC's XML."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

from regard.data.image import Picture
from regard.system import disk
from regard.system.errors import DataError

ANNOTATIONS = "annotations.json"  # the name of COCO's file in a folder
Corners = tuple[float, float, float, float]  # left, top, right, bottom, in pixels


class Box(NamedTuple):
    """An object: its class, and its corners in pixels."""

    label: str
    corners: Corners


@dataclass(frozen=True)
class BoxedImage:
    """An image, and the boxes of the objects in it."""

    image: Picture
    boxes: tuple[Box, ...]


def read_boxes(path: str | Path) -> list[BoxedImage]:
    """The images of COCO's JSON or of Pascal VOC's folders.

    A JSON file, or a folder with annotations.json; or a folder with Annotations and JPEGImages, of
    which a list in ImageSets names some (`…/ImageSets/Main/train.txt`).
    """
    path = Path(path)
    coco = path / ANNOTATIONS if path.is_dir() else path
    if coco.suffix == ".json" and coco.is_file():
        examples = list(_read_coco(coco))
    elif path.suffix == ".txt":
        names = path.read_text(encoding="utf-8").split("\n")
        # ImageSets/Main/train.txt: a name on each line, perhaps with a number behind it.
        root = path.parents[2]
        files = (root / "Annotations" / f"{line.split()[0]}.xml" for line in names if line.strip())
        examples = [_read_voc(file) for file in files]
    else:
        examples = [_read_voc(file) for file in sorted(path.glob("Annotations/*.xml"))]
    if not examples:
        raise DataError(
            f"{path} holds no boxes",
            f"give a folder with {ANNOTATIONS} (COCO) or Annotations/*.xml (Pascal VOC)",
        )
    return examples


def _read_coco(file: Path) -> Iterator[BoxedImage]:
    about = disk.read_json_object(file, DataError)
    try:
        names = {one["id"]: str(one["name"]) for one in about["categories"]}
        boxes: dict[Any, list[Box]] = {one["id"]: [] for one in about["images"]}
        for one in about["annotations"]:
            if not one.get("iscrowd"):  # a crowd is no object
                left, top, width, height = map(float, one["bbox"])
                box = Box(names[one["category_id"]], (left, top, left + width, top + height))
                boxes[one["image_id"]].append(box)
        for one in about["images"]:
            yield BoxedImage(_image(file.parent, one["file_name"]), tuple(boxes[one["id"]]))
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{file} is not as COCO has it: {error!r}",
            "give images, annotations (bbox, category_id, image_id) and categories",
        ) from None


def _read_voc(file: Path) -> BoxedImage:
    try:
        root = ElementTree.parse(file).getroot()
        boxes = [Box(_text(one, "name"), _voc_corners(one)) for one in root.iter("object")]
        name = _text(root, "filename")
    except (OSError, ElementTree.ParseError, ValueError) as error:
        raise DataError(
            f"{file} is not as Pascal VOC has it: {error}", "give objects with a name and a bndbox"
        ) from None
    # Files may be named after another suffix than their image has.
    folder = file.parent.parent / "JPEGImages"
    return BoxedImage(_image(folder, name, f"{file.stem}.jpg", f"{file.stem}.png"), tuple(boxes))


def _voc_corners(one: ElementTree.Element) -> Corners:
    # Pascal VOC counts pixels from 1, and the last one is inside.
    left, top, right, bottom = (
        float(_text(one, f"bndbox/{name}")) for name in ("xmin", "ymin", "xmax", "ymax")
    )
    return left - 1, top - 1, right, bottom


def _text(element: ElementTree.Element, name: str) -> str:
    text = element.findtext(name)
    if text is None:
        raise ValueError(f"no {name}")
    return text.strip()


def _image(folder: Path, *names: str) -> Path:
    """The first of these files that there is."""
    for name in names:
        for path in (folder / name, folder / "images" / name):
            if path.is_file():
                return path
    raise DataError(f"{folder} lacks the image {names[0]}", "put it there")


# --- as one line of text --------------------------------------------------------------------------


def boxes_to_text(boxes: Iterable[Box], width: float = 1.0, height: float = 1.0) -> str:
    """Boxes as JSON, their corners as shares of an image of this size."""
    sides = (width, height, width, height)
    rows = [
        [one.label, *(corner / side for corner, side in zip(one.corners, sides, strict=True))]
        for one in boxes
    ]
    return json.dumps(rows, ensure_ascii=False)


def boxes_of_text(text: str, width: float = 1.0, height: float = 1.0) -> tuple[Box, ...]:
    """The inverse of `boxes_to_text`."""
    sides = (width, height, width, height)
    return tuple(
        Box(label, tuple(share * side for share, side in zip(shares, sides, strict=True)))
        for label, *shares in json.loads(text)
    )


def as_boxes(value: Any) -> tuple[Box, ...] | None:
    """The boxes that a value stands for: pairs of a class and four corners."""
    if isinstance(value, Mapping | str) or not isinstance(value, Iterable):
        return None
    try:
        return tuple(
            Box(str(label), tuple(map(float, corners)))  # type: ignore[arg-type]
            for label, corners in value
        )
    except (TypeError, ValueError):
        return None
