"""Image augmentation: random crops of padded images, mirroring, and the weights of mixup.

What a row becomes is a pure function of (seed, epoch, row), so that a resumed run sees the same
images, whichever batches they are in.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.core.seeding import derive_seed, philox
from regard.data.batching import Rows

# Apart from the stream that orders the rows of an epoch.
_STREAM = 0x1A6E


class _Draws(NamedTuple):
    """The random numbers of an epoch, for each row."""

    epoch: int
    top: NDArray[np.int64]  # [N], where the crop begins in the padded image
    left: NDArray[np.int64]  # [N]
    mirrored: NDArray[np.bool_]  # [N]
    mixup: NDArray[np.float32]  # [N], the weight of the image itself


class Augmentation:
    """Random crops of images padded by `padding` black pixels, mirrored with probability `flip`.

    `mixup` is α of Beta(α, α) (Zhang et al. 2018); 0 gives each image the weight 1.
    """

    def __init__(self, rows: int, *, padding: int, flip: float, mixup: float, seed: int) -> None:
        self.rows = rows  # of the training set
        self.padding = padding
        self.flip = flip
        self.mixup = mixup
        self.seed = seed
        self._last: _Draws | None = None  # the draws of one epoch at a time

    def pixels(self, images: NDArray[np.uint8], rows: Rows, epoch: int) -> NDArray[np.uint8]:
        """These rows of images [N, H, W, 3] in an epoch, augmented: [B, H, W, 3]."""
        draws = self._draws(epoch)
        _, height, width, _ = images.shape
        # Of each pixel of the crops: where it is in the image.
        y = np.arange(height) + draws.top[rows, None] - self.padding  # [B, H]
        x = np.arange(width) + draws.left[rows, None] - self.padding  # [B, W]
        x = np.where(draws.mirrored[rows, None], x[:, ::-1], x)
        inside_y = (y >= 0) & (y < height)
        inside_x = (x >= 0) & (x < width)
        inside = inside_y[:, :, None] & inside_x[:, None, :]  # [B, H, W]
        y = y.clip(0, height - 1)
        x = x.clip(0, width - 1)
        crops = images[np.asarray(rows)[:, None, None], y[:, :, None], x[:, None, :]]
        crops[~inside] = 0
        return crops

    def mixup_weights(self, rows: Rows, epoch: int) -> NDArray[np.float32]:
        """The weight of each of these rows in its blend, [B]."""
        return self._draws(epoch).mixup[rows]

    def _draws(self, epoch: int) -> _Draws:
        if self._last is None or self._last.epoch != epoch:
            self._last = self._draw(epoch)
        return self._last

    def _draw(self, epoch: int) -> _Draws:
        bits = philox(derive_seed(self.seed, _STREAM), epoch)
        # Three words for each row, whatever the settings: they do not shift each other.
        raw = bits.random_raw(3 * self.rows).reshape(self.rows, 3)  # uint64
        offsets = np.uint64(2 * self.padding + 1)
        uniform = (raw[:, 2] >> np.uint64(11)) * 2.0**-53  # [0, 1)
        weights = np.ones(self.rows, dtype=np.float32)
        if self.mixup:
            generator = np.random.Generator(philox(derive_seed(self.seed, _STREAM), epoch, row=1))
            weights = generator.beta(self.mixup, self.mixup, self.rows).astype(np.float32)
        return _Draws(
            epoch,
            (raw[:, 0] % offsets).astype(np.int64),
            (raw[:, 1] % offsets).astype(np.int64),
            uniform < self.flip,
            weights,
        )
