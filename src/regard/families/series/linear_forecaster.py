"""Linear forecasters as baselines of time series: DLinear and NLinear (Zeng et al. 2023)."""

from __future__ import annotations

from functools import partial

from regard import spec
from regard.families.preset_settings import PresetFamily, Settings, Size

_MOVING_AVERAGE = 25  # steps, as in the paper


def _make(settings: Settings, moving_average: int | None) -> spec.LinearForecaster:
    # Both have one map for all channels, as in the paper's tables.
    s = settings
    return spec.LinearForecaster(
        s["context"], s["channels"], s["horizon"], moving_average=moving_average
    )


def _family(moving_average: int | None) -> PresetFamily:
    """The vocabulary are channels, the context is the look-back."""
    make = partial(_make, moving_average=moving_average)
    defaults = {"horizon": 96, "channels": None}
    return PresetFamily("series", make, {"tiny": Size({})}, defaults, 7, 336, "tiny")


PRESETS = {"dlinear": _family(_MOVING_AVERAGE), "nlinear": _family(None)}
