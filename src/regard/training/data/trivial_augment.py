"""TrivialAugment (Müller & Hutter 2021): one random operation of random magnitude for each image.

A batch is augmented where the model is, all images at once: every operation is computed for the
batch, and each image takes the result of its own. The ranges are those of RandAugment, which the
paper lists beside its wider ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

MAX_SHEAR = 0.3
MAX_SHIFT = 10 / 32  # share of the side
MAX_ANGLE = math.radians(30)
MAX_BLEND = 0.9  # brightness, colour, contrast and sharpness lie between 0.1 and 1.9
MAX_LOST_BITS = 4

# Luma of ITU-R 601, as Pillow turns colours to grey.
_LUMA = (0.299, 0.587, 0.114)

GEOMETRIC = ("shear_x", "shear_y", "translate_x", "translate_y", "rotate")
OPERATIONS = (
    "identity", *GEOMETRIC, "brightness", "color", "contrast", "sharpness", "posterize",
    "solarize", "autocontrast", "equalize",
)  # fmt: skip


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


def _blend(degenerate: Tensor, values: Tensor, scale: Tensor) -> Tensor:
    factor = 1 + MAX_BLEND * scale
    return (degenerate + factor * (values - degenerate)).clamp(0, 255)


def _brightness(values: Tensor, scale: Tensor) -> Tensor:
    return _blend(torch.zeros_like(values), values, scale)


def _color(values: Tensor, scale: Tensor) -> Tensor:
    return _blend(_grey(values), values, scale)


def _contrast(values: Tensor, scale: Tensor) -> Tensor:
    return _blend(_grey(values).mean(dim=(2, 3), keepdim=True), values, scale)


def _sharpness(values: Tensor, scale: Tensor) -> Tensor:
    # Pillow's SMOOTH filter: five parts of the pixel, one of each neighbour.
    neighbours = F.avg_pool2d(F.pad(values, (1, 1, 1, 1), mode="replicate"), 3, stride=1) * 9
    return _blend((neighbours + 4 * values) / 13, values, scale)


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
    "brightness": _brightness,
    "color": _color,
    "contrast": _contrast,
    "sharpness": _sharpness,
    "posterize": _posterize,
    "solarize": _solarize,
    "autocontrast": _autocontrast,
    "equalize": _equalize,
}
