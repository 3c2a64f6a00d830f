"""Tables as data, and the numbers of several seeds as texts; figures are those of `drawing`."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """A table of texts; the first column names the rows."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


# ------------------------------------------------------------------ numbers of several seeds


def mean(values: Sequence[float]) -> float:
    """The mean over the seeds."""
    return statistics.fmean(values)


def deviation(values: Sequence[float]) -> float:
    """The standard deviation over the seeds; 0 where there is one."""
    return statistics.stdev(values) if len(values) > 1 else 0.0


def mean_text(values: Sequence[float], number_format: str = "") -> str:
    """The mean over the seeds, with the standard deviation if there are several.

    Without a format both end at the second significant digit of the deviation.
    """
    centre = mean(values)
    spread = deviation(values)
    if not number_format:
        number_format = _digits(centre, spread)
    text = format(centre, number_format)
    if len(values) > 1:
        text += f" ± {format(spread, number_format)}"
    return text


def _digits(centre: float, spread: float) -> str:
    """The format of a mean with this deviation."""
    largest = max(abs(centre), spread)
    if not largest or not math.isfinite(largest):
        return ".3g"
    if largest < 1e-3 or largest >= 1e6:
        return ".1e"
    # Three significant digits of the mean, or two of the deviation, whichever are fewer.
    decimals = 2 - math.floor(math.log10(largest))
    if spread:
        decimals = min(decimals, 1 - math.floor(math.log10(spread)))
    return f",.{max(0, decimals)}f"
