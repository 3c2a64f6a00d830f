"""Rotary position embeddings, RoPE (Su et al. 2021): positions as rotations of queries and keys."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from regard.core.masks.attention_mask import AttentionMask
from regard.core.masks.mask import Call
from regard.core.positions.position_terms import (
    Angles,
    LayerPosition,
    PositionTerms,
    Projects,
    StackPosition,
)


class Rope(LayerPosition, StackPosition):
    """Rotates each pair of dimensions by an angle that grows with the position, so that q·k depends
    on the distance. `pairs` says which dimensions are one: `halves` (i and i + R/2) or
    neighbours."""

    frequencies: Tensor

    def __init__(
        self,
        frequencies: Tensor,  # [R/2]
        pairs: str,
        settings: str = "",
        length: float = 1.0,
        stored: bool = False,
    ) -> None:
        super().__init__()
        if stored:
            self.frequencies = nn.Parameter(frequencies, requires_grad=False)
        else:
            self.register_buffer("frequencies", frequencies, persistent=False)
        self.pairs = pairs
        self.settings = settings  # in words: how the frequencies were made
        self.length = length  # of what was 1 before it was turned (YaRN)

    def extra_repr(self) -> str:
        return f"dimensions={2 * len(self.frequencies)}, pairs={self.pairs!r}{self.settings}"

    def terms(self, mask: AttentionMask, ids: Tensor, call: Call) -> PositionTerms:
        # Of the new positions only: cached keys have been rotated already.
        return PositionTerms(ids, angles=self.angles(mask.queries))

    def turn(
        self, q: Tensor, k: Tensor, positions: PositionTerms | None, project: Projects
    ) -> tuple[Tensor, Tensor]:
        if positions is None or positions.angles is None:
            return q, k
        return self.rotate(q, positions.angles), self.rotate(k, positions.angles)

    def angles(self, positions: Tensor) -> Angles:
        """cos and sin for each position, [T, R/2] or [B, 1, T, R/2]: computed once for all
        layers."""
        angles = positions.float()[..., None] * self.frequencies
        if positions.ndim > 1:
            angles = angles[:, None]  # one dimension for the heads
        if self.length == 1.0:
            return angles.cos(), angles.sin()
        return self.length * angles.cos(), self.length * angles.sin()

    def rotate(self, x: Tensor, angles: Angles) -> Tensor:
        """x [B, H, T, K]; dimensions beyond the rotated ones stay."""
        # Angles are computed in float32: large positions are not exact in bf16.
        cos = angles[0].to(x.dtype)
        sin = angles[1].to(x.dtype)
        rotated_width = 2 * cos.shape[-1]
        part, rest = x.split([rotated_width, x.shape[-1] - rotated_width], dim=-1)
        if self.pairs == "halves":
            # As LLaMA and GPT-NeoX (Hugging Face's `rotate_half`).
            first, second = part.chunk(2, dim=-1)
        else:
            # As the paper and GPT-J.
            first, second = part.unflatten(-1, (-1, 2)).unbind(-1)
        both = [first * cos - second * sin, second * cos + first * sin]
        if self.pairs == "halves":
            rotated = torch.cat(both, dim=-1)
        else:
            rotated = torch.stack(both, dim=-1).flatten(-2)
        if not rest.shape[-1]:
            return rotated
        return torch.cat([rotated, rest], dim=-1)


def rope_frequencies(dimensions: int, base: float) -> Tensor:
    """base^(-2i/R): [R/2], in float32 as the checkpoints were trained with."""
    exponents = torch.arange(0, dimensions, 2, dtype=torch.float32, device="cpu") / dimensions
    return 1.0 / base**exponents


def banded_frequencies(
    frequencies: Tensor, factor: float, low: float, high: float, length: int
) -> Tensor:
    """Scaling by wavelength (LLaMA 3): stretched above length/low, left below length/high, blended
    between."""
    wavelengths = 2 * math.pi / frequencies
    blend = ((length / wavelengths - low) / (high - low)).clamp(0.0, 1.0)
    return frequencies * (blend + (1 - blend) / factor)


def yarn_frequencies(
    frequencies: Tensor, base: float, factor: float, limits: tuple[float, float], truncate: bool
) -> Tensor:
    """Scaling by turns (YaRN, Peng et al. 2023, Section 3.2): pairs up to the first of the `limits`
    are kept, from the second one on stretched, blended between. They are context lengths, of which
    the pair is asked that turns once in so many radians."""
    pairs = len(frequencies)
    low, high = (pairs * math.log(limit) / math.log(base) for limit in limits)
    if truncate:
        low = math.floor(low)
        high = math.ceil(high)
    low = max(low, 0)
    high = min(high, 2 * pairs - 1)
    ramp = torch.arange(pairs, dtype=torch.float32, device="cpu") - low
    blend = (ramp / max(high - low, 0.001)).clamp(0.0, 1.0)
    return frequencies * (blend / factor + 1 - blend)
