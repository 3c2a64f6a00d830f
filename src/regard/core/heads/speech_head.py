"""The spectrogram of speech: a linear map of frames, and a postnet (Shen et al. 2018)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from regard.core.convolution import DilatedConvolution, zero_padding
from regard.core.dropout import Dropout
from regard.core.heads.head import Head, Reading
from regard.core.linear import Linear
from regard.core.norm import BatchNorm
from regard.core.output import Output, Outputs

if TYPE_CHECKING:
    from regard import spec


class SpectrogramHead(Head):
    """Log-mel spectrograms of frames, before and after a residual of convolutions."""

    def __init__(self, part: spec.SpectrogramHead, width: int) -> None:
        super().__init__()
        self.mels = part.mels
        self.output = Linear(width, part.mels * part.frames)
        widths = [part.mels, *[part.channels] * (part.layers - 1), part.mels]
        layers = range(part.layers)
        self.convolutions = nn.ModuleList(
            DilatedConvolution(widths[i], widths[i + 1], part.kernel, 1, bias=False) for i in layers
        )
        self.norms = nn.ModuleList(
            BatchNorm(widths[i + 1], part.norm.eps, part.norm.momentum, counts=part.norm.counts)
            for i in layers
        )
        self.dropout = Dropout(part.dropout)

    def forward(self, hidden: Tensor, padding_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """hidden [B, T, D] → [B, T · frames, mels] before the postnet, and after it"""
        # [B, T · frames, mels]
        before = self.output(hidden).unflatten(-1, (-1, self.mels)).flatten(1, 2)
        if padding_mask is not None:  # of positions: each of its frames is as it is
            padding_mask = padding_mask.repeat_interleave(before.shape[1] // hidden.shape[1], 1)
        x = before
        last = len(self.convolutions) - 1
        for i, (convolve, norm) in enumerate(zip(self.convolutions, self.norms, strict=True)):
            x = norm(convolve(zero_padding(x, padding_mask)), padding_mask)
            x = self.dropout(x if i == last else torch.tanh(x))
        return before, before + x

    def prediction(self, hidden: Tensor, reading: Reading) -> Tensor:
        return self(hidden, reading.padding_mask)[1]

    def named_outputs(self, hidden: Tensor, reading: Reading) -> Outputs:
        return {"spectrogram": Output(self.prediction(hidden, reading), reading.padding_mask)}
