"""Random masking of images: which patches are hidden, as a pure function of numbers."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from regard.core.seeding import derive_seed, philox
from regard.data.batching import Rows

_STREAM = 0x3A5C  # apart from those that order and augment images


def masking_noise(seed: int, epoch: int, rows: Rows, patches: int) -> Tensor:
    """Uniform noise [B, patches]; the patches with the highest are hidden.

    Of (seed, epoch, row), so that a resumed run hides the same, in whichever batch a row is.
    """
    key = derive_seed(seed, _STREAM)
    noise = np.empty((len(rows), patches), dtype=np.float64)
    for i, row in enumerate(rows):
        # The upper 53 bits: as many as the mantissa of a float64 holds.
        raw = philox(key, epoch, row=int(row)).random_raw(patches)
        noise[i] = (raw >> np.uint64(11)) * 2.0**-53
    return torch.from_numpy(noise)
