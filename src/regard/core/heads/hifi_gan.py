"""HiFi-GAN's generator (Kong et al. 2020): a vocoder, which makes samples of a spectrogram."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.core.heads.head import Head, Reading
from regard.core.output import Output, Outputs

if TYPE_CHECKING:
    from regard import spec

_ENDS = 7  # kernel of the first and of the last convolution


class ResidualBlock(nn.Module):
    """Pairs of a dilated convolution and a plain one, each pair with a residual connection."""

    def __init__(
        self, channels: int, kernel: int, dilations: tuple[int, ...], slope: float
    ) -> None:
        super().__init__()

        def convolution(dilation: int) -> nn.Conv1d:
            reach = (kernel - 1) * dilation
            return nn.Conv1d(channels, channels, kernel, dilation=dilation, padding=reach // 2)

        self.dilated = nn.ModuleList(convolution(dilation) for dilation in dilations)
        self.plain = nn.ModuleList(convolution(1) for _ in dilations)
        self.slope = slope

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, T] → [B, C, T]"""
        for dilated, plain in zip(self.dilated, self.plain, strict=True):
            y = dilated(functional.leaky_relu(x, self.slope))
            x = plain(functional.leaky_relu(y, self.slope)) + x
        return x


class HifiGan(Head):
    """Spectrograms [B, T, mels] → samples [B, T · hop] between −1 and 1.

    Each frame is known by its neighbours; what is behind the end of a row should be cut off.
    """

    def __init__(self, part: spec.HifiGan) -> None:
        super().__init__()
        width = part.channels
        # PyTorch's convolutions: all of them read channels before positions.
        self.first = nn.Conv1d(part.mels, width, _ENDS, padding=_ENDS // 2)
        self.upsampling = nn.ModuleList()
        self.blocks = nn.ModuleList()  # several for each of these
        for rate, kernel in zip(part.rates, part.kernels, strict=True):
            # `rate` times as many positions, half as many channels.
            longer = nn.ConvTranspose1d(
                width, width // 2, kernel, rate, padding=(kernel - rate) // 2
            )
            width //= 2
            self.upsampling.append(longer)
            sizes = zip(part.block_kernels, part.dilations, strict=True)
            self.blocks.append(
                nn.ModuleList(ResidualBlock(width, *size, part.slope) for size in sizes)
            )
        self.last = nn.Conv1d(width, 1, _ENDS, padding=_ENDS // 2, bias=not part.of_latents)
        if not part.of_latents:
            # Parameters and not buffers: stored and moved as all weights are.
            self.mean = nn.Parameter(torch.zeros(part.mels), requires_grad=False)
            self.deviation = nn.Parameter(torch.ones(part.mels), requires_grad=False)
        self.voice = None if part.voice is None else nn.Conv1d(part.voice, part.channels, 1)
        self.normalized = part.normalized and not part.of_latents
        self.hop = part.hop
        self.slope = part.slope

    def forward(self, spectrogram: Tensor, voice: Tensor | None = None) -> Tensor:
        """spectrogram [B, T, mels], as a `voice` [B or 1, E, 1] says it: samples [B, T · hop]"""
        if self.normalized:
            spectrogram = (spectrogram - self.mean) / self.deviation
        x = self.first(spectrogram.mT)  # [B, C, T]
        if self.voice is not None and voice is not None:
            x = x + self.voice(voice)
        for longer, blocks in zip(self.upsampling, self.blocks, strict=True):
            x = longer(functional.leaky_relu(x, self.slope))  # [B, C / 2, T · rate]
            heard = [block(x) for block in cast(nn.ModuleList, blocks)]
            x = torch.stack(heard).mean(dim=0)
        # The authors' last slope is PyTorch's own, not that of the others.
        return torch.tanh(self.last(functional.leaky_relu(x)))[:, 0]

    def prediction(self, hidden: Tensor, reading: Reading) -> Tensor:
        return self(hidden)

    def named_outputs(self, hidden: Tensor, reading: Reading) -> Outputs:
        return {"waveform": Output(self.prediction(hidden, reading))}
