"""Tubelet embeddings of clips (VideoMAE), and patch embeddings of their frames (TimeSformer)."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from regard import spec
from regard.core.frontends.patch_embedding import Patches, VisiblePatches
from regard.core.positions.positional_encoding import LearnedPosition, Sinusoidal
from regard.system.errors import DataError


class Tubelets(Patches):
    """Maps clips [B, frames, channels, size, size] to positions behind `extras` trained vectors.

    With learned positions the tubelets of a patch follow each other, with sinusoids those of a
    frame. Frames that are `separate` are rows of the batch.
    """

    gives_order = False
    position: LearnedPosition | Sinusoidal  # type: ignore[assignment]

    def __init__(
        self,
        part: spec.Tubelets,
        d_model: int,
        position: LearnedPosition | Sinusoidal,
        times: LearnedPosition | None,
    ) -> None:
        super().__init__(part, d_model, None, None)
        self.spec: spec.Tubelets = part
        self.position = position
        self.times = times  # positions of frames, added to those of patches
        self.frames = part.frames
        self.by_frame = part.separate or isinstance(position, Sinusoidal)

    @property
    def shown_frames(self) -> slice:
        """The frames that stand for the times of the positions: the first of each tubelet."""
        if self.spec.separate:
            return slice(1)
        return slice(0, self.spec.times * self.spec.tubelet, self.spec.tubelet)

    def mosaic(self, pixels: Tensor) -> Tensor:
        """The first frame of each tubelet of a clip [frames, C, H, W], in the order of positions,
        row by row in a square: [C, side · patch, side · patch]."""
        part = self.spec
        cut = self.unfold(pixels[None])[0].unflatten(1, (part.channels, -1, self.patch, self.patch))
        side = math.ceil(len(cut) ** 0.5)
        cells = cut.new_zeros(side**2, part.channels, self.patch, self.patch)
        cells[: len(cut)] = cut[:, :, 0]
        rows = cells.unflatten(0, (side, side)).permute(2, 0, 3, 1, 4)
        return rows.flatten(3).flatten(1, 2)

    def extra_repr(self) -> str:
        return f"frames={self.frames}, tubelet={self.spec.tubelet}, {super().extra_repr()}"

    def place_names(self, pixels: Tensor) -> Iterator[str]:
        rows, columns = self.grid(pixels)
        places = [f"{row},{column}" for row in range(rows) for column in range(columns)]
        times = range(1 if self.spec.separate else self.spec.times)
        yield from (f"extra {i}" for i in range(len(self.extras)))
        if self.by_frame:
            yield from (f"{time}:{place}" for time in times for place in places)
        else:
            yield from (f"{time}:{place}" for place in places for time in times)

    def positions(self, grid: tuple[int, int]) -> Tensor:
        """The position of each tubelet, behind those of the extras: [extras + tubelets, D]."""
        if isinstance(self.position, Sinusoidal):
            return self.position.rows(self.spec.positions)[: self.spec.positions]
        table = self.position.rows(len(self.extras) + self.side**2)
        if self.times is None:
            return table
        extras, patches = table.split([len(self.extras), self.side**2])
        times = self.times.rows(self.spec.times)  # [times, D]
        return torch.cat([extras, (patches[:, None] + times).flatten(0, 1)])

    def of_inputs(self, answers: Tensor) -> Tensor:
        """The mean over frames that are separate: [B · frames, …] → [B, …]."""
        return (
            answers.unflatten(0, (-1, self.frames)).mean(dim=1) if self.spec.separate else answers
        )

    def random_masking(self, noise: Tensor) -> VisiblePatches:
        """Tube masking: the patches with the highest noise [B, side²] are hidden at all times."""
        count = int(noise.shape[1] * (1 - self.spec.masked_share))
        hidden = noise.argsort(dim=1).argsort(dim=1) >= count  # [B, side²]
        # How many are visible is known without a look at the values, which a plan does not have.
        return self._sorted(hidden.repeat(1, self.spec.times), count * self.spec.times)

    def unfold(self, pixels: Tensor) -> Tensor:
        """The pixels of each tubelet: [B, tubelets, channels · tubelet · patch · patch]."""
        part = self.spec
        if part.separate:
            return super().unfold(pixels.flatten(0, 1))  # [B·frames, patches, …]
        # Frames behind the last complete tubelet are ignored, as by a convolution.
        frames = pixels[:, : part.times * part.tubelet].flatten(0, 1)
        patches = super().unfold(frames)  # [B·times·tubelet, patches, channels · patch · patch]
        # [B, times, tubelet, patches, channels, patch · patch]
        parts = patches.unflatten(2, (part.channels, -1)).unflatten(
            0, (-1, part.times, part.tubelet)
        )
        # In a tubelet: channel, frame, row, column, which is the order of a convolution's weight.
        order = (0, 1, 3, 4, 2, 5) if self.by_frame else (0, 3, 1, 4, 2, 5)
        return parts.permute(order).flatten(3).flatten(1, 2)

    def _check_size(self, pixels: Tensor, *, interpolates: bool) -> None:
        shape = self.spec.shape(1, 0)[1:]
        if pixels.shape[1:] != shape:
            raise DataError(
                f"the clip has the shape {tuple(pixels.shape[1:])}, but this model needs {shape} "
                "(frames, channels, height, width)",
                "take as many frames, resized and cropped as the preprocessor_config.json says",
            )
