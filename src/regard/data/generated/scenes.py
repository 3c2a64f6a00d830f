"""Generated scenes: images of coloured shapes, with boxes, masks, captions and questions.

A scene is a pure function of (seed, number), and its number says which split it belongs to.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.core.seeding import derive_seed, philox
from regard.data.boxes import ANNOTATIONS
from regard.data.image import require_pillow
from regard.system import disk

SHAPES = ("circle", "square", "triangle")
COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (214, 48, 49),
    "green": (46, 160, 67),
    "blue": (48, 98, 214),
    "yellow": (240, 196, 32),
    "purple": (140, 72, 186),
    "orange": (238, 126, 44),
}
BACKGROUND = "background"  # the class of what is behind all shapes
CLASSES_FILE = "classes.txt"  # the names of the classes of masks, one in each line
SPLITS = ("train", "valid", "test")
_STREAM = 0x5CE4E
_SMALLEST, _LARGEST = 0.14, 0.36  # sides of objects, as shares of the image's
_MOST_HIDDEN = 0.3  # of an object, by those in front of it
_REACH = 1.1  # radii from the middle of a shape to the end of its longest side
_SAMPLES = 3  # points a pixel, along each side: edges are smooth
_PLACES = 40  # that are tried for an object


class Item(NamedTuple):
    """A shape of a scene; its box is that of what is seen of it."""

    shape: str
    colour: str
    center: tuple[float, float]  # x, y
    box: tuple[int, int, int, int]  # left, top, right, bottom

    @property
    def name(self) -> str:
        return f"{self.colour} {self.shape}"


@dataclass(frozen=True)
class Scene:
    """An image of shapes, of which those that come later stand in front."""

    image: NDArray[np.uint8]  # [size, size, 3]
    mask: NDArray[np.uint8]  # [size, size]: 0 behind all shapes, 1 and on: the place in SHAPES
    items: tuple[Item, ...]
    caption: str
    questions: tuple[tuple[str, str], ...]  # with their answers


def scene(seed: int, number: int, size: int = 64, most: int = 6) -> Scene:
    """Scene `number` of a seed: 1 to `most` shapes on `size` × `size` pixels."""
    draw = np.random.Generator(philox(derive_seed(seed, _STREAM), number))
    owner, placed = _place(draw, size, int(draw.integers(1, most + 1)))
    behind = draw.integers(150, 256, 3)
    slope = draw.uniform(-40, 40, 2)  # the light changes across the image
    across = np.linspace(-0.5, 0.5, len(owner))
    light = slope[0] * across[:, None] + slope[1] * across
    paint = np.stack([behind, *(COLOURS[colour] for _, colour, _ in placed)])  # [1 + items, 3]
    fine = paint.astype(float)[owner]
    fine += light[..., None]
    image = _coarse(fine) + draw.normal(0, 6, (size, size, 3))
    shown = owner[_SAMPLES // 2 :: _SAMPLES, _SAMPLES // 2 :: _SAMPLES]  # the middles of pixels
    classes = np.array([0, *(1 + SHAPES.index(shape) for shape, _, _ in placed)], np.uint8)
    items = tuple(
        Item(shape, colour, center, _box(shown == place))
        for place, (shape, colour, center) in enumerate(placed, 1)
    )
    return Scene(
        image.round().clip(0, 255).astype(np.uint8),
        classes[shown],
        items,
        _caption(items),
        tuple(_questions(draw, items)),
    )


def _place(
    draw: np.random.Generator, size: int, wanted: int
) -> tuple[NDArray[np.int64], list[tuple[str, str, tuple[float, float]]]]:
    """The number of the shape at each point [points, points], 0 behind all; and the shapes.

    A shape that would hide too much of another is put elsewhere, or left out.
    """
    points = (np.arange(size * _SAMPLES) + 0.5) / _SAMPLES  # in pixels
    owner = np.zeros((len(points), len(points)), np.int64)
    areas = np.zeros(0, np.int64)  # of the shapes, in points, and what is seen of them
    visible = np.zeros(0, np.int64)
    placed: list[tuple[str, str, tuple[float, float]]] = []
    for _ in range(_PLACES * wanted):
        if len(placed) == wanted:
            break
        shape = SHAPES[draw.integers(len(SHAPES))]
        colour = [*COLOURS][draw.integers(len(COLOURS))]
        radius = draw.uniform(_SMALLEST, _LARGEST) * size / 2
        middle_x, middle_y = draw.uniform(radius, size - radius, 2)
        # Only the points around it: the others are not in the shape.
        rows, columns = (
            slice(*np.searchsorted(points, (middle - _REACH * radius, middle + _REACH * radius)))
            for middle in (middle_y, middle_x)
        )
        x = (points[None, columns] - middle_x) / radius
        y = (points[rows, None] - middle_y) / radius
        inside = inside_shape(shape, x, y)
        overlap = np.bincount(owner[rows, columns][inside], minlength=len(areas) + 1)[1:]
        if (visible - overlap >= (1 - _MOST_HIDDEN) * areas).all():
            owner[rows, columns][inside] = len(placed) + 1
            areas = np.append(areas, inside.sum())
            visible = np.append(visible - overlap, inside.sum())
            placed.append((shape, colour, (float(middle_x), float(middle_y))))
    return owner, placed


def inside_shape(shape: str, x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which points [points, points] are in a shape whose box goes from −1 to 1."""
    match shape:
        case "circle":
            return x**2 + y**2 <= 1
        case "square":
            return (abs(x) <= 0.9) & (abs(y) <= 0.9)
        case _:
            return (y <= 0.9) & (2 * abs(x) <= y + 1.1)


def _coarse(fine: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mean of the points of each pixel."""
    # Not a mean over two axes, which takes three times as long.
    rows = np.add.reduce([fine[i::_SAMPLES] for i in range(_SAMPLES)])
    return np.asarray(np.add.reduce([rows[:, i::_SAMPLES] for i in range(_SAMPLES)]) / _SAMPLES**2)


def _box(visible: NDArray[np.bool_]) -> tuple[int, int, int, int]:
    rows = np.flatnonzero(visible.any(axis=1))
    columns = np.flatnonzero(visible.any(axis=0))
    return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1


# --- words ----------------------------------------------------------------------------------------


def _caption(items: tuple[Item, ...]) -> str:
    """What is there, from left to right: "a red circle and a blue square"."""
    names = [
        f"{'an' if one.name[0] in 'aeiou' else 'a'} {one.name}"
        for one in sorted(items, key=lambda one: one.center)
    ]
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _questions(draw: np.random.Generator, items: tuple[Item, ...]) -> Iterator[tuple[str, str]]:
    """How many, whether, of which colour, and what stands on which side."""
    shape = SHAPES[draw.integers(len(SHAPES))]
    yield f"how many {shape}s are there?", str(sum(one.shape == shape for one in items))
    names = {one.name for one in items}
    absent = sorted({f"{colour} {shape}" for colour in COLOURS for shape in SHAPES} - names)
    pool = sorted(names) if draw.integers(2) else absent  # as often yes as no
    asked = pool[draw.integers(len(pool))]
    yield f"is there a {asked}?".replace("a o", "an o"), "yes" if asked in names else "no"
    alone = [one for one in items if sum(other.shape == one.shape for other in items) == 1]
    if alone:
        chosen = alone[draw.integers(len(alone))]
        yield f"what colour is the {chosen.shape}?", chosen.colour
    unique = [one for one in items if sum(other.name == one.name for other in items) == 1]
    if len(unique) > 1:
        first, second = draw.permutation(len(unique))[:2]
        one, other = unique[first], unique[second]
        answer = "yes" if one.center[0] < other.center[0] else "no"
        yield f"is the {one.name} left of the {other.name}?", answer


# --- files ----------------------------------------------------------------------------------------


def write_scenes(
    folder: Path, counts: dict[str, int], seed: int = 0, size: int = 64, most: int = 6
) -> None:
    """A folder for each split: images, masks, boxes as COCO has them, captions and questions."""
    require_pillow()
    from PIL import Image

    numbers = count()  # all splits are of one stream: none has a scene of another
    for split, wanted in counts.items():
        boxes: list[dict[str, object]] = []
        images: list[dict[str, object]] = []
        captions: list[str] = []
        questions: list[str] = []
        with disk.atomic_folder(folder / split) as partial:
            for kind in ("images", "masks"):
                (partial / kind).mkdir()
            for row, number in zip(range(wanted), numbers, strict=False):
                one = scene(seed, number, size, most)
                name = f"{row:06}.png"
                Image.fromarray(one.image).save(partial / "images" / name)
                Image.fromarray(one.mask).save(partial / "masks" / name)
                images.append({"id": row, "file_name": f"images/{name}", "width": size,
                               "height": size})  # fmt: skip
                for item in one.items:
                    left, top, right, bottom = item.box
                    sides = (right - left, bottom - top)
                    boxes.append({"id": len(boxes), "image_id": row, "bbox": [left, top, *sides],
                                  "category_id": 1 + SHAPES.index(item.shape), "iscrowd": 0,
                                  "area": sides[0] * sides[1]})  # fmt: skip
                captions.append(f"images/{name}\t{one.caption}\n")
                questions += [
                    f"images/{name}\t{question}\t{answer}\n" for question, answer in one.questions
                ]
            categories = [{"id": i, "name": name} for i, name in enumerate(SHAPES, 1)]
            coco = {"images": images, "annotations": boxes, "categories": categories}
            (partial / ANNOTATIONS).write_text(json.dumps(coco), encoding="utf-8")
            (partial / CLASSES_FILE).write_text("\n".join([BACKGROUND, *SHAPES]) + "\n")
            (partial / "captions.tsv").write_text("".join(captions), encoding="utf-8")
            (partial / "questions.tsv").write_text("".join(questions), encoding="utf-8")
