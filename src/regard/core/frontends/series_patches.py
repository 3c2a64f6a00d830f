"""Front end of time series: instance normalisation, and patches over time (PatchTST).

Letters of shapes: B windows, L time steps, C channels, N patches, P steps of a patch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.core.context import Context
from regard.core.dropout import Dropout
from regard.core.linear import Linear, normal
from regard.core.positions.positional_encoding import FixedPosition, LearnedPosition
from regard.core.side import FrontEnd
from regard.system.errors import DataError

# Added to the variance, and the least mean of absolute values; transformers' numbers.
_LEAST_VARIANCE = 1e-5
_LEAST_MEAN = 1e-10


class Scaling(NamedTuple):
    """The statistics of windows that instance normalisation takes out: [B, 1, C] each."""

    loc: Tensor
    scale: Tensor

    def apply(self, values: Tensor) -> Tensor:
        """Normalised values: [B, L, C] → same."""
        return (values - self.loc) / self.scale

    def invert(self, values: Tensor) -> Tensor:
        """Values on the scale of the window: [B, L, C] → same, or [B, L, C, Q]."""
        if values.ndim == 4:
            return values * self.scale[..., None] + self.loc[..., None]
        return values * self.scale + self.loc


def instance_scaling(kind: str | None, values: Tensor, observed: Tensor | None) -> Scaling:
    """The statistics of each channel of each window [B, L, C], over what was `observed`.

    `std`: mean and deviation (RevIN, Kim et al. 2022, without its affine map); `mean`: the mean of
    absolute values, for counts; None: 0 and 1.
    """
    if kind is None:
        zeros = values.new_zeros(values.shape[0], 1, values.shape[2])
        return Scaling(zeros, zeros + 1)
    # Missing values are arbitrary numbers in `values`, with weight 0.
    weight = torch.ones_like(values) if observed is None else observed.to(values.dtype)
    count = weight.sum(dim=1, keepdim=True)  # [B, 1, C]
    if kind == "mean":
        return _mean_scaling(values * weight, count)
    loc = (values * weight).sum(dim=1, keepdim=True) / count.clamp_min(1)
    variance = ((values - loc) * weight).square().sum(dim=1, keepdim=True) / count.clamp_min(1)
    return Scaling(loc, (variance + _LEAST_VARIANCE).sqrt())


def _mean_scaling(values: Tensor, count: Tensor) -> Scaling:
    total = values.abs().sum(dim=1, keepdim=True)  # [B, 1, C]
    scale = total / count.clamp_min(1)
    # A channel without observations has the scale of the others of its batch.
    of_batch = total.sum(dim=0) / count.sum(dim=0).clamp_min(1)  # [1, C]
    scale = torch.where(count > 0, scale, of_batch).clamp_min(_LEAST_MEAN)
    return Scaling(torch.zeros_like(scale), scale)


class PatchMasking(nn.Module):
    """Draws the masked patches of pre-training from torch's default generator.

    In the order of transformers' draws: the same seed masks the same patches there. With `last`,
    the numbers of patches to choose from, they are the last ones, otherwise a `share` of all.
    """

    def __init__(
        self,
        *,
        share: float = 0.0,
        same_for_channels: bool = False,
        last: Sequence[int] = (),
        never: Sequence[int] = (),
        value: float = 0.0,
    ) -> None:
        super().__init__()
        self.share = share
        self.same_for_channels = same_for_channels
        self.last = tuple(last)
        self.never = list(never)
        self.value = value

    def extra_repr(self) -> str:
        return f"last={self.last}" if self.last else f"share={self.share}"

    def draw(self, rows: int, channels: int, patches: int, device: torch.device) -> Tensor:
        """Which patches are masked: [B, C, N] bool."""
        if self.last:
            masked = self._last(rows, channels, patches, device)
        else:
            masked = self._share(rows, channels, patches, device)
        masked[:, self.never] = False
        return masked

    def _share(self, rows: int, channels: int, patches: int, device: torch.device) -> Tensor:
        drawn = 1 if self.same_for_channels else channels
        noise = torch.rand(rows, drawn, patches, device=device)
        # The rank of each patch by its noise: those with the least stay.
        ranks = noise.argsort(dim=-1).argsort(dim=-1)
        return (ranks >= int(patches * (1 - self.share))).expand(-1, channels, -1).clone()

    def _last(self, rows: int, channels: int, patches: int, device: torch.device) -> Tensor:
        # The rows are shared out equally; the first number has what is left over.
        counts = [rows // len(self.last)] * len(self.last)
        counts[0] += rows - sum(counts)
        masked = torch.zeros(rows, channels, patches, dtype=torch.bool, device=device)
        begin = 0
        for number, count in zip(self.last, counts, strict=True):
            masked[begin : begin + count, :, -number:] = True
            begin += count
        return masked[torch.randperm(rows)]


class PatchScale(NamedTuple):
    """Patches of `length` steps, one every `stride`."""

    length: int
    stride: int

    def unfold(self, values: Tensor) -> Tensor:
        """[B, C, L] → [B, C, N, P], of which the last patch ends with the window."""
        # The newest steps matter most: what does not fill a patch is dropped at the beginning.
        left_over = (values.shape[-1] - self.length) % self.stride
        return values[..., left_over:].unfold(-1, self.length, self.stride)


class SeriesPatches(FrontEnd):
    """PatchTST's front end: a window of each channel becomes a sequence of its own.

    Channels are rows of what comes out, so that no channel attends to another. `projections` are
    those of each scale: one for all channels, or one for each.
    """

    def __init__(
        self,
        shape: tuple[int, int],
        scales: Sequence[PatchScale],
        projections: Sequence[Sequence[Linear]],
        position: LearnedPosition | FixedPosition,
        *,
        scaler: str | None,
        class_token: bool,
        dropout: float,
        masking: PatchMasking | None,
    ) -> None:
        super().__init__()
        self.length, self.channels = shape
        self.scales = tuple(scales)
        self.scaler = scaler
        self.projections = nn.ModuleList(nn.ModuleList(each) for each in projections)
        width = position.table.shape[1]
        self.class_token = nn.Parameter(normal(1, width)[0]) if class_token else None
        self.position = position
        self.dropout = Dropout(dropout)
        self.masking = masking

    def extra_repr(self) -> str:
        return f"length={self.length}, channels={self.channels}, scaler={self.scaler!r}"

    def output_padding_mask(self, padding_mask: Tensor | None) -> Tensor | None:
        """What was not observed changes the statistics of a window; it is no padding."""
        return None

    def states(self, hidden: Tensor) -> Tensor:
        """[B·C, N, D] → [B, C, N, D]"""
        return hidden.unflatten(0, (-1, self.channels))

    def scaling(self, values: Tensor, observed: Tensor | None = None) -> Scaling:
        """The statistics of windows, by which a forecast is scaled back."""
        return instance_scaling(self.scaler, values, observed)

    def patches(self, values: Tensor, observed: Tensor | None = None) -> list[Tensor]:
        """The normalised values of the patches of each scale: [B, C, N, P]."""
        self._check(values)
        normalized = self.scaling(values, observed).apply(values).mT  # [B, C, L]
        return [scale.unfold(normalized) for scale in self.scales]

    def forward(
        self,
        values: Tensor,
        observed: Tensor | None = None,
        context: Context | None = None,
        *,
        masked: Tensor | None = None,
    ) -> Tensor:
        """values [B, L, C] → [B·C, N, D]; `observed` [B, L, C] is False where a value is missing,
        `masked` [B, C, N] True where a patch is hidden in pre-training."""
        embedded = []
        # Each scale has maps of its own: patches of other lengths are other numbers.
        for patches, maps in zip(self.patches(values, observed), self.projections, strict=True):
            if masked is not None:
                assert self.masking is not None, "this model has no masking"
                patches = patches.masked_fill(masked[..., None], self.masking.value)
            embedded.append(self._project(patches, maps))  # type: ignore[arg-type]
        # Channels become rows of the batch: no channel attends to another.
        x = torch.cat(embedded, dim=2).flatten(0, 1)  # [B·C, N, D]
        rows = self.position.rows(x.shape[1])
        if self.class_token is None:
            return self.dropout(x + rows)
        # The class token has no dropout, as in transformers.
        first = (self.class_token + rows[0]).expand(x.shape[0], 1, -1)
        return torch.cat([first, self.dropout(x + rows[1:])], dim=1)

    def _project(self, patches: Tensor, maps: nn.ModuleList) -> Tensor:
        """[B, C, N, P] → [B, C, N, D]"""
        if len(maps) == 1:
            embedded: Tensor = maps[0](patches)
            return embedded
        return torch.stack([one(patches[:, i]) for i, one in enumerate(maps)], dim=1)

    def _check(self, values: Tensor) -> None:
        if values.shape[1:] != (self.length, self.channels):
            raise DataError(
                f"the window has the shape {tuple(values.shape[1:])}, but this model needs "
                f"{(self.length, self.channels)} (time steps, channels)",
                "pass the last time steps, and the channels that the model was trained on",
            )
