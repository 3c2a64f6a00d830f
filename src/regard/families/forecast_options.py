"""Forecast options: the words of recipes that name what is forecast, and in which patches."""

from __future__ import annotations

from collections.abc import Callable

from regard import spec
from regard.errors import ModelError, SettingError
from regard.options import parse_option

_DISTRIBUTIONS = ("student_t", "normal", "negative_binomial")


def _quantiles(*levels: float) -> spec.Quantiles:
    return spec.Quantiles(levels) if levels else spec.Quantiles()


_FORECASTS: dict[str, Callable[..., spec.Forecast]] = {
    "points": spec.Points,
    "quantiles": _quantiles,
}


def parse_forecast(option: str) -> spec.Forecast:
    """What is forecast for each step: `points`, `quantiles:0.1:0.5:0.9`, or a distribution."""
    if option in _DISTRIBUTIONS:
        return spec.Distribution(option)  # type: ignore[arg-type]
    try:
        return parse_option(
            option,
            _FORECASTS,
            subject="forecast",
            usage=f"write points, quantiles:0.1:0.5:0.9, or {', '.join(_DISTRIBUTIONS)}",
            convert=float,
        )
    except ModelError as error:
        raise SettingError(error.problem, error.repair) from None


def parse_scales(option: str) -> tuple[spec.TimeScale, ...]:
    """Patches over time at several scales: LENGTH:STRIDE, with commas between them."""
    scales = []
    # Without a stride, patches lie side by side.
    for part in option.split(","):
        length, _, stride = part.partition(":")
        try:
            scales.append(spec.TimeScale(int(length), int(stride or length)))
        except (ValueError, ModelError):
            raise SettingError(
                f"scales {option!r} are not understood", "write LENGTH:STRIDE, as 16:8,48:24"
            ) from None
    return tuple(scales)
