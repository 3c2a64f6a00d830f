"""Several time scales of sound: what a position hears, and what its longer windows sound like."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard import spec
from regard.core.feedforward import ACTIVATIONS
from regard.core.linear import Linear


class TimeScales(nn.Module):
    """Multi-scale features: means over windows of several lengths, each mapped by weights of its
    own and added to the positions that its window stands for.

    The sequence keeps its length, so that letters, words and times are found where they were.
    """

    def __init__(
        self, scales: tuple[spec.TimeScale, ...], projections: list[Linear], activation: str
    ) -> None:
        super().__init__()
        self.scales = scales
        self.projections = nn.ModuleList(projections)
        self.activation = ACTIVATIONS[activation]

    def forward(self, x: Tensor, is_sound: Tensor | None = None) -> Tensor:
        """x [B, T, D], of which only what `is_sound` [B, T] takes part in the means → [B, T, D]"""
        heard = x.new_ones(x.shape[:2]) if is_sound is None else is_sound.to(x.dtype)
        weighted = torch.cat([x * heard[..., None], heard[..., None]], dim=-1)  # [B, T, D + 1]
        total = x
        for scale, project in zip(self.scales, self.projections, strict=True):
            means = _means(weighted, scale)  # [B, ⌈T / stride⌉, D]
            coarse = self.activation(project(means)).repeat_interleave(scale.stride, dim=1)
            total = total + coarse[:, : x.shape[1]]
        return total


def _means(weighted: Tensor, scale: spec.TimeScale) -> Tensor:
    """Means over windows in the middle of which their positions stand; the last column counts."""
    length = weighted.shape[1]
    windows = -(-length // scale.stride)
    before = (scale.length - scale.stride) // 2
    after = (windows - 1) * scale.stride + scale.length - length - before
    padded = functional.pad(weighted.mT, (before, after))  # [B, D + 1, steps of all windows]
    sums = functional.avg_pool1d(padded, scale.length, scale.stride).mT  # [B, windows, D + 1]
    # Sums divided by the length of a window: the quotient does not know of it.
    return sums[..., :-1] / sums[..., -1:].clamp_min(1 / scale.length)
