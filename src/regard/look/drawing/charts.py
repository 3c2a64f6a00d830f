"""Charts: heat maps, attention maps and links, grids of them, bars and curves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from regard.look.drawing.marks import (
    CELL,
    FONT,
    ROW,
    Line,
    Mark,
    Marks,
    Pixels,
    Rect,
    Scene,
    Text,
    below,
    moved,
    shown,
    text_width,
    tiles,
    titled,
)
from regard.look.drawing.palette import (
    EVEN_SHADE,
    FAINT,
    POSITIVE,
    Array,
    Colours,
    attention_shades,
    code,
    colours,
    is_clear,
    is_relative,
    over,
    scale_end,
    sign_colour,
)

MOST_CELLS = 2048  # beyond this a heat map is one embedded image instead of a mark for each cell
LETTERS = 14.0  # the height of a row of letters
PANEL = 420.0  # the widest of small maps side by side


@dataclass(frozen=True, eq=False)
class Panel:
    """The attention weights of one small picture, and those of `even` attention, to draw against.

    Rows are queries; the panel of an overlay is one of them, or the mean of some.
    """

    name: str
    weights: Array  # [queries, keys] or [keys]
    even: Array | None = None
    signed: bool = False  # what raises and what lowers a score, instead of attention
    relative: bool | None = None  # shaded against even attention; None: if the input is long

    def of_query(self, query: int | None) -> Panel:
        """The panel of one query, or of the mean of all."""
        rows = slice(None) if query is None else [query]
        even = None if self.even is None else self.even[rows].mean(axis=0)
        return replace(self, weights=self.weights[rows].mean(axis=0), even=even)

    @property
    def shades(self) -> Array:
        """From 0 to 1, or signed: from −1 to 1, by the largest value."""
        if self.signed:
            return self.weights / (scale_end(self.weights, None) or 1.0)
        return attention_shades(self.weights, self.even, relative=self.relative)

    @property
    def paint(self) -> Colours:
        """The colours of the shades."""
        return colours(self.shades, signed=self.signed, most=1.0)

    @property
    def opacities(self) -> Array:
        """The opacity of a link for each weight: its shade, or faint where it is about even."""
        if self.signed:
            return np.abs(self.shades)
        clear = is_clear(self.weights, self.even)
        return np.where(clear, np.maximum(self.shades, FAINT), FAINT)

    def scale(self) -> Marks:
        """The colour bar."""
        if is_relative(self.weights, self.relative):
            return attention_scale()
        return colour_scale(1.0, self.signed)


def heat(
    values: Array,
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    title: str = "",
    signed: bool = False,
    most: float | None = None,
    inside: Sequence[Sequence[str]] | None = None,
    cell: tuple[float, float] | None = None,
) -> Scene:
    """A heat map: a coloured cell for each value; `inside` is written into the cells.

    Amounts go from 0 to `most`, signed values from −most. A value that is NaN has no cell: layers
    may have different numbers of heads. `cell` is the width and height of a cell.
    """
    if cell is None:
        width = CELL
        if inside is not None:
            width = text_width([text for line in inside for text in line]) + 10
        cell = (width, CELL)
    width, height = cell
    paint = colours(values, signed=signed, most=most)  # [rows, columns, 3]
    marks = _cells(values, paint, cell, rows, columns)
    if inside is not None and values.size <= MOST_CELLS:
        for i, j in np.argwhere(~np.isnan(values)).tolist():
            middle = ((j + 0.5) * width, (i + 0.7) * height)
            marks.append(Text(*middle, inside[i][j], "middle", over(paint[i, j])))
    key = colour_scale(scale_end(values, most), signed)
    return titled(title, _labelled(marks, cell, rows, columns, key))


def attention_heat(panel: Panel, rows: Sequence[str], columns: Sequence[str]) -> Scene:
    """A heat map of attention weights."""
    size = (CELL, CELL)
    marks = _cells(panel.weights, panel.paint, size, rows, columns)
    return titled(panel.name, _labelled(marks, size, rows, columns, panel.scale()))


def _cells(
    values: Array,
    paint: Colours,
    size: tuple[float, float],
    rows: Sequence[str],
    columns: Sequence[str],
) -> Marks:
    """A cell for each value that is no NaN, from the upper left corner on; one image of many."""
    width, height = size
    if values.size > MOST_CELLS:
        return [Pixels(0, 0, width * len(columns), height * len(rows), paint)]
    marks: Marks = []
    for i, j in np.argwhere(~np.isnan(values)).tolist():
        names = f"{shown(rows[i])} → {shown(columns[j])}: " if rows[i] else ""
        place = (j * width, i * height, width - 1, height - 1)
        marks.append(Rect(*place, code(paint[i, j]), f"{names}{values[i, j]:.4g}"))
    return marks


def _labelled(
    cells: Sequence[Mark],
    size: tuple[float, float],
    rows: Sequence[str],
    columns: Sequence[str],
    key: Sequence[Mark],
) -> Scene:
    """Cells with the names of their rows and columns above the key to their colours.

    Where cells are smaller than letters, every second, third … row or column has its name.
    """
    width, height = size
    down = math.ceil(LETTERS / height)
    across = math.ceil(LETTERS / width)
    row_names = [shown(row) for row in rows[::down]]
    column_names = [shown(column) for column in columns[::across]]
    left = text_width(row_names) + 10
    # Column names are upright, unless they fit above their cells, as numbers do.
    is_upright = text_width(column_names) > width * across - 2
    top = (text_width(column_names) if is_upright else FONT) + 12
    bottom = top + height * len(rows)
    right = left + width * len(columns)
    marks: Marks = []
    for i, row in enumerate(row_names):
        marks.append(Text(left - 6, top + (i * down + 0.5) * height + 4, row, "end"))
    for j, column in enumerate(column_names):
        middle = left + (j * across + 0.5) * width
        if is_upright:
            marks.append(Text(middle + 4, top - 6, column, turn=90))
        else:
            marks.append(Text(middle, top - 6, column, "middle"))
    marks += moved(cells, left, top)
    if not key:
        return Scene(right + 4, bottom + 4, tuple(marks))
    marks += moved(key, left, bottom + 8)
    # Room for the scale.
    return Scene(max(right + 4, left + 320), bottom + 30, tuple(marks))


def colour_bar(least: str, strip: Colours, most: str) -> Marks:
    """A strip of colours [1, N, 3] between the names of its ends."""
    start = text_width([least]) + 6
    return [Text(0, 11, least), Pixels(start, 0, 80, 14, strip), Text(start + 86, 11, most)]


def colour_scale(most: float, signed: bool) -> Marks:
    """The colour bar of values."""
    least = -1.0 if signed else 0.0
    strip = colours(np.linspace(least, 1.0, 64)[None], signed=signed, most=1.0)
    return colour_bar(f"{least * most:.3g}", strip, f"{most:.3g}")


def attention_scale(strip: Colours | None = None) -> Marks:
    """The colour bar of attention that is shaded against even attention, or another `strip`."""
    if strip is None:
        strip = colours(np.linspace(EVEN_SHADE, 1.0, 64)[None], most=1.0)
    return colour_bar("even", strip, "all attention (logarithmic)")


def grid(
    panels: Sequence[Panel], rows: Sequence[str], columns: Sequence[str], *, title: str = ""
) -> Scene:
    """Small maps of attention side by side under their names, with the tokens of both sides."""
    side = min(LETTERS, PANEL / max(1, len(rows), len(columns)))
    scenes = []
    for panel in panels:
        paint = Pixels(0, 0, side * len(columns), side * len(rows), panel.paint)
        scenes.append(titled(panel.name, _labelled([paint], (side, side), rows, columns, ())))
    key = Scene(300, 24, tuple(panels[0].scale()))
    return below([tiles(scenes, title=title), key])


def links(
    panel: Panel,
    left: Sequence[str],
    right: Sequence[str],
    *,
    only: Sequence[tuple[int, int]] | None = None,
) -> Scene:
    """A bipartite graph: two columns of tokens, and a line for each weight above even attention.

    The more a weight is above even attention, the darker is its line. `only` these links are drawn.
    """
    left = [shown(token) for token in left]
    right = [shown(token) for token in right]
    x_left = text_width(left) + 10
    x_right = x_left + 160
    top = 10.0
    marks: Marks = []
    opacities = panel.opacities
    above = attention_shades(panel.weights, panel.even, relative=True) > EVEN_SHADE
    for i, j in np.argwhere(above).tolist():
        if only is not None and (i, j) not in only:
            continue
        ends = (x_left, top + (i + 0.5) * ROW, x_right, top + (j + 0.5) * ROW)
        tooltip = f"{left[i]} → {right[j]}: {panel.weights[i, j]:.3f}"
        marks.append(Line(*ends, 2.0, float(opacities[i, j]), POSITIVE, tooltip))
    for i, token in enumerate(left):
        marks.append(Text(x_left - 5, top + i * ROW + 13, token, "end"))
    for j, token in enumerate(right):
        marks.append(Text(x_right + 5, top + j * ROW + 13, token))
    width = x_right + 5 + text_width(right) + 4
    return Scene(width, top + max(len(left), len(right)) * ROW + 8, tuple(marks))


def bars(
    values: Sequence[float], names: Sequence[str], *, title: str, labels: Sequence[str]
) -> Scene:
    """A horizontal bar from 0 for each value; `labels` are written behind them."""
    names = [shown(name) for name in names]
    left = text_width(names) + 10
    largest = max((abs(value) for value in values), default=0.0) or 1.0
    marks: Marks = []
    for i, (value, name, label) in enumerate(zip(values, names, labels, strict=True)):
        y = 4.0 + i * ROW
        length = abs(value) / largest
        marks.append(Text(left - 6, y + 13, name, "end"))
        # Even a zero has a bar that can be seen.
        marks.append(Rect(left, y + 3, max(1.0, 260 * length), 13, sign_colour(value)))
        marks.append(Text(left + 266 * length + 6, y + 13, label))
    return titled(title, Scene(left + 360, len(values) * ROW + 8, tuple(marks)))


def ticks(values: Sequence[float]) -> list[float]:
    """About five round numbers that enclose the values: multiples of 1, 2 or 5 times 10ⁿ."""
    low = min(values, default=0.0)
    high = max(values, default=1.0)
    if high == low:
        high = low + (abs(low) or 1.0)
    rough = (high - low) / 5
    power = 10.0 ** np.floor(np.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    first = int(np.floor(low / step + 1e-9))
    last = int(np.ceil(high / step - 1e-9))
    return [float(number * step) for number in range(first, last + 1)]
