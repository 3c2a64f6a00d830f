"""The front end of spectrograms: two convolutions over time (Whisper)."""

from __future__ import annotations

from torch import Tensor, nn

from regard import spec
from regard.core.context import Context
from regard.core.dropout import Dropout
from regard.core.feedforward import ACTIVATIONS
from regard.core.frontends.time_scales import TimeScales
from regard.core.positions.positional_encoding import InputPosition
from regard.core.side import FrontEnd


class Spectrogram(FrontEnd):
    """Whisper's front end for log-mel frames: two convolutions over three frames each, of which the
    second keeps every other position; then positions (Radford et al. 2023)."""

    def __init__(
        self,
        part: spec.Spectrogram,
        d_model: int,
        position: InputPosition | None,
        scales: TimeScales | None,
    ) -> None:
        super().__init__()
        self.first = nn.Conv1d(part.mels, d_model, kernel_size=3, padding=1)
        self.second = nn.Conv1d(d_model, d_model, kernel_size=3, padding=1, stride=2)
        self.activation = ACTIVATIONS[part.activation]
        self.position = position
        self.scales = scales
        self.dropout = Dropout(part.dropout)

    def output_padding_mask(self, padding_mask: Tensor | None) -> Tensor | None:
        if padding_mask is None:
            return None
        return padding_mask[:, ::2]

    def forward(
        self, features: Tensor, padding_mask: Tensor | None = None, context: Context | None = None
    ) -> Tensor:
        """features [B, mels, N] → [B, ⌈N / 2⌉, D]"""
        x = self.activation(self.first(features))  # [B, D, N]
        x = self.activation(self.second(x)).mT  # [B, ⌈N / 2⌉, D]
        if self.scales is not None:
            x = self.scales(x, self.output_padding_mask(padding_mask))
        if self.position is not None:
            x = x + self.position.rows(x.shape[1])[: x.shape[1]]
        return self.dropout(x)
