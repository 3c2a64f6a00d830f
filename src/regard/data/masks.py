"""Images with masks, the class of each pixel: folders of both, and NLVR's, drawn from objects."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.generated.scenes import BACKGROUND, CLASSES_FILE, SHAPES, inside_shape
from regard.data.image import Picture, open_image
from regard.system.errors import DataError

NO_CLASS = 255  # of a pixel that nobody has labelled
Mask = NDArray[np.uint8]  # [height, width]

# NLVR's images (Suhr et al. 2017): three boxes of 100 pixels a side, 50 apart.
_BOX, _STEP = 100, 150
_WIDTH = 2 * _STEP + _BOX


@dataclass(frozen=True, eq=False)
class SegmentedImage:
    """An image, the class of each of its pixels, and the names of all classes."""

    image: Picture
    mask: Mask
    names: tuple[str, ...]


def read_masks(path: str | Path) -> list[SegmentedImage]:
    """The images of a folder with `images` and `masks`, or of a file of NLVR (test.json).

    A mask is a PNG file of the same name, whose bytes are classes; 255 is none. `classes.txt` has
    their names, one in each line.
    """
    path = Path(path)
    if path.suffix == ".json":
        examples = list(_read_nlvr(path))
    else:
        files = sorted((path / "masks").glob("*.png"))
        masks = [_read_mask(file) for file in files]
        names = _names(path / CLASSES_FILE, masks)
        examples = [
            SegmentedImage(_image(path / "images", file.stem), mask, names)
            for file, mask in zip(files, masks, strict=True)
        ]
    if not examples:
        raise DataError(
            f"{path} holds no masks", "give a folder with images and masks/*.png, or NLVR's JSON"
        )
    return examples


def _read_mask(file: Path) -> Mask:
    # Not as colours: the bytes of a palette are the classes.
    mask = np.asarray(open_image(file))
    if mask.ndim != 2 or mask.dtype != np.uint8:
        raise DataError(
            f"{file} has the shape {mask.shape}, and numbers of {mask.dtype}",
            "give masks of one byte for each pixel",
        )
    return mask


def _names(file: Path, masks: list[Mask]) -> tuple[str, ...]:
    if file.is_file():
        return tuple(file.read_text(encoding="utf-8").splitlines())
    most = max((int(mask[mask != NO_CLASS].max(initial=0)) for mask in masks), default=0)
    return tuple(f"class {number}" for number in range(most + 1))


def _image(folder: Path, stem: str) -> Path:
    for suffix in (".png", ".jpg", ".jpeg"):
        file = folder / f"{stem}{suffix}"
        if file.is_file():
            return file
    raise DataError(f"{folder} lacks the image of the mask {stem}", "put it there")


def _read_nlvr(file: Path) -> Iterator[SegmentedImage]:
    """The first of the images of each sentence: the others have its boxes in another order."""
    names = (BACKGROUND, *SHAPES)
    try:
        for line in file.read_text(encoding="utf-8").splitlines():
            about = json.loads(line)
            name = f"{file.stem}-{about['identifier']}-0.png"
            image = file.parent / "images" / about["directory"] / name
            if image.is_file():
                yield SegmentedImage(image, nlvr_mask(about["structured_rep"]), names)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{file} is not as NLVR has it: {error!r}",
            "give lines with identifier, directory and structured_rep",
        ) from None


def nlvr_mask(boxes: list[list[Mapping[str, Any]]]) -> Mask:
    """The classes of the pixels of an image of NLVR, by the objects in each of its boxes."""
    mask = np.zeros((_BOX, _WIDTH), np.uint8)
    y, x = np.arange(_BOX)[:, None] + 0.5, np.arange(_WIDTH)[None] + 0.5
    for number, objects in enumerate(boxes):
        for one in objects:
            half = one["size"] / 2
            middle_x = number * _STEP + one["x_loc"] + half
            middle_y = one["y_loc"] + half
            place = (x - middle_x) / half, (y - middle_y) / half
            mask[_nlvr_shape(one["type"], *place)] = 1 + SHAPES.index(one["type"])
    return mask


def _nlvr_shape(shape: str, x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which points are in a shape whose box goes from −1 to 1: scenes leave a margin, NLVR none."""
    match shape:
        case "square":
            return (abs(x) <= 1) & (abs(y) <= 1)
        case "triangle":
            return (abs(y) <= 1) & (2 * abs(x) <= y + 1)
        case _:
            return inside_shape(shape, x, y)
