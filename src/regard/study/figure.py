"""Figures and tables as data: line and scatter charts, bar charts, heat maps.

Nothing is drawn here; `svg` draws, `report` and `terminal_report` print the tables.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Axis:
    """An axis: its label with the unit, its scale, and limits where the data should not set them.

    `ticks` are the values to be labelled, by default round ones.
    """

    label: str
    log: bool = False  # logarithmic
    low: float | None = None  # None: from the data, with some room
    high: float | None = None
    ticks: tuple[float, ...] = ()


@dataclass(frozen=True)
class Series:
    """Points of a chart with their name, and the spread around them (low, high at each x)."""

    name: str
    x: Sequence[float]
    y: Sequence[float]  # as long as x
    spread: Sequence[tuple[float, float]] = ()
    style: Literal["line", "points", "dashed"] = "line"  # dashed: theory, or for comparison

    @classmethod
    def over_seeds(cls, name: str, x: Sequence[float], runs: Sequence[Sequence[float]]) -> Series:
        """The mean over the seeds, with the range from the least to the largest.

        `runs` has for each seed the values at x.
        """
        # The range and not a deviation: with two or three seeds a deviation says little.
        at_each_x = list(zip(*runs, strict=True))
        spread: list[tuple[float, float]] = []
        if len(runs) > 1:
            spread = [(min(values), max(values)) for values in at_each_x]
        return cls(name, x, [statistics.fmean(values) for values in at_each_x], spread)


@dataclass(frozen=True)
class Chart:
    """A line or scatter chart."""

    title: str
    x: Axis
    y: Axis
    series: Sequence[Series]
    note: str = ""  # below the figure


@dataclass(frozen=True)
class Bars:
    """One series of a bar chart: for each category the values of all seeds."""

    name: str
    values: Sequence[Sequence[float]]  # [categories][seeds]


@dataclass(frozen=True)
class BarChart:
    """A bar chart: mean over the seeds, with a line from the least to the largest.

    Several series stand side by side in each category. Bars begin at `base`: by default at 0, or
    at the lower end of an axis that has no 0.
    """

    title: str
    y: Axis
    categories: Sequence[str]
    series: Sequence[Bars]
    base: float | None = None
    note: str = ""


@dataclass(frozen=True)
class HeatMap:
    """A heat map: a colour for each value; `signed` values have zero in the middle of the scale."""

    title: str
    values: Sequence[Sequence[float]]  # [rows][columns]
    rows: Sequence[str] = ()  # names; none, where there are too many
    columns: Sequence[str] = ()
    x_label: str = ""
    y_label: str = ""
    signed: bool = False
    note: str = ""


Figure = Chart | BarChart | HeatMap


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
