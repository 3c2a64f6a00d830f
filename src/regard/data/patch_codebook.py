"""Image tokens: each patch of an image is the number of the nearest patch of a codebook.

The codebook is fitted by k-means (vector quantization); DALL-E learns one with a network around it
(Ramesh et al. 2021, Section 2.1), which sees more than a patch at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.system import disk
from regard.system.errors import DataError

FILE = "codebook.json"  # beside config.json
_SAMPLE = 100_000  # patches that a codebook is fitted to, and how often it is
_ROUNDS = 25
_AT_ONCE = 1 << 14  # patches compared with all codes
_COLOURS = 3


@dataclass(frozen=True, eq=False)
class PatchCodebook:
    """The patches that stand for all others."""

    codes: Tensor  # [K, P · P · 3] float, of bytes
    patch: int  # P, a side in pixels

    def __len__(self) -> int:
        return len(self.codes)

    def encode(self, images: Tensor) -> Tensor:
        """Bytes [B, 3, H, W] → numbers of codes [B, rows · columns], row by row."""
        patches = _patches(images, self.patch)  # [B, N, P · P · 3]
        codes = self.codes.to(images.device)
        nearest = [_nearest(part, codes) for part in patches.flatten(0, 1).split(_AT_ONCE)]
        return torch.cat(nearest).view(patches.shape[:2])

    def decode(self, numbers: Tensor) -> NDArray[np.uint8]:
        """Numbers of codes [B, N] → squares of pixels [B, H, W, 3]."""
        side = round(numbers.shape[1] ** 0.5)
        patches = self.codes[numbers.cpu()].round().to(torch.uint8)
        grid = patches.view(-1, side, side, self.patch, self.patch, _COLOURS)
        # [B, rows, P, columns, P, 3]: pixels of a line side by side
        lines = grid.transpose(2, 3).reshape(-1, side * self.patch, side * self.patch, _COLOURS)
        return lines.numpy()

    def save(self, folder: Path) -> None:
        disk.write_json(folder / FILE, self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        return {"patch": self.patch, "codes": self.codes.round().int().tolist()}

    @classmethod
    def open(cls, folder: Path) -> PatchCodebook:
        stored = disk.read_json_object(folder / FILE, DataError)
        try:
            patch = int(stored["patch"])
            codes = torch.tensor(stored["codes"], dtype=torch.float32)
            codes = codes.view(-1, patch * patch * _COLOURS)
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise DataError(
                f"{folder / FILE} is no codebook: {error}", "copy it from the run again"
            ) from None
        return cls(codes, patch)


def fit_codebook(images: NDArray[np.uint8], patch: int, size: int, seed: int) -> PatchCodebook:
    """A codebook of `size` patches of images [N, H, W, 3], by k-means (Lloyd 1982).

    Of equal patches one counts: most of a drawing is background.
    """
    pixels = torch.tensor(images).permute(0, 3, 1, 2)
    generator = torch.Generator().manual_seed(seed)
    patches = _patches(pixels, patch).flatten(0, 1).to(torch.uint8).unique(dim=0).float()
    patches = patches[torch.randperm(len(patches), generator=generator)[:_SAMPLE]]
    if len(patches) < size:
        raise DataError(
            f"the images have {len(patches):,} different patches, fewer than {size:,} codes",
            "lower CODES of --image-tokens, or give more images",
        )
    codes = patches[:size].clone()
    for _ in range(_ROUNDS):
        nearest = torch.cat([_nearest(part, codes) for part in patches.split(_AT_ONCE)])
        counts = nearest.bincount(minlength=size)[:, None]
        sums = torch.zeros_like(codes).index_add_(0, nearest, patches)
        # A code that no patch is near to stays where it is.
        codes = torch.where(counts > 0, sums / counts.clamp(min=1), codes)
    # Bytes, as they are stored.
    return PatchCodebook(codes.round(), patch)


def _patches(images: Tensor, patch: int) -> Tensor:
    """[B, 3, H, W] → [B, rows · columns, P · P · 3] float"""
    # [B, 3, rows, columns, P, P]
    grid = images.float().unfold(2, patch, patch).unfold(3, patch, patch)
    return grid.permute(0, 2, 3, 4, 5, 1).flatten(1, 2).flatten(2)


def _nearest(patches: Tensor, codes: Tensor) -> Tensor:
    """The number of the nearest code of each patch [n, D]: [n]"""
    # |p − c|² without |p|², which is the same for all codes.
    return (codes.square().sum(dim=1) - 2 * patches @ codes.T).argmin(dim=1)
