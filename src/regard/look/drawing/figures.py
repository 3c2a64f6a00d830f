"""Figures with axes as data: line and scatter charts, bar charts, heat maps; each has its scene."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Literal

import numpy as np

from regard.look.drawing.charts import MOST_CELLS, heat, ticks
from regard.look.drawing.marks import (
    Circle,
    Line,
    Marks,
    Polyline,
    Rect,
    Scene,
    Text,
    moved,
    text_width,
    titled,
)
from regard.look.drawing.palette import LINES

# Pixels
WIDTH = 500.0
HEIGHT = 260.0  # of the plot, between its legend and its names
LEFT = 68.0
RIGHT = 484.0
LEGEND_ROW = 20.0
MARKER = 3.2  # radius of a point
MOST_MARKERS = 30  # on a longer curve they would hide it
MOST_LETTERS = 26  # of a name below a bar
SLANT = 35.0  # degrees of such names, at least, where they do not fit side by side


@dataclass(frozen=True)
class Axis:
    """An axis: its label with the unit, its scale, and limits where the data should not set them.

    `ticks` are the values to be labelled, by default round ones.
    """

    label: str
    log: bool = False  # logarithmic
    low: float | None = None  # None: from the data, with some room
    high: float | None = None
    ticks: Sequence[float] = ()


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

    def scene(self) -> Scene:
        legend, top = _legend([(series.name, series.style) for series in self.series])
        bottom = top + HEIGHT
        ys = [y for series in self.series for y in series.y]
        ys += [end for series in self.series for ends in series.spread for end in ends]
        xs = [x for series in self.series for x in series.x]
        x_scale = Scale.over(self.x, xs, LEFT + 6, RIGHT - 6)
        y_scale = Scale.over(self.y, ys, bottom, top)
        # Grid lines first: series are painted over them.
        marks = [*legend, *_y_axis(y_scale), Line(LEFT, bottom, RIGHT, bottom)]
        marks += x_ticks(x_scale, bottom)
        marks.append(Text((LEFT + RIGHT) / 2, bottom + 40, self.x.label, "middle"))
        for series, colour in zip(self.series, cycle(LINES), strict=False):
            marks += _series(series, colour, x_scale, y_scale)
        return Scene(WIDTH, bottom + 50, tuple(marks))


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

    def scene(self) -> Scene:
        marks, top = _legend([(bars.name, "bars") for bars in self.series])
        bottom = top + HEIGHT
        values = [value for bars in self.series for seeds in bars.values for value in seeds]
        axis = self.y
        if not axis.log:
            values.append(0.0)
            if axis.low is None and min(values) >= 0:
                axis = replace(axis, low=0.0)
        scale = Scale.over(axis, values, bottom, top)
        base = self.base
        if base is None:
            base = scale.low if axis.log or axis.low is not None else 0.0
        foot = scale(base)
        # Each category has a slot, of which its bars take three quarters.
        slot = (RIGHT - LEFT) / max(1, len(self.categories))
        width = slot * 0.74 / max(1, len(self.series))
        marks += _y_axis(scale)
        for index, (bars, colour) in enumerate(zip(self.series, cycle(LINES), strict=False)):
            for position, name in enumerate(self.categories):
                # A value that the scale cannot show has no bar.
                seeds = [value for value in bars.values[position] if scale.shows(value)]
                if not seeds:
                    continue
                mean = statistics.fmean(seeds)
                x = LEFT + slot * (position + 0.13) + index * width
                y = scale(mean)
                size = (max(1.0, width - 2), max(1.0, abs(y - foot)))
                label = f"{bars.name} {name}: {number(mean)}".strip()
                marks.append(Rect(x, min(y, foot), *size, colour, label))
                if len(seeds) > 1:
                    middle = x + width / 2 - 1
                    ends = (scale(min(seeds)), scale(max(seeds)))
                    marks.append(Line(middle, ends[0], middle, ends[1], 1.6))
        marks.append(Line(LEFT, foot, RIGHT, foot))
        names, height = _category_names(self.categories, slot, bottom)
        return Scene(WIDTH, bottom + height, (*marks, *names))


@dataclass(frozen=True)
class HeatMap:
    """A heat map: a colour for each value; `signed` values have zero in the middle of the scale."""

    title: str
    values: Sequence[Sequence[float]]  # [rows][columns]
    rows: Sequence[str] = ()  # names
    columns: Sequence[str] = ()
    x_label: str = ""
    y_label: str = ""
    signed: bool = False
    note: str = ""

    def scene(self) -> Scene:
        values = np.array(self.values, dtype=float)  # [rows, columns]
        rows, columns = values.shape
        cell = min(30.0, (RIGHT - LEFT) / columns)
        tall = HEIGHT / rows
        if values.size <= MOST_CELLS:
            tall = min(cell, tall)
        scene = heat(
            values,
            self.rows or [""] * rows,
            self.columns or [""] * columns,
            signed=self.signed,
            cell=(cell, tall),
        )
        left = 24.0 if self.y_label else 0.0
        marks = moved(scene.marks, left, 0.0)
        marks.append(Text(14, scene.height / 2, self.y_label, "middle", turn=90))
        marks.append(Text(left + scene.width / 2, scene.height + 14, self.x_label, "middle"))
        return Scene(left + scene.width, scene.height + 24, tuple(marks))


Figure = Chart | BarChart | HeatMap


def curves(
    series: Mapping[str, Sequence[tuple[float, float]]],
    *,
    title: str = "",
    x_name: str = "",
    y_name: str = "",
) -> Scene:
    """A line chart: one line through the points of each series, with a legend."""
    lines = [
        Series(name, [x for x, _ in points], [y for _, y in points])
        for name, points in series.items()
    ]
    return titled(title, Chart(title, Axis(x_name), Axis(y_name), lines).scene())


# ------------------------------------------------------------------ scales


@dataclass(frozen=True)
class Scale:
    """A map from the values of an axis to pixels."""

    axis: Axis
    low: float  # the least value that is shown
    high: float
    start: float  # the pixel of `low`
    end: float

    @classmethod
    def over(cls, axis: Axis, values: Sequence[float], start: float, end: float) -> Scale:
        """The scale over these values, with some room at its ends."""
        # What cannot be drawn does not set the scale.
        usable = [v for v in values if math.isfinite(v) and (v > 0 or not axis.log)] or [1.0, 2.0]
        low = min(usable)
        high = max(usable)
        if axis.log:
            factor = max((high / low) ** 0.04, 1.05)
            low, high = low / factor, high * factor
        else:
            room = (high - low or abs(high) or 1.0) * 0.05
            low, high = low - room, high + room
        low = low if axis.low is None else axis.low
        high = high if axis.high is None else axis.high
        return cls(axis, low, high, start, end)

    def __call__(self, value: float) -> float:
        """The pixel of a value, or of the end of the scale that it lies beyond."""
        ends = [self.low, min(self.high, max(self.low, value)), self.high]
        if self.axis.log:
            ends = [math.log10(end) for end in ends]
        low, place, high = ends
        share = (place - low) / ((high - low) or 1.0)
        return self.start + share * (self.end - self.start)

    def shows(self, value: float) -> bool:
        """Whether a value can be drawn at all: no zero on a logarithmic scale, no NaN."""
        return math.isfinite(value) and (value > 0 or not self.axis.log)

    def ticks(self) -> list[float]:
        """Round values on the axis, about five."""
        values: Sequence[float] = self.axis.ticks
        if not values:
            values = self._log_ticks() if self.axis.log else ticks([self.low, self.high])
        slack = 1e-9 * (self.high - self.low)
        return [tick for tick in values if self.low - slack <= tick <= self.high + slack]

    def _log_ticks(self) -> list[float]:
        """Powers of ten, some of them if there are many; 1, 2, 5 within few decades."""
        first = math.floor(math.log10(self.low))
        last = math.ceil(math.log10(self.high))
        stride = max(1, math.ceil((last - first) / 7))
        factors = (1, 2, 5) if last - first <= 2 else (1,)
        exponents = range(first - first % stride, last + 1, stride)
        return [factor * 10.0**exponent for exponent in exponents for factor in factors]


SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def number(value: float) -> str:
    """A number as an axis and a tooltip have it."""
    if value == 0:
        return "0"
    exponent = math.floor(math.log10(abs(value)))
    if -4 < exponent < 6:
        text = f"{value:,.6g}" if abs(value) >= 1000 else f"{value:.4g}"
        return text.replace("-", "−")
    factor = value / 10.0**exponent
    power = "10" + str(exponent).translate(SUPERSCRIPTS)
    # 10⁻⁷, but 2×10⁻⁷
    return power if abs(factor - 1) < 1e-6 else f"{factor:.2g}×{power}".replace("-", "−")


# ------------------------------------------------------------------ parts of a chart


def _legend(series: Sequence[tuple[str, str]]) -> tuple[Marks, float]:
    """Names and styles above the plot, in as many rows as they need, and where the plot begins."""
    marks: Marks = []
    if len(series) < 2 and not any(name for name, _ in series):
        return marks, 10.0
    x = LEFT
    y = 14.0
    for (name, style), colour in zip(series, cycle(LINES), strict=False):
        width = 26 + text_width([name])
        if x + width > WIDTH and x > LEFT:
            x = LEFT
            y += LEGEND_ROW
        if style == "points":
            marks.append(Circle(x + 10, y - 4, 4, colour))
        elif style == "bars":
            marks.append(Rect(x, y - 9, 20, 10, colour))
        else:
            ends = ((x, y - 4), (x + 20, y - 4))
            marks.append(Polyline(ends, colour, 3, dashed=style == "dashed"))
        marks.append(Text(x + 26, y, name))
        x += width + 14
    return marks, y + 16


def x_ticks(scale: Scale, base: float, unit: str = "") -> Marks:
    """Values below an axis, the one at its very beginning to the right of it."""
    marks: Marks = []
    for tick in scale.ticks():
        x = scale(tick)
        marks.append(Line(x, base, x, base + 4))
        marks.append(Text(x, base + 18, number(tick) + unit, "middle" if x else "start"))
    return marks


def y_ticks(scale: Scale, left: float = LEFT, right: float = RIGHT) -> Marks:
    """Grid lines with their values."""
    marks: Marks = []
    for tick in scale.ticks():
        y = scale(tick)
        marks.append(Line(left, y, right, y, opacity=0.15))
        marks.append(Text(left - 7, y + 4, number(tick), "end"))
    return marks


def _y_axis(scale: Scale) -> Marks:
    middle = (scale.start + scale.end) / 2
    return [*y_ticks(scale), Text(15, middle, scale.axis.label, "middle", turn=90)]


def _series(series: Series, colour: str, x_scale: Scale, y_scale: Scale) -> Marks:
    marks: Marks = []
    if series.spread:
        # Between the least and the largest value of the seeds: there below, and back above.
        ends = [
            (x_scale(x), y_scale(low), y_scale(high))
            for x, (low, high) in zip(series.x, series.spread, strict=True)
            if x_scale.shows(x) and y_scale.shows(low) and y_scale.shows(high)
        ]
        along = [(x, low) for x, low, _ in ends]
        back = [(x, high) for x, _, high in reversed(ends)]
        marks.append(Polyline((*along, *back), colour, filled=0.18))
    points = [
        (x, y)
        for x, y in zip(series.x, series.y, strict=True)
        if x_scale.shows(x) and y_scale.shows(y)
    ]
    pixels = tuple((x_scale(x), y_scale(y)) for x, y in points)
    if series.style != "points":
        dashed = series.style == "dashed"
        marks.append(Polyline(pixels, colour, 2.2, dashed=dashed, title=series.name))
    # On a dashed curve there is nothing measured.
    if series.style == "points" or (series.style == "line" and len(points) <= MOST_MARKERS):
        for (x, y), pixel in zip(points, pixels, strict=True):
            tooltip = f"{series.name}: {number(y)} at {number(x)}"
            marks.append(Circle(*pixel, MARKER, colour, title=tooltip))
    return marks


def _category_names(names: Sequence[str], slot: float, bottom: float) -> tuple[list[Text], float]:
    """The names below the bars, slanted where they are too long, and the height they take."""
    names = [name if len(name) <= MOST_LETTERS else f"{name[:MOST_LETTERS]}…" for name in names]
    middles = [LEFT + slot * (index + 0.5) for index in range(len(names))]
    longest = text_width(names)
    if longest <= slot - 4:
        return [
            Text(x, bottom + 18, name, "middle") for x, name in zip(middles, names, strict=True)
        ], 30.0
    # A name ends below its bar: the first ones must not begin left of the drawing.
    places = [(x + 4, name) for x, name in zip(middles, names, strict=True)]
    room = min(x / text_width([name]) for x, name in places if name)
    angle = max(SLANT, math.degrees(math.acos(min(1.0, room))))
    marks = [Text(x, bottom + 16, name, "end", turn=angle) for x, name in places]
    return marks, 24.0 + longest * math.sin(math.radians(angle))
