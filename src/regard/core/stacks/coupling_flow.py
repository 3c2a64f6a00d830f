"""VITS's residual coupling flow (Kim et al. 2021), from the prior of frames to their latents.

There is the direction that speaks. All modules read channels before positions, as PyTorch's
convolutions do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from regard.core.convolution import NormalizedConvolution
from regard.core.dropout import Dropout

if TYPE_CHECKING:
    from regard import spec


class WaveNet(nn.Module):
    """Gated dilated convolutions with residual and skip connections (van den Oord et al. 2016,
    Section 2), each told who speaks."""

    def __init__(self, part: spec.CouplingFlow, channels: int, voice: int | None) -> None:
        super().__init__()
        layers = range(part.layers)
        self.channels = channels
        self.gated = nn.ModuleList(
            NormalizedConvolution(channels, 2 * channels, part.kernel, part.growth**i)
            for i in layers
        )
        # A residual and a skip connection; behind the last there is no further layer.
        self.outer = nn.ModuleList(
            NormalizedConvolution(channels, channels * (1 if i == layers[-1] else 2), 1)
            for i in layers
        )
        self.voice = None
        if voice is not None:
            self.voice = NormalizedConvolution(voice, 2 * channels * part.layers, 1)
        self.dropout = Dropout(part.dropout)

    def forward(self, x: Tensor, is_frame: Tensor, voice: Tensor | None) -> Tensor:
        """x [B, C, T] → [B, C, T], zeros where `is_frame` [B, 1, T] is 0"""
        shifts: list[Tensor | float] = [0.0] * len(self.gated)
        if self.voice is not None and voice is not None:
            shifts = [*self.voice(voice).split(2 * self.channels, dim=1)]  # [B or 1, 2 C, 1] each
        skipped = torch.zeros_like(x)
        for gated, outer, shift in zip(self.gated, self.outer, shifts, strict=True):
            value, gate = (gated(x) + shift).chunk(2, dim=1)
            y = outer(self.dropout(value.tanh() * gate.sigmoid()))
            skipped = skipped + y[:, -self.channels :]
            x = (x + y[:, : self.channels]) * is_frame
        return skipped * is_frame


class CouplingLayer(nn.Module):
    """Moves half of the channels by what a WaveNet hears in the other half (Dinh et al. 2017,
    without scales)."""

    def __init__(self, part: spec.CouplingFlow, d_model: int, voice: int | None) -> None:
        super().__init__()
        half = part.channels // 2
        self.first = nn.Conv1d(half, d_model, 1)
        self.network = WaveNet(part, d_model, voice)
        self.last = nn.Conv1d(d_model, half, 1)

    def forward(self, z: Tensor, is_frame: Tensor, voice: Tensor | None) -> Tensor:
        """From the prior to latents: z [B, C, T] → [B, C, T]"""
        first, second = z.chunk(2, dim=1)
        heard = self.network(self.first(first) * is_frame, is_frame, voice)
        second = (second - self.last(heard) * is_frame) * is_frame
        return torch.cat([first, second], dim=1)


class CouplingFlow(nn.Module):
    """Coupling layers, between which the order of the channels is reversed."""

    def __init__(self, part: spec.CouplingFlow, d_model: int, voice: int | None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(CouplingLayer(part, d_model, voice) for _ in range(part.flows))

    def forward(self, z: Tensor, is_frame: Tensor, voice: Tensor | None) -> Tensor:
        """From the prior to latents: z [B, C, T] → [B, C, T]"""
        for layer in reversed(self.layers):
            z = layer(z.flip(1), is_frame, voice)
        return z
