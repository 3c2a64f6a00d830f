"""Drawing: pictures as lists of marks, written as SVG, as a self-contained HTML page, or as PNG.

There are two colour maps, those of the studio, both safe for colour-blind readers and in greyscale:
white to blue for amounts, brown–blue for signed values. Attention is shaded against even attention:
scaled to its own largest weight, a head that looks everywhere alike would be a solid wall.

Text is escaped where it is written; markup is never made from it.
"""

from __future__ import annotations

import base64
import itertools
import math
import struct
import unicodedata
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from regard import disk
from regard.errors import SettingError

if TYPE_CHECKING:
    from numpy.typing import NDArray

AMOUNT = ("f7fbff", "c6dbef", "6baed6", "2171b5", "08306b")
SIGNED = ("8c510a", "dfc27d", "f7f7f7", "6baed6", "08306b")
POSITIVE = "#2a72d5"  # of bars and lines, between the studio's accents by day and by night
NEGATIVE = "#c9741d"
# Of the lines of a chart: told apart by colour-blind readers, and seen on white and on black.
LINES = (POSITIVE, NEGATIVE, "#3f9c7a", "#b05a8c", "#8a8a2b", "#7d6bb5", "#808088")
INK = "#15181e"  # of letters in a PNG; an SVG takes the colour of the text around it

# Pixels
CELL = 22.0  # the side of a cell
FONT = 12.0  # the size of letters
WIDTH = 7.2  # about how wide a letter is
WIDE_LETTERS = frozenset("mwMWO@%—")  # about a half wider
ROW = 18  # the height of a line of text
MARGIN = 8.0  # around a PNG

FONTS = ("DejaVuSans.ttf", "NotoSans-Regular.ttf", "Arial Unicode.ttf", "arial.ttf", "Arial.ttf")
MOST_CELLS = 4096  # beyond this a heat map is one embedded image instead of a mark for each cell
MOST_PIXELS = 40_000_000  # of a PNG
EVEN_SHADE = 0.12  # of a weight as large as if all places that can be seen had the same
CLEAR = 1.5  # times even attention: links below are faint
FAINT = 0.07  # their opacity
# Small maps side by side
PANEL = 420.0  # the widest
PANEL_CELL = 14.0
PANEL_GAP = 24.0
PAGE_WIDTH = 1200.0

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">\
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" \
content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<title>{title}</title>
<style>:root {{ color-scheme: light dark; }} \
body {{ margin: 1rem; background: #fff; color: #15181e; \
font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }}
figcaption {{ max-width: 60rem; color: #5b6472; }}
@media (prefers-color-scheme: dark) {{ body {{ background: #181b21; color: #eceff4; }} \
figcaption {{ color: #a0a9b8; }} }}\
</style></head>
<body>{body}</body></html>
"""


# ------------------------------------------------------------------ marks


@dataclass(frozen=True)
class Rect:
    """A filled rectangle; `title` is its tooltip."""

    x: float
    y: float
    width: float
    height: float
    colour: str
    title: str = ""


@dataclass(frozen=True)
class Text:
    """A line of text at its baseline."""

    x: float
    y: float
    text: str
    anchor: Literal["start", "middle", "end"] = "start"
    colour: str = "ink"  # "ink" is the colour of text around the picture
    upright: bool = False  # read from bottom to top
    strong: bool = False


@dataclass(frozen=True)
class Line:
    """A straight line; `title` is its tooltip."""

    x1: float
    y1: float
    x2: float
    y2: float
    width: float = 1.0
    opacity: float = 1.0
    colour: str = "ink"
    title: str = ""


@dataclass(frozen=True)
class Circle:
    """A filled circle around a point; `title` is its tooltip."""

    x: float
    y: float
    radius: float
    colour: str
    opacity: float = 1.0
    title: str = ""


@dataclass(frozen=True, eq=False)
class Pixels:
    """An image, scaled without smoothing."""

    x: float
    y: float
    width: float
    height: float
    colours: NDArray[np.uint8]  # [rows, columns, 3]


Mark = Rect | Text | Line | Circle | Pixels


@dataclass(frozen=True)
class Scene:
    """A picture: its size and its marks, in the order they are painted."""

    width: float
    height: float
    marks: tuple[Mark, ...]

    def _repr_html_(self) -> str:
        """The picture that a notebook shows."""
        return svg(self, "")


def below(scenes: Sequence[Scene], gap: float = 24.0) -> Scene:
    """Scenes one below the other."""
    marks: list[Mark] = []
    top = 0.0
    for scene in scenes:
        marks += [moved(mark, 0.0, top) for mark in scene.marks]
        top += scene.height + gap
    width = max((scene.width for scene in scenes), default=0.0)
    return Scene(width, max(0.0, top - gap), tuple(marks))


def tiles(scenes: Sequence[Scene], *, title: str = "", gap: float = 20.0) -> Scene:
    """Scenes side by side, in as many rows as they need, under a title."""
    marks = title_marks(title)
    top = 26.0 if title else 0.0
    x = 0.0
    height = 0.0
    width = text_width([title]) * 1.1
    for scene in scenes:
        if x > 0 and x + scene.width > PAGE_WIDTH:
            x = 0.0
            top += height + gap
            height = 0.0
        marks += [moved(mark, x, top) for mark in scene.marks]
        x += scene.width + gap
        height = max(height, scene.height)
        width = max(width, x - gap)
    return Scene(width, top + height, tuple(marks))


def moved(mark: Mark, right: float, down: float) -> Mark:
    """A mark at another place."""
    if isinstance(mark, Line):
        return replace(
            mark,
            x1=mark.x1 + right,
            y1=mark.y1 + down,
            x2=mark.x2 + right,
            y2=mark.y2 + down,
        )
    return replace(mark, x=mark.x + right, y=mark.y + down)


def title_marks(title: str) -> list[Mark]:
    """A title in the first line of a picture."""
    return [Text(0, 14, title, strong=True)] if title else []


# ------------------------------------------------------------------ colours


def colours(
    values: NDArray[Any], *, signed: bool = False, most: float | None = None
) -> NDArray[np.uint8]:
    """RGB [..., 3] for values from 0 to `most` (signed: −most to most), by default the largest."""
    scaled = np.zeros_like(values)  # where all values are 0, so is the scale
    largest = _largest(values, most)
    if largest > 0:
        scaled = values / largest
    if signed:
        scaled = (scaled + 1) / 2
    codes = SIGNED if signed else AMOUNT
    table = np.array([[int(code[i : i + 2], 16) for i in (0, 2, 4)] for code in codes])
    # Between two entries of the table, colours are interpolated.
    index = np.clip(np.nan_to_num(scaled), 0.0, 1.0) * (len(table) - 1)
    low = np.minimum(index.astype(int), len(table) - 2)
    share = (index - low)[..., None]
    return np.round(table[low] * (1 - share) + table[low + 1] * share).astype(np.uint8)


def even_attention(visible: NDArray[Any]) -> NDArray[Any]:
    """The weights [..., S] of a query that attends alike to all keys that it may attend to."""
    counts = np.maximum(1, visible.sum(axis=-1, keepdims=True))
    weights: NDArray[Any] = visible / counts
    return weights


def attention_shades(weights: NDArray[Any], even: NDArray[Any] | None = None) -> NDArray[Any]:
    """Shades from 0 to 1 of attention weights [..., S], against even attention.

    Everything that draws attention takes its shades from here, the studio too. A weight as large as
    that of `even` attention is pale, and 1 is full; between them the shade grows with the
    logarithm. Where a query may attend to one key only, its weight is even: pale.
    """
    even = _even_or_guessed(weights, even)
    ratio = np.where(even > 0, weights, 0.0) / np.where(even > 0, even, 1.0)
    # Softmax is exact to about seven digits: what is even to them is not above it.
    is_above = ratio > 1 + 1e-6
    highest = -np.log(np.where(is_above, even, 0.5))  # the logarithm of the ratio of the weight 1
    rising = np.log(np.where(is_above, ratio, 1.0)) / highest
    shades: NDArray[Any] = np.where(
        is_above, EVEN_SHADE + (1 - EVEN_SHADE) * rising, EVEN_SHADE * np.clip(ratio, 0.0, 1.0)
    )
    return shades


def is_clear(weights: NDArray[Any], even: NDArray[Any] | None = None) -> NDArray[Any]:
    """Which weights are clearly above even attention; the links of others are faint."""
    even = _even_or_guessed(weights, even)
    clear: NDArray[Any] = (even > 0) & (weights >= CLEAR * even)
    return clear


def _even_or_guessed(weights: NDArray[Any], even: NDArray[Any] | None) -> NDArray[Any]:
    """The weights of even attention, by default over the keys whose weight is above 0."""
    if even is not None:
        return np.broadcast_to(even, weights.shape)
    # One weight alone may be all that softmax left of several.
    return np.minimum(even_attention(weights > 0), 0.5)


def _largest(values: NDArray[Any], most: float | None) -> float:
    """The end of the scale."""
    if most is not None:
        return most
    return float(np.abs(np.nan_to_num(values)).max(initial=0.0))


def code(colour: NDArray[np.uint8]) -> str:
    """An RGB colour as #rrggbb."""
    return "#" + "".join(f"{int(part):02x}" for part in colour)


def over(colour: NDArray[np.uint8]) -> str:
    """Black or white, whichever can be read on this colour."""
    red, green, blue = (int(part) for part in colour)
    luma = 0.299 * red + 0.587 * green + 0.114 * blue  # ITU-R BT.601
    return "#000000" if luma > 140 else "#ffffff"


# ------------------------------------------------------------------ charts


def shown(token: str) -> str:
    """A token for people: without marks of where words begin or end, with visible white space."""
    if len(token) > 1:
        token = token.lstrip("▁Ġ").removesuffix("</w>")
    if token in ("", " "):
        token = "␣"
    token = token.replace("\n", "⏎").replace("\t", "⇥")
    return "".join(map(_visible, token))


def _visible(letter: str) -> str:
    """A letter, or a sign in its place where it has no form: half of a letter, a control code."""
    # Byte-level tokens may be parts of a letter; fonts refuse what is none.
    return "�" if unicodedata.category(letter) in ("Cc", "Cs", "Cn", "Co") else letter


def text_width(texts: Sequence[str]) -> float:
    """The width of the longest text."""
    return max((_letters(text) for text in texts), default=0.0) * WIDTH


def _letters(text: str) -> float:
    """How many letters of the usual width a text is as long as."""
    return len(text) + 0.5 * sum(letter in WIDE_LETTERS for letter in text)


def heat(
    values: NDArray[Any],
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    title: str = "",
    signed: bool = False,
    most: float | None = None,
    inside: Sequence[Sequence[str]] | None = None,
    cell: float | None = None,
) -> Scene:
    """A heat map: a coloured cell for each value; `inside` is written into the cells.

    Amounts go from 0 to `most`, signed values from −most. A value that is NaN has no cell: layers
    may have different numbers of heads.
    """
    paint = colours(values, signed=signed, most=most)  # [rows, columns, 3]
    key = _scale(0, 0, _largest(values, most), signed)
    width = CELL
    if cell is not None:
        width = cell
    elif inside is not None:
        width = text_width([text for line in inside for text in line]) + 10
    cells = _Cells(values, paint, width, inside)
    return _labelled(cells, rows, columns, title, key)


def attention_heat(
    weights: NDArray[Any],
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    even: NDArray[Any] | None = None,
    title: str = "",
) -> Scene:
    """A heat map of attention weights, against even attention."""
    paint = colours(attention_shades(weights, even), most=1.0)
    return _labelled(_Cells(weights, paint), rows, columns, title, attention_scale(0, 0))


@dataclass(frozen=True, eq=False)
class _Cells:
    """The cells of a heat map: values, their colours, and what is written into them."""

    values: NDArray[Any]  # [rows, columns]
    paint: NDArray[np.uint8]  # [rows, columns, 3]
    width: float = CELL
    inside: Sequence[Sequence[str]] | None = None

    def marks(self, rows: Sequence[str], columns: Sequence[str]) -> list[Mark]:
        """The cells, from the upper left corner on."""
        height = CELL * len(rows)
        # Thousands of elements would make a page slow.
        if self.values.size > MOST_CELLS:
            return [Pixels(0, 0, self.width * len(columns), height, self.paint)]
        marks: list[Mark] = []
        for i, row in enumerate(rows):
            for j, column in enumerate(columns):
                if np.isnan(self.values[i, j]):
                    continue
                x = j * self.width
                y = i * CELL
                colour = self.paint[i, j]
                tooltip = f"{row} → {column}: {self.values[i, j]:.4g}"
                marks.append(Rect(x, y, self.width - 1, CELL - 1, code(colour), tooltip))
                if self.inside is not None:
                    middle = x + self.width / 2
                    text = self.inside[i][j]
                    marks.append(Text(middle, y + 0.7 * CELL, text, "middle", over(colour)))
        return marks


def _labelled(
    cells: _Cells, rows: Sequence[str], columns: Sequence[str], title: str, key: list[Mark]
) -> Scene:
    """Cells with the names of their rows and columns, above the key to their colours."""
    rows = [shown(row) for row in rows]
    columns = [shown(column) for column in columns]
    left = text_width(rows) + 10
    # Column names are upright, unless they fit above their cells, as numbers do.
    is_upright = text_width(columns) > cells.width - 2
    names_height = text_width(columns) if is_upright else FONT
    title_height = 20 if title else 0
    top = names_height + 12 + title_height
    bottom = top + CELL * len(rows)
    marks = title_marks(title)
    for i, row in enumerate(rows):
        marks.append(Text(left - 6, top + (i + 0.7) * CELL, row, "end"))
    for j, column in enumerate(columns):
        middle = left + (j + 0.5) * cells.width
        if is_upright:
            marks.append(Text(middle + 4, top - 6, column, upright=True))
        else:
            marks.append(Text(middle, top - 6, column, "middle"))
    marks += [moved(mark, left, top) for mark in cells.marks(rows, columns)]
    marks += [moved(mark, left, bottom + 8) for mark in key]
    # Room for the scale and the title.
    right = max(left + cells.width * len(columns) + 4, left + 320, 1.1 * text_width([title]))
    return Scene(right, bottom + 30, tuple(marks))


def _scale(x: float, y: float, most: float, signed: bool) -> list[Mark]:
    """The colour bar, with its ends."""
    least = -1.0 if signed else 0.0
    strip = colours(np.linspace(least, 1.0, 64)[None], signed=signed, most=1.0)  # [1, 64, 3]
    return [
        Text(x, y + 11, f"{least * most:.3g}"),
        Pixels(x + 50, y, 80, 14, strip),
        Text(x + 136, y + 11, f"{most:.3g}"),
    ]


def attention_scale(x: float, y: float, strip: NDArray[np.uint8] | None = None) -> list[Mark]:
    """The colour bar of attention that is shaded against even attention, or another `strip`."""
    if strip is None:
        strip = colours(np.linspace(0.0, 1.0, 64)[None], most=1.0)  # [1, 64, 3]
    even = "even or less"
    start = x + text_width([even]) + 6
    return [
        Text(x, y + 11, even),
        Pixels(start, y, 80, 14, strip),
        Text(start + 86, y + 11, "all of it (logarithmic)"),
    ]


@dataclass(frozen=True, eq=False)
class Panel:
    """The attention weights of one small picture, and those of `even` attention, to draw against.

    Rows are queries; the panel of an overlay is one of them, or the mean of some.
    """

    name: str
    weights: NDArray[Any]  # [queries, keys] or [keys]
    even: NDArray[Any]


def grid(
    panels: Sequence[Panel],
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    title: str = "",
) -> Scene:
    """Small maps of attention side by side under their names, with the tokens of both sides.

    Of long texts every second, third … token has its label, as many as there is room for.
    """
    rows = [shown(row) for row in rows]
    columns = [shown(column) for column in columns]
    cell = min(PANEL_CELL, PANEL / max(1, len(rows), len(columns)))
    step = max(1, math.ceil(PANEL_CELL / cell))  # from one label to the next
    left = text_width(rows[::step]) + 8
    top = text_width(columns[::step]) + 30  # column names are upright, above them the panel's
    width = left + cell * len(columns) + PANEL_GAP
    height = top + cell * len(rows) + PANEL_GAP
    across = max(1, min(len(panels), int(PAGE_WIDTH // width)))
    marks = title_marks(title)
    heading = 24.0 if title else 0.0
    for number, panel in enumerate(panels):
        down, right = divmod(number, across)
        x = right * width
        y = heading + down * height
        marks.append(Text(x + left, y + 12, panel.name, strong=True))
        for i in range(0, len(rows), step):
            baseline = y + top + (i + 0.5) * cell + 4
            marks.append(Text(x + left - 5, baseline, rows[i], "end"))
        for j in range(0, len(columns), step):
            middle = x + left + (j + 0.5) * cell + 4
            marks.append(Text(middle, y + top - 5, columns[j], upright=True))
        paint = colours(attention_shades(panel.weights, panel.even), most=1.0)
        marks.append(Pixels(x + left, y + top, cell * len(columns), cell * len(rows), paint))
    bottom = heading + math.ceil(len(panels) / across) * height
    marks += attention_scale(0, bottom)
    return Scene(max(300, across * width), bottom + 24, tuple(marks))


def links(
    weights: NDArray[Any],
    left: Sequence[str],
    right: Sequence[str],
    *,
    even: NDArray[Any] | None = None,
    only: Sequence[tuple[int, int]] | None = None,
    title: str = "",
) -> Scene:
    """A bipartite graph: two columns of tokens, and a line for each weight above even attention.

    The more a weight is above even attention, the darker is its line. `only` these links are drawn.
    """
    left = [shown(token) for token in left]
    right = [shown(token) for token in right]
    x_left = text_width(left) + 10
    x_right = x_left + 160
    top = 34.0 if title else 10.0
    marks = title_marks(title)
    opacities = link_opacities(weights, even)
    above_even = np.argwhere(attention_shades(weights, even) > EVEN_SHADE)
    for i, j in above_even.tolist():
        if only is not None and (i, j) not in only:
            continue
        y_left = top + (i + 0.5) * ROW
        y_right = top + (j + 0.5) * ROW
        opacity = float(opacities[i, j])
        tooltip = f"{left[i]} → {right[j]}: {weights[i, j]:.3f}"
        marks.append(Line(x_left, y_left, x_right, y_right, 2.0, opacity, POSITIVE, tooltip))
    for i, token in enumerate(left):
        marks.append(Text(x_left - 5, top + i * ROW + 13, token, "end"))
    for j, token in enumerate(right):
        marks.append(Text(x_right + 5, top + j * ROW + 13, token))
    width = x_right + 5 + text_width(right) + 4
    return Scene(width, top + max(len(left), len(right)) * ROW + 8, tuple(marks))


def link_opacities(weights: NDArray[Any], even: NDArray[Any] | None = None) -> NDArray[Any]:
    """The opacity of a link for each weight: its shade, or faint where it is about even."""
    opacities: NDArray[Any] = np.where(
        is_clear(weights, even), attention_shades(weights, even), FAINT
    )
    return opacities


def bars(
    values: Sequence[float], names: Sequence[str], *, title: str = "", labels: Sequence[str] = ()
) -> Scene:
    """A horizontal bar from 0 for each value; `labels` are written behind them."""
    names = [shown(name) for name in names]
    labels = labels or [f"{value:.4g}" for value in values]
    left = text_width(names) + 10
    largest = max((abs(value) for value in values), default=0.0) or 1.0
    top = 26.0 if title else 4.0
    marks = title_marks(title)
    for i, (value, name, label) in enumerate(zip(values, names, labels, strict=True)):
        y = top + i * ROW
        length = abs(value) / largest
        colour = POSITIVE if value >= 0 else NEGATIVE
        marks.append(Text(left - 6, y + 13, name, "end"))
        # Even a zero has a bar that can be seen.
        marks.append(Rect(left, y + 3, max(1.0, 260 * length), 13, colour))
        marks.append(Text(left + 266 * length + 6, y + 13, label))
    return Scene(left + 360, top + len(values) * ROW + 4, tuple(marks))


def curves(
    series: Mapping[str, Sequence[tuple[float, float]]],
    *,
    title: str = "",
    x_name: str = "",
    y_name: str = "",
) -> Scene:
    """A line chart: one line through the points of each series, with a legend."""
    width = 360.0
    height = 200.0
    left = 60.0
    top = 44.0 if y_name else 30.0
    bottom = top + height
    right = left + width
    x_ticks = ticks([x for line in series.values() for x, _ in line])
    y_ticks = ticks([y for line in series.values() for _, y in line])

    def pixel(x: float, y: float) -> tuple[float, float]:
        x_share = (x - x_ticks[0]) / (x_ticks[-1] - x_ticks[0])
        y_share = (y - y_ticks[0]) / (y_ticks[-1] - y_ticks[0])
        return left + width * x_share, bottom - height * y_share

    marks = title_marks(title)
    for y in y_ticks:
        level = pixel(x_ticks[0], y)[1]
        marks.append(Line(left, level, right, level, opacity=0.15))
        marks.append(Text(left - 6, level + 4, f"{y:.4g}", "end"))
    for x in x_ticks:
        place = pixel(x, y_ticks[0])[0]
        marks.append(Line(place, bottom, place, bottom + 4))
        marks.append(Text(place, bottom + 17, f"{x:,.6g}", "middle"))
    marks.append(Line(left, bottom, right, bottom))
    marks.append(Text(right, bottom + 33, x_name, "end"))
    marks.append(Text(left, top - 10, y_name))
    for i, (name, line) in enumerate(series.items()):
        shade = LINES[i % len(LINES)]
        for start, end in itertools.pairwise(line):
            tooltip = f"{name}: {end[1]:.4g} at {end[0]:.4g}"
            ends = (*pixel(*start), *pixel(*end))
            marks.append(Line(*ends, width=2.0, colour=shade, title=tooltip))
        # The legend
        y = top + 12 + i * ROW
        marks.append(Line(right + 14, y - 4, right + 34, y - 4, width=3.0, colour=shade))
        marks.append(Text(right + 40, y, name))
    legend = top + float(ROW) * len(series)
    lowest = bottom + (40 if x_name else 24)
    return Scene(right + 44 + text_width(list(series)), max(lowest, legend), tuple(marks))


def ticks(values: Sequence[float], count: int = 5) -> list[float]:
    """About `count` round numbers that enclose the values: multiples of 1, 2 or 5 times 10ⁿ."""
    low = min(values, default=0.0)
    high = max(values, default=1.0)
    if high == low:
        high = low + (abs(low) or 1.0)
    rough = (high - low) / count
    power = 10.0 ** np.floor(np.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    first = int(np.floor(low / step + 1e-9))
    last = int(np.ceil(high / step - 1e-9))
    return [float(number * step) for number in range(first, last + 1)]


# ------------------------------------------------------------------ SVG


def svg(scene: Scene, title: str) -> str:
    """The scene as an SVG element; `ink` follows the text colour of the page around it."""
    width = max(1, round(scene.width))
    height = max(1, round(scene.height))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{escape(title)}" '
        f'width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'font-family="system-ui, Segoe UI, Roboto, sans-serif" font-size="{FONT:g}">'
        f"{''.join(map(element, scene.marks))}</svg>"
    )


def element(mark: Mark) -> str:
    """A mark as an SVG element."""
    match mark:
        case Rect():
            return (
                f'<rect x="{mark.x:.1f}" y="{mark.y:.1f}" '
                f'width="{mark.width:.1f}" height="{mark.height:.1f}" '
                f'fill="{mark.colour}"{_closed("rect", mark.title)}'
            )
        case Line():
            return (
                f'<line x1="{mark.x1:.1f}" y1="{mark.y1:.1f}" '
                f'x2="{mark.x2:.1f}" y2="{mark.y2:.1f}" '
                f'stroke="{_ink(mark.colour)}" stroke-width="{mark.width:g}" '
                f'stroke-opacity="{mark.opacity:.3f}"{_closed("line", mark.title)}'
            )
        case Text():
            # An SVG rotates clockwise: −90° reads from bottom to top.
            turn = f' transform="rotate(-90 {mark.x:.1f} {mark.y:.1f})"' if mark.upright else ""
            weight = ' font-weight="600"' if mark.strong else ""
            return (
                f'<text x="{mark.x:.1f}" y="{mark.y:.1f}" text-anchor="{mark.anchor}" '
                f'fill="{_ink(mark.colour)}"{weight}{turn}>{escape(mark.text)}</text>'
            )
        case Circle():
            return (
                f'<circle cx="{mark.x:.1f}" cy="{mark.y:.1f}" r="{mark.radius:.1f}" '
                f'fill="{_ink(mark.colour)}" '
                f'fill-opacity="{mark.opacity:.3f}"{_closed("circle", mark.title)}'
            )
        case Pixels():
            # Embedded, so that a page is one file; pixels stay squares when scaled.
            data = base64.b64encode(image(mark.colours)).decode()
            return (
                f'<image x="{mark.x:.1f}" y="{mark.y:.1f}" '
                f'width="{mark.width:.1f}" height="{mark.height:.1f}" '
                f'preserveAspectRatio="none" style="image-rendering:pixelated" '
                f'href="data:image/png;base64,{data}"/>'
            )


def _closed(tag: str, tooltip: str) -> str:
    """The end of an element, with its tooltip."""
    if not tooltip:
        return "/>"
    return f"><title>{escape(tooltip)}</title></{tag}>"


def _ink(colour: str) -> str:
    return "currentColor" if colour == "ink" else colour


def write_page(path: str | Path, title: str, body: str) -> None:
    """Writes a self-contained HTML page."""
    disk.write_file(Path(path), PAGE.format(title=escape(title), body=body))


# ------------------------------------------------------------------ PNG


def image(colours: NDArray[np.uint8]) -> bytes:
    """Pixels [rows, columns, 3] as a PNG file."""
    rows, columns, _ = colours.shape
    # Each row begins with its filter: 0, none.
    lines = np.concatenate([np.zeros((rows, 1), np.uint8), colours.reshape(rows, -1)], axis=1)
    # Width, height, 8 bits a channel, colour type 2 (RGB), and the only methods there are.
    header = struct.pack(">IIBBBBB", columns, rows, 8, 2, 0, 0, 0)
    data = zlib.compress(lines.tobytes(), 6)
    chunks = [_chunk(b"IHDR", header), _chunk(b"IDAT", data), _chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    """A PNG chunk: length, kind, data, checksum."""
    checksum = struct.pack(">I", zlib.crc32(kind + data))
    return struct.pack(">I", len(data)) + kind + data + checksum


def write_png(path: str | Path, scene: Scene) -> None:
    """Writes the scene on white, at twice its size unless that is too large."""
    try:
        from PIL import Image
    except ImportError:
        raise SettingError(
            "pictures need Pillow", "pip install 'regard[image]', or write HTML instead"
        ) from None
    width = scene.width + 2 * MARGIN
    height = scene.height + 2 * MARGIN
    # Two pixels for one look sharp on most screens.
    scale = min(2.0, (MOST_PIXELS / (width * height)) ** 0.5)
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    canvas = Image.new("RGB", size, "#ffffff")
    painter = _Painter(canvas, scale)
    for mark in scene.marks:
        painter.paint(moved(mark, MARGIN, MARGIN))
    content = BytesIO()
    canvas.save(content, "PNG")
    disk.write_file(Path(path), content.getvalue())


class _Painter:
    """Paints marks on a Pillow image, which is `scale` times as large as the scene."""

    def __init__(self, canvas: Any, scale: float) -> None:
        from PIL import ImageDraw, ImageFont

        self.canvas = canvas
        self.scale = scale
        self.pen = ImageDraw.Draw(canvas, "RGBA")
        self.font, self.spell = _font(ImageFont, FONT * scale)

    def paint(self, mark: Mark) -> None:
        scale = self.scale
        match mark:
            case Rect():
                right = (mark.x + mark.width) * scale - 1
                bottom = (mark.y + mark.height) * scale - 1
                corners = (mark.x * scale, mark.y * scale, right, bottom)
                self.pen.rectangle(corners, fill=mark.colour)
            case Line():
                ink = INK if mark.colour == "ink" else mark.colour
                ends = (mark.x1 * scale, mark.y1 * scale, mark.x2 * scale, mark.y2 * scale)
                # Pillow takes the opacity as two more hexadecimal digits.
                fill = f"{ink}{round(255 * mark.opacity):02x}"
                self.pen.line(ends, fill=fill, width=max(1, round(mark.width * scale)))
            case Circle():
                ink = INK if mark.colour == "ink" else mark.colour
                corners = (
                    (mark.x - mark.radius) * scale,
                    (mark.y - mark.radius) * scale,
                    (mark.x + mark.radius) * scale,
                    (mark.y + mark.radius) * scale,
                )
                self.pen.ellipse(corners, fill=f"{ink}{round(255 * mark.opacity):02x}")
            case Text():
                self._text(mark)
            case Pixels():
                from PIL import Image

                size = (round(mark.width * scale), round(mark.height * scale))
                picture = Image.fromarray(mark.colours).resize(size, Image.Resampling.NEAREST)
                self.canvas.paste(picture, (round(mark.x * scale), round(mark.y * scale)))

    def _text(self, mark: Text) -> None:
        text = self.spell(mark.text)
        ink = INK if mark.colour == "ink" else mark.colour
        x = mark.x * self.scale
        y = mark.y * self.scale
        if mark.upright:
            self._upright(text, ink, x, y)
            return
        # Pillow's anchors: left, middle or right, at the baseline.
        anchor = {"start": "ls", "middle": "ms", "end": "rs"}[mark.anchor]
        self.pen.text((x, y), text, fill=ink, font=self.font, anchor=anchor)

    def _upright(self, text: str, ink: str, x: float, y: float) -> None:
        """Text that reads from bottom to top: drawn on a label of its own, which is rotated."""
        from PIL import Image, ImageDraw

        size = FONT * self.scale
        length = max(1, round(self.pen.textlength(text, font=self.font)) + 2)
        label = Image.new("RGBA", (length, round(size * 1.5)), "#ffffff00")
        baseline = round(size * 1.1)
        ImageDraw.Draw(label).text((1, baseline), text, fill=ink, font=self.font, anchor="ls")
        turned = label.rotate(90, expand=True)
        corner = (round(x - size * 1.1), round(y) - turned.height)
        self.canvas.paste(turned, corner, turned)


def _font(fonts: Any, size: float) -> tuple[Any, Callable[[str], str]]:
    """A system font with most letters, or Pillow's own one; and how texts are spelt in it."""
    for name in FONTS:
        try:
            return fonts.truetype(name, round(size)), str
        except OSError:
            continue
    return fonts.load_default(size), _in_ascii


ASCII = {
    "→": "->",
    "←": "<-",
    "−": "-",
    "×": "x",
    "●": "*",
    "…": "...",
    "ß": "ss",
    "·": ".",
}


def _in_ascii(text: str) -> str:
    """A text in the letters that Pillow's own font has."""
    for sign, spelling in ASCII.items():
        text = text.replace(sign, spelling)
    # Decomposed, letters lose their accents but stay.
    return unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
