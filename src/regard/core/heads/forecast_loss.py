"""Losses of forecasts: squared error of points, pinball loss of quantiles, −log p of distributions.

Each compares a forecast with the `future` [B, H, C] and gives the errors [B, H, C]. `scaling` is
asked for where the forecast is on the normalized scale of its window.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from regard.core.frontends.series_patches import Scaling
from regard.core.heads.series_head import distribution

ForecastLoss = Callable[[Any, Tensor, Callable[[], Scaling]], Tensor]


def squared_error(forecast: Tensor, future: Tensor, scaling: Callable[[], Scaling]) -> Tensor:
    """Points: [B, H, C]."""
    return (forecast.float() - future).square()


def mean_pinball_loss(
    forecast: Tensor, future: Tensor, scaling: Callable[[], Scaling], *, levels: Sequence[float]
) -> Tensor:
    """Quantiles of these levels: [B, H, C, Q]."""
    return pinball_loss(forecast, future, levels).mean(dim=-1)


def negative_log_likelihood(
    parameters: tuple[Tensor, ...], future: Tensor, scaling: Callable[[], Scaling], *, kind: str
) -> Tensor:
    """A distribution of this kind by its parameters, each [B, H, C]."""
    # Half precision has too few digits for logarithms of densities.
    wide = tuple(one.to(torch.promote_types(one.dtype, torch.float32)) for one in parameters)
    return -distribution(kind, wide, scaling()).log_prob(future)


def pinball_loss(forecast: Tensor, future: Tensor, levels: Sequence[float]) -> Tensor:
    """Pinball loss of quantiles: [B, H, C, Q] against [B, H, C] → [B, H, C, Q]."""
    level = torch.tensor(levels, device=forecast.device, dtype=torch.float32)
    error = future[..., None] - forecast.float()
    # Its minimum over forecasts is the quantile of that level (Koenker and Bassett 1978).
    return torch.maximum(level * error, (level - 1) * error)
