"""Image augmentation: random crops of padded images, mirroring, TrivialAugment, mixup, CutMix.

What a row becomes is a pure function of (seed, epoch, row), so that a resumed run sees the same
images, whichever batches they are in.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

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

    def pixels(self, images: NDArray[np.uint8], rows: Rows, epoch: int) -> NDArray[np.uint8]:
        """These rows of images [N, H, W, 3] in an epoch, augmented: [B, H, W, 3]."""
        draws = self._draws(epoch)
        _, height, width, channels = images.shape
        top = self.padding
        padded_size = (height + 2 * top, width + 2 * top)
        padded = np.zeros((len(rows), *padded_size, channels), dtype=np.uint8)
        padded[:, top : top + height, top : top + width] = images[rows]
        crops = np.empty((len(rows), height, width, channels), dtype=np.uint8)
        # Slices, one image at a time, are four times as fast as one look-up of every pixel.
        for i, row in enumerate(rows):
            y = draws.top[row]
            x = draws.left[row]
            crop = padded[i, y : y + height, x : x + width]
            crops[i] = crop[:, ::-1] if draws.mirrored[row] else crop
        return crops

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
