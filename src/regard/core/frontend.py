"""What stands before a stack when its input is no text. A front end maps its inputs to [B, T, D], and `places` tells which of
the T positions are real when `real` tells it of the inputs."""

from __future__ import annotations

from torch import Tensor, nn

from regard.core.dropout import Dropout
from regard.core.feedforward import ACTIVATIONS
from regard.core.position import Fixed, Learned, Sinusoidal


class Frames(nn.Module):
    """Frames of a spectrogram: two convolutions over three frames each, of which the second keeps every other place; then
    positions (Radford et al. 2023)."""

    def __init__(
        self, mels: int, d_model: int, position: Sinusoidal | Learned | Fixed | None, activation: str, dropout: float
    ) -> None:
        super().__init__()
        self.first = nn.Conv1d(mels, d_model, kernel_size=3, padding=1)
        self.second = nn.Conv1d(d_model, d_model, kernel_size=3, padding=1, stride=2)
        self.activation = ACTIVATIONS[activation]
        self.position = position
        self.dropout = Dropout(dropout)

    def places(self, real: Tensor | None) -> Tensor | None:
        return None if real is None else real[:, ::2]

    def forward(self, features: Tensor) -> Tensor:
        """features [B, mels, N] → [B, ⌈N / 2⌉, D]"""
        x = self.activation(self.first(features))  # [B, D, N]
        x = self.activation(self.second(x)).mT
        if self.position is not None:
            x = x + self.position.rows(x.shape[1])[: x.shape[1]]
        return self.dropout(x)
