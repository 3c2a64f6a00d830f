"""Linear forecasters as baselines of time series: DLinear and NLinear (Zeng et al. 2023)."""

from __future__ import annotations

from typing import Any, Literal

from regard import spec
from regard.families.preset_settings import PresetFamily, Size

_MOVING_AVERAGE = 25  # steps, as in the paper


def preset(
    name: Literal["dlinear", "nlinear"],
    vocabulary: int,
    context: int,
    *,
    horizon: int = 96,
    channels: int | None = None,
) -> spec.LinearForecaster:
    """DLinear or NLinear; the vocabulary are channels, the context is the look-back."""
    # Both have one map for all channels, as in the paper's tables.
    return spec.LinearForecaster(
        context,
        channels or vocabulary,
        horizon,
        moving_average=_MOVING_AVERAGE if name == "dlinear" else None,
    )


def _family(name: Literal["dlinear", "nlinear"]) -> PresetFamily:
    def make(size: str, vocabulary: int, context: int, **changes: Any) -> spec.LinearForecaster:
        return preset(name, vocabulary, context, **changes)

    options = ("horizon", "channels")
    return PresetFamily("series", make, {"tiny": Size({})}, options, 7, 336, "tiny")


PRESETS = {"dlinear": _family("dlinear"), "nlinear": _family("nlinear")}
