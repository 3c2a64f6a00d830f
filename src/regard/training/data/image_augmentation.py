"""Image augmentation: random crops of padded images, mirroring, TrivialAugment, mixup, CutMix.

What a row becomes is a pure function of (seed, epoch, row), so that a resumed run sees the same
images, whichever batches they are in. Numbers are drawn on the host, pixels are moved where the
model is: a loop over images on the host would be what a GPU waits for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from regard.core.seeding import derive_seed, philox
from regard.data.batching import Rows

# Apart from the stream that orders the rows of an epoch.
_STREAM = 0x1A6E


class _Draws(NamedTuple):
    """The random numbers of an epoch, for each row."""

    corner: NDArray[np.int64]  # [N, 2], where the crop begins in the image, as (y, x)
    mirrored: NDArray[np.bool_]  # [N]
    mixup: NDArray[np.float32]  # [N], the weight of the image itself
    operation: NDArray[np.int64]  # [N], which operation of TrivialAugment
    magnitude: NDArray[np.float32]  # [N], how much of it, in [-1, 1)
    box: NDArray[np.float32]  # [N, 3]: the weight of CutMix, the middle of its box (y, x) in [0, 1)
    zoom: NDArray[np.float32]  # [N, 3]: in [-1, 1), and where the crop is (y, x) in [0, 1)
    cut: NDArray[np.bool_]  # [N], CutMix rather than mixup, where a run has both


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """Random crops of images padded by `padding` black pixels, mirrored with probability `flip`.

    `mixup` and `cutmix` are the α of Beta(α, α) (Zhang et al. 2018; Yun et al. 2019); 0 gives each
    image the weight 1. With both, half of the batches have the one and half the other.
    """

    rows: int  # of the training set
    padding: int
    flip: float
    mixup: float
    cutmix: float = 0.0
    zoom: float = 0.0
    seed: int

    def crops(self, rows: Rows, epoch: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Where the crops of these rows begin [B, 2], as (y, x); which are mirrored [B]."""
        draws = _draws(self, epoch)
        return draws.corner[rows], draws.mirrored[rows]

    def zooms(self, rows: Rows, epoch: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """The sides of the crops of these rows [B], as shares of the image's, between 1 − zoom and
        1 + zoom; and where what is left over of the image lies [B, 2], as (y, x) in [0, 1)."""
        draws = _draws(self, epoch).zoom[rows]
        return 1 + self.zoom * draws[:, 0], draws[:, 1:]

    def operations(self, rows: Rows, epoch: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The operation of TrivialAugment for each of these rows, and its magnitude: both [B]."""
        draws = _draws(self, epoch)
        return draws.operation[rows], draws.magnitude[rows]

    def blend_weights(self, row: int, epoch: int, size: Sequence[int]) -> NDArray[np.float32]:
        """The weight of the image itself in a blend with its neighbour.

        A scalar of mixup, or of each pixel [H, W] where there is CutMix: 0 inside the box.
        """
        draws = _draws(self, epoch)
        if not self.cutmix:
            return draws.mixup[row, ...]
        if self.mixup and not draws.cut[row]:
            return np.full(size, draws.mixup[row])
        weight, *middle = draws.box[row]
        weights = np.ones(size, dtype=np.float32)
        # A box of the share 1 - weight of the area, cut off at the borders of the image.
        ends = []
        for length, center in zip(size, middle, strict=True):
            # Yun et al. 2019, Section 3.1: sides of √(1 − λ) of the image's.
            half = length * np.sqrt(1 - weight) / 2
            first = max(0, round(center * length - half))
            last = min(length, round(center * length + half))
            ends.append(slice(first, last))
        weights[tuple(ends)] = 0
        return weights


@lru_cache(maxsize=1)  # the draws of one epoch at a time
def _draws(settings: Augmentation, epoch: int) -> _Draws:
    rows = settings.rows
    key = derive_seed(settings.seed, _STREAM)
    # Three words for each row, whatever the settings: they do not shift each other.
    raw = philox(key, epoch).random_raw(3 * rows).reshape(rows, 3)  # uint64
    offsets = np.uint64(2 * settings.padding + 1)
    # The upper 53 bits: as many as the mantissa of a float64 holds.
    uniform = (raw[:, 2] >> np.uint64(11)) * 2.0**-53  # [0, 1)
    weights = np.ones(rows, dtype=np.float32)
    if settings.mixup:
        generator = np.random.Generator(philox(key, epoch, row=1))
        weights = generator.beta(settings.mixup, settings.mixup, rows).astype(np.float32)
    # A stream apart from that of crops: runs without these draw what they drew before.
    more = np.random.Generator(philox(key, epoch, row=2))
    box = more.random((rows, 3), dtype=np.float32)
    operation = more.integers(0, len(OPERATIONS), rows)
    magnitude = more.uniform(-1, 1, rows).astype(np.float32)
    cut = more.random(rows) < 0.5
    zoom = np.random.Generator(philox(key, epoch, row=3)).random((rows, 3), dtype=np.float32)
    zoom[:, 0] = 2 * zoom[:, 0] - 1
    if settings.cutmix:
        box[:, 0] = more.beta(settings.cutmix, settings.cutmix, rows)
    corner = (raw[:, :2] % offsets).astype(np.int64) - settings.padding
    return _Draws(corner, uniform < settings.flip, weights, operation, magnitude, box, zoom, cut)


def crop_and_flip(
    pixels: Tensor, corner: Tensor, mirrored: Tensor, scale: Tensor | None = None
) -> Tensor:
    """Crops [B, 3, H, W] of images [B, 3, H, W], as large as they are, black outside of them.

    `corner` [B, 2] is where a crop begins, (y, x), which may be negative; `mirrored` [B]. A crop
    whose sides are the share `scale` [B] of the image's is enlarged, by its nearest pixels.
    """
    height, width = pixels.shape[2:]
    y = torch.arange(height, device=pixels.device).expand(len(pixels), -1)  # [B, H]
    x = torch.arange(width, device=pixels.device).expand(len(pixels), -1)  # [B, W]
    # A crop is mirrored after it has been cut out.
    x = torch.where(mirrored[:, None], width - 1 - x, x)
    if scale is None:
        y, x = y + corner[:, :1], x + corner[:, 1:]
    else:
        middles = ((side + 0.5) * scale[:, None] for side in (y, x))
        y, x = (
            (side + begin).floor().long()
            for side, begin in zip(middles, corner.split(1, dim=1), strict=True)
        )
    inside_y = (y >= 0) & (y < height)
    inside_x = (x >= 0) & (x < width)
    inside = inside_y[:, :, None] & inside_x[:, None, :]  # [B, H, W]
    # One look-up in each image, of flat positions that are all inside of it.
    place = y.clamp(0, height - 1)[:, :, None] * width + x.clamp(0, width - 1)[:, None, :]
    place = place.flatten(1)[:, None].expand(-1, pixels.shape[1], -1)  # [B, 3, H·W]
    crops = pixels.flatten(2).gather(2, place).view_as(pixels)
    return crops * inside[:, None]


# --- trivial augment ------------------------------------------------------------------------------

MAX_SHEAR = 0.3
MAX_SHIFT = 10 / 32  # share of the side
MAX_ANGLE = math.radians(30)
MAX_BLEND = 0.9  # brightness, colour, contrast and sharpness lie between 0.1 and 1.9
MAX_LOST_BITS = 4

# Luma of ITU-R 601, as Pillow turns colours to grey.
_LUMA = (0.299, 0.587, 0.114)

GEOMETRIC = ("shear_x", "shear_y", "translate_x", "translate_y", "rotate")


@torch.no_grad()
def trivial_augment(pixels: Tensor, operation: Tensor, magnitude: Tensor) -> Tensor:
    """Bytes [B, 3, H, W] after the operation (an index into OPERATIONS) of each image.

    `magnitude` [B] lies in [-1, 1); operations without a direction take its absolute value.
    """
    values = pixels.float()
    result = _geometric(values, operation, magnitude)
    scale = magnitude[:, None, None, None]  # [B, 1, 1, 1]
    for name, change in _COLOUR_OPERATIONS.items():
        chosen = operation == OPERATIONS.index(name)
        result = torch.where(chosen[:, None, None, None], change(values, scale), result)
    return result.round().clamp(0, 255).to(torch.uint8)


def _geometric(values: Tensor, operation: Tensor, magnitude: Tensor) -> Tensor:
    """Affine transformations by bilinear sampling; black where the image ends.

    The identity for all other operations: their pixels are sampled where they are.
    """

    def amount(name: str, largest: float) -> Tensor:
        chosen = operation == OPERATIONS.index(name)
        return (largest * magnitude * chosen)[:, None, None]  # [B, 1, 1]

    height, width = values.shape[2:]
    # Coordinates of the pixels' middles, the image being [-1, 1] × [-1, 1].
    y = (torch.arange(height, device=values.device) * 2 + 1) / height - 1
    x = (torch.arange(width, device=values.device) * 2 + 1) / width - 1
    y = y[None, :, None]  # [1, H, 1]
    x = x[None, None, :]  # [1, 1, W]
    angle = amount("rotate", MAX_ANGLE)
    # By hand, not by affine_grid: under autocast its product would be in half precision.
    from_x = angle.cos() * x + (amount("shear_x", MAX_SHEAR) - angle.sin()) * y
    from_y = angle.cos() * y + (amount("shear_y", MAX_SHEAR) + angle.sin()) * x
    from_x = from_x + amount("translate_x", 2 * MAX_SHIFT)
    from_y = from_y + amount("translate_y", 2 * MAX_SHIFT)
    grid = torch.stack([from_x, from_y], dim=-1)  # [B, H, W, 2]
    return F.grid_sample(values, grid, mode="bilinear", align_corners=False)


def _grey(values: Tensor) -> Tensor:
    # Numbers, no tensor: a copy from the host cannot be captured into a CUDA graph.
    red, green, blue = _LUMA
    grey = red * values[:, 0] + green * values[:, 1] + blue * values[:, 2]
    return grey[:, None]  # [B, 1, H, W]


def _mean_grey(values: Tensor) -> Tensor:
    return _grey(values).mean(dim=(2, 3), keepdim=True)


def _smooth(values: Tensor) -> Tensor:
    # Pillow's SMOOTH filter: five parts of the pixel, one of each neighbour.
    neighbours = F.avg_pool2d(F.pad(values, (1, 1, 1, 1), mode="replicate"), 3, stride=1) * 9
    return (neighbours + 4 * values) / 13


def _blend(degenerate: Callable[[Tensor], Tensor], values: Tensor, scale: Tensor) -> Tensor:
    """Less of an image, or more of it, than of a degenerate one."""
    factor = 1 + MAX_BLEND * scale
    other = degenerate(values)
    return (other + factor * (values - other)).clamp(0, 255)


def _posterize(values: Tensor, scale: Tensor) -> Tensor:
    # Clearing the n lowest bits of a byte is rounding down to a multiple of 2ⁿ.
    step = 2 ** (MAX_LOST_BITS * scale.abs()).round()
    return (values / step).floor() * step


def _solarize(values: Tensor, scale: Tensor) -> Tensor:
    threshold = 256 * (1 - scale.abs())
    return torch.where(values >= threshold, 255 - values, values)


def _autocontrast(values: Tensor, scale: Tensor) -> Tensor:
    low = values.amin(dim=(2, 3), keepdim=True)  # [B, 3, 1, 1]
    high = values.amax(dim=(2, 3), keepdim=True)
    stretched = (values - low) * 255 / (high - low).clamp_min(1)
    return torch.where(high > low, stretched, values)


def _equalize(values: Tensor, scale: Tensor) -> Tensor:
    """Histogram equalization of each channel: a byte becomes the share of pixels below it."""
    batch, channels, height, width = values.shape
    levels = values.long().flatten(2)  # [B, 3, H·W]
    histogram = values.new_zeros(batch, channels, 256)
    histogram.scatter_add_(2, levels, torch.ones_like(levels, dtype=values.dtype))
    below = histogram.cumsum(dim=2) - histogram
    # The brightest level is left out of the step, so that it comes out as 255.
    brightest = histogram.gather(2, levels.amax(dim=2, keepdim=True))  # [B, 3, 1]
    step = ((height * width - brightest) / 255).floor()
    table = ((below + (step / 2).floor()) / step.clamp_min(1)).floor().clamp(0, 255)
    equalized = table.gather(2, levels).view_as(values)
    return torch.where(step[..., None] > 0, equalized, values)


_COLOUR_OPERATIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "brightness": partial(_blend, torch.zeros_like),
    "color": partial(_blend, _grey),
    "contrast": partial(_blend, _mean_grey),
    "sharpness": partial(_blend, _smooth),
    "posterize": _posterize,
    "solarize": _solarize,
    "autocontrast": _autocontrast,
    "equalize": _equalize,
}
OPERATIONS = ("identity", *GEOMETRIC, *_COLOUR_OPERATIONS)
