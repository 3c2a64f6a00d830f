"""What runs beside the first block of a stack."""

from __future__ import annotations

from torch import Tensor, nn

from regard.core.dropout import Dropout
from regard.core.feedforward import ACTIVATIONS
from regard.core.mask import AttentionMask
from regard.core.norm import Norm


class ConvLayer(nn.Module):
    """norm(block(x) + activation(convolution(x))): neighbours are mixed by their places alone."""

    def __init__(
        self, d_model: int, width: int, groups: int, activation: str, norm: Norm, dropout: float
    ) -> None:
        super().__init__()
        self.conv = nn.Conv1d(d_model, d_model, width, padding=width // 2, groups=groups)
        self.activation = ACTIVATIONS[activation]
        self.norm = norm
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, block: Tensor, attention_mask: AttentionMask) -> Tensor:
        """x [B, T, D] went into the first block, `block` came out. What nobody may look at counts as zeros."""
        seen = attention_mask.mask.any(dim=-2)[:, 0, :, None]  # [B or 1, T, 1]
        mixed = self.conv((x * seen).mT).mT
        return self.norm(block + self.activation(self.dropout(mixed)))
