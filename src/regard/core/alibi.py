"""ALiBi: attention with linear biases (Press et al. 2022)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class Alibi(nn.Module):
    """ALiBi: −slope · distance, slopes a geometric series over the heads (Press et al. 2022)."""

    slopes: Tensor

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.register_buffer("slopes", alibi_slopes(heads), persistent=False)

    def extra_repr(self) -> str:
        return f"heads={len(self.slopes)}"

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        distance = (queries[:, None] - keys[None, :]).abs()  # [T, S]
        return -(self.slopes[:, None, None] * distance)[None]  # [1, H, T, S]


def alibi_slopes(heads: int) -> Tensor:
    """2^(-8i/n) for n a power of two; otherwise those of the power below, and every second of the
    one above."""
    power = 2 ** math.floor(math.log2(heads))
    series = [2.0 ** (-8.0 * (i + 1) / power) for i in range(power)]
    # 2^(-8j/2n) for odd j: the series of 2n heads without those of n.
    between = [2.0 ** (-4.0 * (2 * i + 1) / power) for i in range(heads - power)]
    return torch.tensor(series + between, device="cpu")
