"""Front end of time series: instance normalisation, and patches over time (PatchTST).

Letters of shapes: B windows, L time steps, C channels, N patches, P steps of a patch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from regard import spec
from regard.core.context import Context
from regard.core.dropout import Dropout
from regard.core.linear import Linear, normal
from regard.core.output import Inputs
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
        total = (values * weight).abs().sum(dim=1, keepdim=True)  # [B, 1, C]
        # A channel without observations has the scale of the others of its batch.
        of_batch = total.sum(dim=0) / count.sum(dim=0).clamp_min(1)  # [1, C]
        scale = torch.where(count > 0, total / count.clamp_min(1), of_batch)
        return Scaling(torch.zeros_like(scale), scale.clamp_min(_LEAST_MEAN))
    loc = (values * weight).sum(dim=1, keepdim=True) / count.clamp_min(1)
    variance = ((values - loc) * weight).square().sum(dim=1, keepdim=True) / count.clamp_min(1)
    return Scaling(loc, (variance + _LEAST_VARIANCE).sqrt())


def draw_masked_patches(
    part: spec.RandomMasking | spec.ForecastMasking,
    shape: tuple[int, int, int],
    device: torch.device,
) -> Tensor:
    """Which patches pre-training masks: [B, C, N] bool, from torch's default generator.

    In the order of transformers' draws: the same seed masks the same patches there.
    """
    rows, channels, patches = shape
    if isinstance(part, spec.RandomMasking):
        drawn = 1 if part.same_for_channels else channels
        noise = torch.rand(rows, drawn, patches, device=device)
        # The rank of each patch by its noise: those with the least stay.
        ranks = noise.argsort(dim=-1).argsort(dim=-1)
        masked = (ranks >= int(patches * (1 - part.share))).expand(-1, channels, -1).clone()
    else:
        # The rows are shared out equally; the first number has what is left over.
        counts = [rows // len(part.patches)] * len(part.patches)
        counts[0] += rows - sum(counts)
        numbers = torch.tensor(part.patches).repeat_interleave(torch.tensor(counts))
        from_end = torch.arange(patches, 0, -1)
        masked = (from_end <= numbers[torch.randperm(rows), None]).to(device)
        masked = masked[:, None].repeat(1, channels, 1)
    masked[:, list(part.never)] = False
    return masked


class SeriesPatches(FrontEnd):
    """PatchTST's front end: a window of each channel becomes a sequence of its own.

    Channels are rows of what comes out, so that no channel attends to another. `projections` are
    those of each scale: one for all channels, or one for each.
    """

    has_padding = False  # what was not observed changes the statistics of a window

    def __init__(
        self,
        part: spec.SeriesPatches,
        projections: Sequence[Sequence[Linear]],
        position: LearnedPosition | FixedPosition,
    ) -> None:
        super().__init__()
        self.spec = part
        self.channels = part.channels
        self.projections = nn.ModuleList(nn.ModuleList(each) for each in projections)
        width = position.table.shape[1]
        self.class_token = nn.Parameter(normal(1, width)[0]) if part.class_token else None
        self.position = position
        self.dropout = Dropout(part.dropout)

    def extra_repr(self) -> str:
        part = self.spec
        return f"length={part.length}, channels={part.channels}, scaler={part.scaler!r}"

    shows_last = False

    def states(self, hidden: Tensor, inputs: Inputs) -> Tensor:
        """[B·C, N, D] → [B, C, N, D]"""
        return hidden.unflatten(0, (-1, self.channels))

    def scaling(self, values: Tensor, observed: Tensor | None = None) -> Scaling:
        """The statistics of windows, by which a forecast is scaled back."""
        return instance_scaling(self.spec.scaler, values, observed)

    def patches(self, values: Tensor, observed: Tensor | None = None) -> list[Tensor]:
        """The normalised values of the patches of each scale: [B, C, N, P]."""
        shape = (self.spec.length, self.channels)
        if values.shape[1:] != shape:
            raise DataError(
                f"the window has the shape {tuple(values.shape[1:])}, but this model needs "
                f"{shape} (time steps, channels)",
                "pass the last time steps, and the channels that the model was trained on",
            )
        normalized = self.scaling(values, observed).apply(values).mT  # [B, C, L]
        patches = []
        for scale in self.spec.scales:
            # The newest steps matter most: what does not fill a patch is dropped at the beginning.
            left_over = (values.shape[1] - scale.length) % scale.stride
            patches.append(normalized[..., left_over:].unfold(-1, scale.length, scale.stride))
        return patches

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
        projections = cast(Sequence[nn.ModuleList], self.projections)
        for patches, maps in zip(self.patches(values, observed), projections, strict=True):
            if masked is not None:
                assert self.spec.masking is not None, "this model has no masking"
                patches = patches.masked_fill(masked[..., None], self.spec.masking.value)
            if len(maps) == 1:
                embedded.append(maps[0](patches))
            else:
                by_channel = [one(patches[:, i]) for i, one in enumerate(maps)]
                embedded.append(torch.stack(by_channel, dim=1))  # [B, C, N, D]
        # Channels become rows of the batch: no channel attends to another.
        x = torch.cat(embedded, dim=2).flatten(0, 1)  # [B·C, N, D]
        rows = self.position.rows(x.shape[1])
        if self.class_token is None:
            return self.dropout(x + rows)
        # The class token has no dropout, as in transformers.
        first = (self.class_token + rows[0]).expand(x.shape[0], 1, -1)
        return torch.cat([first, self.dropout(x + rows[1:])], dim=1)
