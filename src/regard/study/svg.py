"""SVG drawings of figures, in the colours of the page around them.

Colours are CSS variables with a light palette as fallback, so that one drawing serves light and
dark pages; `report.STYLE` defines the variables.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from regard import drawing
from regard.study.figure import Axis, BarChart, Bars, Chart, Figure, HeatMap, Series, mean

# Series are told apart in greyscale and by colour-blind readers: dark and bright ones alternate.
PALETTE = ("#1f5fbf", "#d97706", "#0b6e4f", "#b0357a", "#6d4fc4", "#5b6472", "#0891b2", "#a61b1b")
INK = "var(--ink, currentColor)"
FAINT = "var(--faint, #5b6472)"
GRID = "var(--line, #d9dde4)"

# Pixels at full size; a page scales them.
WIDTH = 500.0
HEIGHT = 320.0
LEFT = 68.0
RIGHT = 16.0
BOTTOM = 50.0
FONT = 13.0
LETTER = 6.7  # about how wide a letter is
LEGEND_ROW = 20.0
MARKER = 3.2  # radius of a point
MOST_CELLS = 1500  # beyond this a heat map is one embedded image
MOST_LETTERS = 26  # of a name below a bar
SLANT = 35.0  # degrees of such names, at least, where they do not fit side by side
MOST_NAMES = 40  # of rows or columns of a heat map


def svg(figure: Figure) -> str:
    """The figure as an SVG element."""
    match figure:
        case Chart():
            return _chart(figure)
        case BarChart():
            return _bar_chart(figure)
        case HeatMap():
            return _heat_map(figure)


def _document(title: str, height: float, parts: Sequence[str], width: float = WIDTH) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{escape(title)}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" '
        f'style="width:100%;max-width:{width:.0f}px;height:auto" '
        f'font-family="system-ui, sans-serif" font-size="{FONT:g}">{"".join(parts)}</svg>'
    )


def _colour(index: int) -> str:
    index %= len(PALETTE)
    return f"var(--series-{index}, {PALETTE[index]})"


def _text(x: float, y: float, text: str, anchor: str = "middle", fill: str = FAINT) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{fill}">{escape(text)}</text>'
    )


def _upright(x: float, y: float, text: str, anchor: str = "middle") -> str:
    """Text that reads from bottom to top."""
    return (
        f'<text transform="rotate(-90 {x:.1f} {y:.1f})" x="{x:.1f}" y="{y:.1f}" '
        f'text-anchor="{anchor}" fill="{FAINT}">{escape(text)}</text>'
    )


def _tooltip(text: str) -> str:
    return f"<title>{escape(text)}</title>"


# ------------------------------------------------------------------ scales


@dataclass(frozen=True)
class Scale:
    """A linear or logarithmic map from values to pixels."""

    low: float  # the least value that is shown
    high: float
    start: float  # the pixel of `low`
    end: float
    log: bool

    def __call__(self, value: float) -> float:
        low = self._position(self.low)
        high = self._position(self.high)
        share = (self._position(value) - low) / ((high - low) or 1.0)
        return self.start + share * (self.end - self.start)

    def _position(self, value: float) -> float:
        return math.log10(value) if self.log else value

    def shows(self, value: float) -> bool:
        """Whether a value can be drawn at all: no zero on a logarithmic scale, no NaN."""
        return math.isfinite(value) and (value > 0 or not self.log)

    def clipped(self, value: float) -> float:
        """The pixel of a value, or of the end of the scale that it lies beyond."""
        return self(min(self.high, max(self.low, value)))


def _scale(axis: Axis, values: Sequence[float], start: float, end: float) -> Scale:
    """The scale of an axis over these values, with some room at its ends."""
    # What cannot be drawn does not set the scale.
    usable = [v for v in values if math.isfinite(v) and (v > 0 or not axis.log)] or [1.0, 2.0]
    low = min(usable)
    high = max(usable)
    if axis.log:
        room = max((math.log10(high) - math.log10(low)) * 0.04, 0.02)
        low, high = low / 10**room, high * 10**room
    else:
        room = (high - low or abs(high) or 1.0) * 0.05
        low, high = low - room, high + room
    low = low if axis.low is None else axis.low
    high = high if axis.high is None else axis.high
    return Scale(low, high, start, end, axis.log)


def _ticks(axis: Axis, scale: Scale) -> list[float]:
    """Round values on the axis, about five."""
    if axis.ticks:
        return [tick for tick in axis.ticks if scale.low <= tick <= scale.high]
    if scale.log:
        return _log_ticks(scale)
    # About five steps, of 1, 2, 2.5 or 5 times a power of ten.
    rough = (scale.high - scale.low) / 5
    magnitude = 10.0 ** math.floor(math.log10(rough))
    step = next(m * magnitude for m in (1, 2, 2.5, 5, 10) if m * magnitude >= rough)
    first = math.ceil(scale.low / step)
    last = math.floor(scale.high / step)
    return [index * step for index in range(first, last + 1)]


def _log_ticks(scale: Scale) -> list[float]:
    """Powers of ten, every second or third one if there are many; 1, 2, 5 within few decades."""
    first = math.floor(math.log10(scale.low))
    last = math.ceil(math.log10(scale.high))
    decades = last - first
    stride = max(1, math.ceil(decades / 7))
    factors = (1, 2, 5) if decades <= 2 else (1,)
    exponents = range(first - first % stride, last + 1, stride)
    ticks = [factor * 10.0**exponent for exponent in exponents for factor in factors]
    return [tick for tick in ticks if scale.low <= tick <= scale.high]


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


# ------------------------------------------------------------------ frames


def _legend(names: Sequence[str], styles: Sequence[str]) -> tuple[list[str], float]:
    """Lines with their names above the plot, and the height that they take."""
    if len(names) < 2 and not any(names):
        return [], 0.0
    parts = []
    x = LEFT
    y = 14.0
    for index, (name, style) in enumerate(zip(names, styles, strict=True)):
        width = 34 + LETTER * len(name)
        if x + width > WIDTH and x > LEFT:
            x = LEFT
            y += LEGEND_ROW
        parts.append(_legend_mark(x, y - 4, style, _colour(index)))
        parts.append(_text(x + 26, y, name, "start", INK))
        x += width + 14
    return parts, y + 6


def _legend_mark(x: float, y: float, style: str, colour: str) -> str:
    if style == "points":
        return f'<circle cx="{x + 10:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>'
    if style == "bars":
        return f'<rect x="{x:.1f}" y="{y - 5:.1f}" width="20" height="10" rx="2" fill="{colour}"/>'
    # Dashed in the legend as in the chart.
    dash = ' stroke-dasharray="5 4"' if style == "dashed" else ""
    return (
        f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{x + 20:.1f}" y2="{y:.1f}" '
        f'stroke="{colour}" stroke-width="3"{dash}/>'
    )


def _y_axis(axis: Axis, scale: Scale) -> list[str]:
    parts = []
    for tick in _ticks(axis, scale):
        y = scale(tick)
        parts.append(
            f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="{GRID}"/>'
        )
        parts.append(_text(LEFT - 7, y + 4, number(tick), "end"))
    parts.append(_upright(15, (scale.start + scale.end) / 2, axis.label))
    return parts


def _x_axis(axis: Axis, scale: Scale, bottom: float) -> list[str]:
    parts = [
        f'<line x1="{LEFT}" y1="{bottom:.1f}" x2="{WIDTH - RIGHT}" y2="{bottom:.1f}" '
        f'stroke="{FAINT}"/>'
    ]
    for tick in _ticks(axis, scale):
        x = scale(tick)
        parts.append(
            f'<line x1="{x:.1f}" y1="{bottom:.1f}" x2="{x:.1f}" y2="{bottom + 4:.1f}" '
            f'stroke="{FAINT}"/>'
        )
        parts.append(_text(x, bottom + 18, number(tick)))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, bottom + 40, axis.label))
    return parts


# ------------------------------------------------------------------ line and scatter charts


def _chart(chart: Chart) -> str:
    styles = [series.style for series in chart.series]
    legend, top = _legend([series.name for series in chart.series], styles)
    top += 10
    bottom = top + HEIGHT - BOTTOM - 10
    xs = [x for series in chart.series for x in series.x]
    ys = [y for series in chart.series for y in series.y]
    ys += [end for series in chart.series for ends in series.spread for end in ends]
    x_scale = _scale(chart.x, xs, LEFT + 6, WIDTH - RIGHT - 6)
    y_scale = _scale(chart.y, ys, bottom, top)
    # Grid lines first: series are painted over them.
    parts = [*legend, *_y_axis(chart.y, y_scale), *_x_axis(chart.x, x_scale, bottom)]
    for index, series in enumerate(chart.series):
        parts += _series(series, _colour(index), x_scale, y_scale)
    return _document(chart.title, bottom + BOTTOM, parts)


def _series(series: Series, colour: str, x_scale: Scale, y_scale: Scale) -> list[str]:
    parts = []
    if series.spread:
        parts.append(_band(series, colour, x_scale, y_scale))
    points = [
        (x_scale(x), y_scale.clipped(y), f"{series.name}: {number(y)} at {number(x)}")
        for x, y in zip(series.x, series.y, strict=True)
        if x_scale.shows(x) and y_scale.shows(y)
    ]
    if series.style != "points":
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in points)
        dash = ' stroke-dasharray="6 5"' if series.style == "dashed" else ""
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2.2" '
            f'stroke-linejoin="round"{dash}/>'
        )
    # Marks on a long curve would hide it; on a dashed one there is nothing measured.
    if series.style == "points" or (series.style == "line" and len(points) <= 30):
        for x, y, text in points:
            parts.append(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{MARKER}" fill="{colour}">'
                f"{_tooltip(text)}</circle>"
            )
    return parts


def _band(series: Series, colour: str, x_scale: Scale, y_scale: Scale) -> str:
    """The area between the least and the largest value of the seeds."""
    ends = [
        (x_scale(x), low, high)
        for x, (low, high) in zip(series.x, series.spread, strict=True)
        if x_scale.shows(x) and y_scale.shows(low) and y_scale.shows(high)
    ]
    along = [f"{x:.1f},{y_scale.clipped(low):.1f}" for x, low, _ in ends]
    # Back along the upper side, which closes the area.
    back = [f"{x:.1f},{y_scale.clipped(high):.1f}" for x, _, high in reversed(ends)]
    return f'<polygon points="{" ".join(along + back)}" fill="{colour}" opacity="0.18"/>'


# ------------------------------------------------------------------ bar charts


def _bar_chart(chart: BarChart) -> str:
    legend, top = _legend([bars.name for bars in chart.series], ["bars"] * len(chart.series))
    top += 10
    bottom = top + HEIGHT - BOTTOM - 10
    values = [value for bars in chart.series for seeds in bars.values for value in seeds]
    # Bars begin at zero, unless the scale has none.
    base = [] if chart.y.log else [0.0]
    scale = _scale(chart.y, [*values, *base], bottom, top)
    if not chart.y.log and min(values, default=0.0) >= 0 and chart.y.low is None:
        scale = Scale(0.0, scale.high, bottom, top, False)
    zero = scale.start if chart.y.log or chart.y.low is not None else scale(0.0)
    if chart.base is not None:
        zero = scale(chart.base)
    # Each category has a slot, of which its bars take three quarters.
    slot = (WIDTH - RIGHT - LEFT) / max(1, len(chart.categories))
    width = slot * 0.74 / max(1, len(chart.series))
    parts = [*legend, *_y_axis(chart.y, scale)]
    for index, bars in enumerate(chart.series):
        for position in range(len(chart.categories)):
            x = LEFT + slot * (position + 0.13) + index * width
            name = chart.categories[position]
            parts += _bar(bars, position, name, (x, width, zero), scale, _colour(index))
    parts.append(
        f'<line x1="{LEFT}" y1="{zero:.1f}" x2="{WIDTH - RIGHT}" y2="{zero:.1f}" stroke="{FAINT}"/>'
    )
    label_parts, label_height = _category_names(chart.categories, slot, bottom)
    return _document(chart.title, bottom + label_height, [*parts, *label_parts])


def _bar(
    bars: Bars,
    position: int,
    name: str,
    place: tuple[float, float, float],
    scale: Scale,
    colour: str,
) -> list[str]:
    """A bar with the range of the seeds; `place` is its left side, its width and its foot."""
    x, width, zero = place
    # A value that the scale cannot show has no bar.
    values = [value for value in bars.values[position] if scale.shows(value)]
    if not values:
        return []
    end = scale.clipped(mean(values))
    label = f"{bars.name} {name}: {number(mean(values))}".strip()
    parts = [
        f'<rect x="{x:.1f}" y="{min(end, zero):.1f}" width="{max(1.0, width - 2):.1f}" '
        f'height="{max(1.0, abs(end - zero)):.1f}" rx="2" fill="{colour}">{_tooltip(label)}</rect>'
    ]
    if len(values) > 1:
        middle = x + width / 2 - 1
        low = scale.clipped(min(values))
        high = scale.clipped(max(values))
        parts.append(
            f'<line x1="{middle:.1f}" y1="{low:.1f}" x2="{middle:.1f}" y2="{high:.1f}" '
            f'stroke="{INK}" stroke-width="1.6"/>'
        )
    return parts


def _category_names(names: Sequence[str], slot: float, bottom: float) -> tuple[list[str], float]:
    """The names below the bars, slanted where they are too long, and the height they take."""
    names = [name if len(name) <= MOST_LETTERS else f"{name[:MOST_LETTERS]}…" for name in names]
    longest = max((len(name) for name in names), default=0) * LETTER
    if longest <= slot - 4:
        parts = [
            _text(LEFT + slot * (index + 0.5), bottom + 18, name, fill=INK)
            for index, name in enumerate(names)
        ]
        return parts, 30.0
    places = [LEFT + slot * (index + 0.5) + 4 for index in range(len(names))]
    # A name ends below its bar: the first ones must not begin left of the drawing.
    room = min(x / (len(name) * LETTER) for name, x in zip(names, places, strict=True) if name)
    angle = max(SLANT, math.degrees(math.acos(min(1.0, room))))
    parts = []
    for name, x in zip(names, places, strict=True):
        parts.append(
            f'<text transform="rotate(-{angle:.1f} {x:.1f} {bottom + 16:.1f})" x="{x:.1f}" '
            f'y="{bottom + 16:.1f}" text-anchor="end" fill="{INK}">{escape(name)}</text>'
        )
    return parts, 24.0 + longest * math.sin(math.radians(angle))


# ------------------------------------------------------------------ heat maps


def _heat_map(figure: HeatMap) -> str:
    values = np.array(figure.values, dtype=float)  # [rows, columns]
    rows = figure.rows if len(figure.rows) <= MOST_NAMES else ()
    columns = figure.columns if len(figure.columns) <= MOST_NAMES else ()
    left = 24 + max((len(name) for name in rows), default=0) * LETTER + 8
    top = max((len(name) for name in columns), default=0) * LETTER + 12
    cell = min(34.0, (WIDTH - left - RIGHT) / values.shape[1])
    tall = min(cell, 300.0 / values.shape[0])
    if values.size > MOST_CELLS:
        cell = (WIDTH - left - RIGHT) / values.shape[1]
        tall = 250.0 / values.shape[0]
    bottom = top + tall * values.shape[0]
    # [rows, columns, 3]
    paint = drawing.colours(values, signed=figure.signed)
    parts = _cells(figure, paint, (left, top, cell, tall))
    for index, name in enumerate(rows):
        parts.append(_text(left - 6, top + (index + 0.5) * tall + 4, name, "end", INK))
    for index, name in enumerate(columns):
        parts.append(_upright(left + (index + 0.5) * cell + 4, top - 6, name, "start"))
    parts.append(_upright(14, (top + bottom) / 2, figure.y_label))
    parts.append(_text(left + cell * values.shape[1] / 2, bottom + 20, figure.x_label))
    parts += _colour_bar(left, bottom + 32, float(np.abs(values).max(initial=0.0)), figure.signed)
    return _document(figure.title, bottom + 52, parts)


def _cells(
    figure: HeatMap, paint: np.ndarray, place: tuple[float, float, float, float]
) -> list[str]:
    """The coloured cells; `place` is left, top, and the width and height of a cell."""
    left, top, cell, tall = place
    rows, columns, _ = paint.shape
    if rows * columns > MOST_CELLS:
        return [_image(paint, left, top, cell * columns, tall * rows)]
    parts = []
    for i in range(rows):
        for j in range(columns):
            parts.append(
                f'<rect x="{left + j * cell:.1f}" y="{top + i * tall:.1f}" '
                f'width="{cell - 0.5:.1f}" height="{tall - 0.5:.1f}" '
                f'fill="{drawing.code(paint[i, j])}">{_tooltip(number(figure.values[i][j]))}</rect>'
            )
    return parts


def _image(paint: np.ndarray, x: float, y: float, width: float, height: float) -> str:
    return drawing.element(drawing.Pixels(x, y, width, height, paint))


def _colour_bar(x: float, y: float, most: float, signed: bool) -> list[str]:
    least = -1.0 if signed else 0.0
    strip = drawing.colours(np.linspace(least, 1.0, 64)[None], signed=signed, most=1.0)
    low = number(least * most)
    start = x + LETTER * len(low) + 14
    return [
        _text(x, y + 12, low, "start"),
        _image(strip, start, y + 1, 90, 13),
        _text(start + 96, y + 12, number(most), "start"),
    ]
