"""Image augmentation: random crops of padded images, mirroring, TrivialAugment, mixup, CutMix.

What a row becomes is a pure function of (seed, epoch, row), so that a resumed run sees the same
images, whichever batches they are in. Numbers are drawn on the host, pixels are moved where the
model is: a loop over images on the host would be what a GPU waits for.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.core.seeding import derive_seed, philox
from regard.data.batching import Rows
from regard.training.data.trivial_augment import OPERATIONS

# Apart from the stream that orders the rows of an epoch.
_STREAM = 0x1A6E


class _Draws(NamedTuple):
    """The random numbers of an epoch, for each row."""

    epoch: int
    top: NDArray[np.int64]  # [N], where the crop begins in the padded image
    left: NDArray[np.int64]  # [N]
    mirrored: NDArray[np.bool_]  # [N]
    mixup: NDArray[np.float32]  # [N], the weight of the image itself
    operation: NDArray[np.int64]  # [N], which operation of TrivialAugment
    magnitude: NDArray[np.float32]  # [N], how much of it, in [-1, 1)
    box: NDArray[np.float32]  # [N, 3]: the weight of CutMix, the middle of its box (y, x) in [0, 1)
    cut: NDArray[np.bool_]  # [N], CutMix rather than mixup, where a run has both


class Augmentation:
    """Random crops of images padded by `padding` black pixels, mirrored with probability `flip`.

    `mixup` and `cutmix` are the α of Beta(α, α) (Zhang et al. 2018; Yun et al. 2019); 0 gives each
    image the weight 1. With both, half of the batches have the one and half the other.
    """

    def __init__(
        self,
        rows: int,
        *,
        padding: int,
        flip: float,
        mixup: float,
        cutmix: float = 0.0,
        seed: int,
    ) -> None:
        self.rows = rows  # of the training set
        self.padding = padding
        self.flip = flip
        self.mixup = mixup
        self.cutmix = cutmix
        self.seed = seed
        self._last: _Draws | None = None  # the draws of one epoch at a time

    def crops(self, rows: Rows, epoch: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Where the crops of these rows begin [B, 2], as (y, x); which are mirrored [B]."""
        draws = self._draws(epoch)
        corner = np.stack([draws.top[rows], draws.left[rows]], axis=1)
        return corner - self.padding, draws.mirrored[rows]

    def operations(self, rows: Rows, epoch: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The operation of TrivialAugment for each of these rows, and its magnitude: both [B]."""
        draws = self._draws(epoch)
        return draws.operation[rows], draws.magnitude[rows]

    def blend_weights(self, row: int, epoch: int, size: tuple[int, int]) -> NDArray[np.float32]:
        """The weight of the image itself in a blend with its neighbour.

        A scalar of mixup, or of each pixel [H, W] where there is CutMix: 0 inside the box.
        """
        draws = self._draws(epoch)
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

    def _draws(self, epoch: int) -> _Draws:
        if self._last is None or self._last.epoch != epoch:
            self._last = self._draw(epoch)
        return self._last

    def _draw(self, epoch: int) -> _Draws:
        bits = philox(derive_seed(self.seed, _STREAM), epoch)
        # Three words for each row, whatever the settings: they do not shift each other.
        raw = bits.random_raw(3 * self.rows).reshape(self.rows, 3)  # uint64
        offsets = np.uint64(2 * self.padding + 1)
        # The upper 53 bits: as many as the mantissa of a float64 holds.
        uniform = (raw[:, 2] >> np.uint64(11)) * 2.0**-53  # [0, 1)
        weights = np.ones(self.rows, dtype=np.float32)
        if self.mixup:
            generator = np.random.Generator(philox(derive_seed(self.seed, _STREAM), epoch, row=1))
            weights = generator.beta(self.mixup, self.mixup, self.rows).astype(np.float32)
        # A stream apart from that of crops: runs without these draw what they drew before.
        more = np.random.Generator(philox(derive_seed(self.seed, _STREAM), epoch, row=2))
        box = more.random((self.rows, 3), dtype=np.float32)
        operation = more.integers(0, len(OPERATIONS), self.rows)
        magnitude = more.uniform(-1, 1, self.rows).astype(np.float32)
        cut = more.random(self.rows) < 0.5
        if self.cutmix:
            box[:, 0] = more.beta(self.cutmix, self.cutmix, self.rows)
        return _Draws(
            epoch,
            (raw[:, 0] % offsets).astype(np.int64),
            (raw[:, 1] % offsets).astype(np.int64),
            uniform < self.flip,
            weights,
            operation,
            magnitude,
            box,
            cut,
        )


def crop_and_flip(pixels: Tensor, corner: Tensor, mirrored: Tensor) -> Tensor:
    """Crops [B, 3, H, W] of images [B, 3, H, W], as large as they are, black outside of them.

    `corner` [B, 2] is where a crop begins, (y, x), which may be negative; `mirrored` [B].
    """
    height, width = pixels.shape[2:]
    y = torch.arange(height, device=pixels.device) + corner[:, :1]  # [B, H]
    x = torch.arange(width, device=pixels.device).expand(len(pixels), -1)  # [B, W]
    # A crop is mirrored after it has been cut out.
    x = torch.where(mirrored[:, None], width - 1 - x, x) + corner[:, 1:]
    inside_y = (y >= 0) & (y < height)
    inside_x = (x >= 0) & (x < width)
    inside = inside_y[:, :, None] & inside_x[:, None, :]  # [B, H, W]
    # One look-up in each image, of flat positions that are all inside of it.
    place = y.clamp(0, height - 1)[:, :, None] * width + x.clamp(0, width - 1)[:, None, :]
    place = place.flatten(1)[:, None].expand(-1, pixels.shape[1], -1)  # [B, 3, H·W]
    crops = pixels.flatten(2).gather(2, place).view_as(pixels)
    return crops * inside[:, None]
