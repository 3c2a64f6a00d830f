"""Generated clips of coloured shapes: which way one moves, or which one comes after which.

A clip is a pure function of (seed, number). No single frame tells its class, nor does a bag of
them: the way is in the order of the frames.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count, permutations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from regard.core.seeding import derive_seed, philox
from regard.data.generated.scenes import COLOURS, SHAPES, inside_shape
from regard.data.image import require_pillow
from regard.data.labelled import LabelledImage
from regard.system import disk

WAYS: dict[str, tuple[int, int]] = {
    "left": (-1, 0),
    "right": (1, 0),
    "up": (0, -1),
    "down": (0, 1),
}
ORDERS = {f"{one} then {other}": (one, other) for one, other in permutations(SHAPES, 2)}
CLASSES = (*WAYS, *ORDERS)
_STREAM = 0xC119
_SMALLEST, _LARGEST = 0.12, 0.2  # radii, as shares of the side
_SLOWEST, _FASTEST = 0.3, 0.55  # the way of a clip, as a share of the side
_NOISE = 6.0


def clip(seed: int, number: int, size: int = 24, frames: int = 6) -> tuple[NDArray[np.uint8], str]:
    """Clip `number` of a seed: frames [frames, size, size, 3], and its class."""
    draw = np.random.Generator(philox(derive_seed(seed, _STREAM), number))
    kind = CLASSES[draw.integers(len(CLASSES))]
    radius = draw.uniform(_SMALLEST, _LARGEST) * size
    behind = draw.uniform(200, 250) + draw.normal(0, 6, 3)
    paints = draw.permutation(len(COLOURS))[:2]
    colours = [np.array([*COLOURS.values()][i], float) for i in paints]
    if kind in WAYS:
        shapes = [SHAPES[draw.integers(len(SHAPES))]] * frames
        way = np.array(WAYS[kind]) * draw.uniform(_SLOWEST, _FASTEST) * size
        first = draw.uniform(radius - np.minimum(way, 0), size - radius - np.maximum(way, 0))
        centers = first + np.linspace(0, 1, frames)[:, None] * way
        paint = colours[:1] * frames
    else:
        turn = int(draw.integers(frames // 3, frames - frames // 3 + 1))
        one, other = ORDERS[kind]
        shapes = [one] * turn + [other] * (frames - turn)
        places = draw.uniform(radius, size - radius, (2, 2))
        centers = np.concatenate([places[:1]] * turn + [places[1:]] * (frames - turn))
        paint = colours[:1] * turn + colours[1:] * (frames - turn)
    y, x = np.mgrid[:size, :size] + 0.5
    images = np.empty((frames, size, size, 3))
    for frame, (shape, (center_x, center_y), colour) in enumerate(
        zip(shapes, centers, paint, strict=True)
    ):
        here = inside_shape(shape, (x - center_x) / radius, (y - center_y) / radius)
        images[frame] = np.where(here[..., None], colour, behind)
    images += draw.normal(0, _NOISE, images.shape)
    return images.round().clip(0, 255).astype(np.uint8), kind


def labelled_clips(
    seed: int, numbers: Iterable[int], size: int = 24, frames: int = 6
) -> Iterator[LabelledImage]:
    """Clips with their classes."""
    for number in numbers:
        yield LabelledImage(*clip(seed, number, size, frames))


def write_clips(
    folder: Path, counts: dict[str, int], seed: int = 0, size: int = 24, frames: int = 6
) -> None:
    """A folder for each split, of a folder for each class, of a folder of frames for each clip."""
    require_pillow()
    from PIL import Image

    numbers = count()  # all splits are of one stream: none has a clip of another
    for split, wanted in counts.items():
        with disk.atomic_folder(folder / split) as partial:
            for row, number in zip(range(wanted), numbers, strict=False):
                images, kind = clip(seed, number, size, frames)
                place = partial / kind / f"{row:06}"
                place.mkdir(parents=True)
                for frame, image in enumerate(images):
                    Image.fromarray(image).save(place / f"{frame:03}.png")
