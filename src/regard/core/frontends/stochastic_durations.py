"""VITS's stochastic duration predictor (Kim et al. 2021): how long tokens last is drawn.

Of its flows there is the direction from noise to durations, which speaks. PyTorch's convolutions
read channels before positions: so do all modules here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.core.dropout import Dropout
from regard.core.frontends.variance_adaptor import VariancePredictor
from regard.core.norm import LayerNorm

if TYPE_CHECKING:
    from regard import spec

Draw = Callable[[Tensor], Tensor]  # normal noise of the shape of a tensor
_LEAST = 1e-3  # of the width and the height of a bin, before both are stretched, and of a slope


class SeparableConvolutions(nn.Module):
    """Dilated depth-separable convolutions with residual connections: of each channel over
    positions, then of each position over channels, with a norm and GELU behind each."""

    def __init__(self, part: spec.StochasticDurations, channels: int, dropout: float = 0.0) -> None:
        super().__init__()
        kernel = part.kernel
        # Each reaches as far as all before it together.
        steps = [kernel**i for i in range(part.layers)]
        self.dilated = nn.ModuleList(
            nn.Conv1d(
                channels, channels, kernel, dilation=step, padding=kernel // 2 * step,
                groups=channels,
            )
            for step in steps
        )  # fmt: skip
        self.pointwise = nn.ModuleList(nn.Conv1d(channels, channels, 1) for _ in steps)
        self.dilated_norms = nn.ModuleList(LayerNorm(channels) for _ in steps)
        self.pointwise_norms = nn.ModuleList(LayerNorm(channels) for _ in steps)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, is_token: Tensor) -> Tensor:
        """x [B, C, S] → [B, C, S], zeros where `is_token` [B, 1, S] is 0"""
        layers = zip(
            self.dilated, self.dilated_norms, self.pointwise, self.pointwise_norms, strict=True
        )
        for dilated, dilated_norm, pointwise, pointwise_norm in layers:
            y = functional.gelu(dilated_norm(dilated(x * is_token).mT).mT)
            y = functional.gelu(pointwise_norm(pointwise(y).mT).mT)
            x = x + self.dropout(y)
        return x * is_token


class SplineFlow(nn.Module):
    """Coupling layer of two channels: the second goes through a monotonic rational-quadratic spline
    (Durkan et al. 2019), whose shape the first one and a condition decide."""

    def __init__(self, part: spec.StochasticDurations, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv1d(1, channels, 1)
        self.convolutions = SeparableConvolutions(part, channels)
        self.last = nn.Conv1d(channels, 3 * part.bins - 1, 1)
        self.scale = channels**-0.5
        self.bins = part.bins
        self.bound = part.bound

    def forward(self, z: Tensor, condition: Tensor, is_token: Tensor) -> Tensor:
        """From noise to data: z [B, 2, S] with a condition [B, C, S] → [B, 2, S]"""
        first, second = z.split(1, dim=1)
        x = self.convolutions(self.first(first) + condition, is_token)
        shape = (self.last(x) * is_token).mT[:, None]  # [B, 1, S, 3 · bins − 1]
        widths, heights, slopes = shape.split((self.bins, self.bins, self.bins - 1), dim=-1)
        second = inverse_spline(
            second, widths * self.scale, heights * self.scale, slopes, self.bound
        )
        return torch.cat([first, second], dim=1) * is_token


def inverse_spline(
    y: Tensor, widths: Tensor, heights: Tensor, slopes: Tensor, bound: float
) -> Tensor:
    """Where a monotonic rational-quadratic spline has the values y [...] (Durkan et al. 2019,
    equations 6 to 8). Between −`bound` and `bound` it has bins of these (logits of) widths and
    heights [..., K], with (softplus of) slopes [..., K − 1] between; beyond, it is the identity."""
    # At both ends the slope is 1, as that of the identity.
    end = math.log(math.expm1(1.0 - _LEAST))
    slopes = _LEAST + functional.softplus(functional.pad(slopes, (1, 1), value=end))
    lefts, widths = _bins(widths, bound)
    bottoms, heights = _bins(heights, bound)
    inside = (y >= -bound) & (y <= bound)
    y_in = y.clamp(-bound, bound)[..., None]
    number = torch.searchsorted(bottoms.contiguous(), y_in, right=True) - 1
    number = number.clamp(0, widths.shape[-1] - 1)

    def of_bin(values: Tensor) -> Tensor:
        return values.gather(-1, number)[..., 0]

    width = of_bin(widths)
    height = of_bin(heights)
    mean_slope = of_bin(heights / widths)
    first_slope = of_bin(slopes)
    above = y_in[..., 0] - of_bin(bottoms)
    bend = above * (first_slope + of_bin(slopes[..., 1:]) - 2 * mean_slope)
    # The root of a quadratic equation between 0 and 1: the share of the bin's width.
    a = height * (mean_slope - first_slope) + bend
    b = height * first_slope - bend
    c = -mean_slope * above
    share = 2 * c / (-b - (b.square() - 4 * a * c).sqrt())
    return torch.where(inside, share * width + of_bin(lefts), y)


def _bins(logits: Tensor, bound: float) -> tuple[Tensor, Tensor]:
    """The beginnings of bins from −`bound` to `bound`, and their sizes: [..., K] each."""
    count = logits.shape[-1]
    shares = _LEAST + (1 - _LEAST * count) * logits.softmax(dim=-1)
    ends = 2 * bound * functional.pad(shares.cumsum(dim=-1), (1, 0)) - bound  # [..., K + 1]
    ends[..., 0] = -bound
    ends[..., -1] = bound
    return ends[..., :-1], ends.diff(dim=-1)


class StochasticDurations(nn.Module):
    """Logarithms of durations of noise, by flows that read the encoder's vectors of tokens."""

    def __init__(self, part: spec.StochasticDurations, d_model: int, voice: int | None) -> None:
        super().__init__()
        self.first = nn.Conv1d(d_model, d_model, 1)
        self.voice = None if voice is None else nn.Conv1d(voice, d_model, 1)
        self.convolutions = SeparableConvolutions(part, d_model, part.dropout)
        self.last = nn.Conv1d(d_model, d_model, 1)
        # The first spline of training leaves alone what becomes the durations.
        self.flows = nn.ModuleList(SplineFlow(part, d_model) for _ in range(part.flows - 1))
        self.shift = nn.Parameter(torch.zeros(2, 1))
        self.log_scale = nn.Parameter(torch.zeros(2, 1))

    def forward(self, x: Tensor, is_token: Tensor, voice: Tensor | None, draw: Draw) -> Tensor:
        """x [B, S, D] → [B, S]"""
        x = self.first(x.mT)
        if self.voice is not None and voice is not None:
            x = x + self.voice(voice)
        x = self.last(self.convolutions(x, is_token)) * is_token
        # As transformers draws it: in the usual precision, on the CPU.
        z = draw(torch.empty(len(x), 2, x.shape[2], device="cpu")).to(x)  # [B, 2, S]
        for flow in reversed(self.flows):
            z = flow(z.flip(1), x, is_token)
        z = (z.flip(1) - self.shift) * (-self.log_scale).exp() * is_token
        return z[:, 0]


class VoicedDurations(nn.Module):
    """Logarithms of durations by convolutions, which are told who speaks; nothing is drawn."""

    def __init__(self, part: spec.VariancePredictor, d_model: int, voice: int | None) -> None:
        super().__init__()
        self.predictor = VariancePredictor(part, d_model)
        self.voice = None if voice is None else nn.Conv1d(voice, d_model, 1)

    def forward(self, x: Tensor, is_token: Tensor, voice: Tensor | None, draw: Draw) -> Tensor:
        """x [B, S, D] → [B, S]"""
        if self.voice is not None and voice is not None:
            x = x + self.voice(voice).mT
        mask = is_token[:, 0].bool()
        return self.predictor(x, mask)[..., 0] * is_token[:, 0]
