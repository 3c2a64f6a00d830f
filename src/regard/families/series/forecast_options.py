"""Forecast options: the words of recipes and configs that name what is forecast, and from what."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from regard import spec
from regard.system.errors import ModelError, SettingError
from regard.system.options import parse_option

# Keys of transformers' scalers, whose defaults are those here.
UNSUPPORTED = frozenset({"default_scale", "keepdim", "minimum_scale", "scaling_dim"})
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


def parse_distribution(name: str) -> spec.Distribution:
    """The distribution that a config names."""
    if name not in _DISTRIBUTIONS:
        raise ModelError(
            f"config.json: distribution_output {name!r} is not supported",
            f"known: {', '.join(_DISTRIBUTIONS)}",
        )
    return spec.Distribution(name)  # type: ignore[arg-type]


def parse_scaler(scaling: Any) -> Literal["std", "mean"] | None:
    """The instance normalization that a config names."""
    match scaling:
        case "std":
            return "std"
        case "mean" | True:
            return "mean"
        case None | False:
            return None
    raise ModelError(f"config.json: scaling cannot be {scaling!r}", "set it to std, mean or null")


def parse_lags(option: str) -> tuple[int, ...]:
    """Lags of the values that a time step reads: time steps, with commas between them."""
    try:
        lags = tuple(int(part) for part in option.split(","))
    except ValueError:
        lags = ()
    if not lags or min(lags) < 1:
        raise SettingError(
            f"lags {option!r} are not positive whole numbers", "write them as 1,2,3,24,168"
        )
    return lags


def parse_scales(option: str) -> tuple[spec.TimeScale, ...]:
    """Several time scales: LENGTH:STRIDE, with commas between them."""
    scales = []
    # Without a stride, windows lie side by side.
    for part in option.split(","):
        length, _, stride = part.partition(":")
        try:
            scales.append(spec.TimeScale(int(length), int(stride or length)))
        except (ValueError, ModelError):
            raise SettingError(
                f"scales {option!r} are not pairs of numbers", "write LENGTH:STRIDE, as 16:8,48:24"
            ) from None
    return tuple(scales)
