"""Charts: heat maps, attention maps and links, grids of them, bars and curves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from regard.look.drawing.marks import (
    CELL,
    FONT,
    PAGE_WIDTH,
    ROW,
    Line,
    Mark,
    Pixels,
    Rect,
    Scene,
    Text,
    moved,
    shown,
    text_width,
    titled,
)
from regard.look.drawing.palette import (
    EVEN_SHADE,
    FAINT,
    NEGATIVE,
    POSITIVE,
    Array,
    attention_shades,
    code,
    colours,
    is_clear,
    over,
    scale_end,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST_CELLS = 2048  # beyond this a heat map is one embedded image instead of a mark for each cell
# Small maps side by side
PANEL = 420.0  # the widest
PANEL_CELL = 14.0
PANEL_GAP = 24.0


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
    paint = colours(values, signed=signed, most=most)  # [rows, columns, 3]
    key = colour_scale(scale_end(values, most), signed)
    if cell is None:
        width = CELL
        if inside is not None:
            width = text_width([text for line in inside for text in line]) + 10
        cell = (width, CELL)
    return titled(title, labelled(Cells(values, paint, cell, inside), rows, columns, key))


def attention_heat(
    weights: Array,
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    even: Array | None,
    title: str,
) -> Scene:
    """A heat map of attention weights, against even attention."""
    paint = colours(attention_shades(weights, even), most=1.0)
    return titled(title, labelled(Cells(weights, paint), rows, columns, attention_scale()))


@dataclass(frozen=True, eq=False)
class Cells:
    """The cells of a heat map: values, their colours, and what is written into them."""

    values: Array  # [rows, columns]
    paint: NDArray[np.uint8]  # [rows, columns, 3]
    size: tuple[float, float] = (CELL, CELL)  # the width and height of a cell
    inside: Sequence[Sequence[str]] | None = None

    def marks(self, rows: Sequence[str], columns: Sequence[str]) -> list[Mark]:
        """The cells, from the upper left corner on."""
        width, height = self.size
        # Thousands of elements would make a page slow.
        if self.values.size > MOST_CELLS:
            return [Pixels(0, 0, width * len(columns), height * len(rows), self.paint)]
        marks: list[Mark] = []
        for i, row in enumerate(rows):
            for j, column in enumerate(columns):
                if np.isnan(self.values[i, j]):
                    continue
                x = j * width
                y = i * height
                colour = self.paint[i, j]
                tooltip = f"{row} → {column}: {self.values[i, j]:.4g}".removeprefix(" → : ")
                marks.append(Rect(x, y, width - 1, height - 1, code(colour), tooltip))
                if self.inside is not None:
                    middle = x + width / 2
                    text = self.inside[i][j]
                    marks.append(Text(middle, y + 0.7 * height, text, "middle", over(colour)))
        return marks


def labelled(
    cells: Cells,
    rows: Sequence[str],
    columns: Sequence[str],
    key: list[Mark],
    labels: tuple[str, str] = ("", ""),
) -> Scene:
    """Cells with the names of their rows and columns, if any, above the key to their colours."""
    width, height = cells.size
    x_label, y_label = labels
    rows = [shown(row) for row in rows] or [""] * cells.values.shape[0]
    columns = [shown(column) for column in columns] or [""] * cells.values.shape[1]
    left = text_width(rows) + 10 + (24 if y_label else 0)
    # Column names are upright, unless they fit above their cells, as numbers do.
    is_upright = text_width(columns) > width - 2
    top = (text_width(columns) if is_upright else FONT) + 12
    bottom = top + height * len(rows)
    right = left + width * len(columns)
    marks: list[Mark] = []
    for i, row in enumerate(rows):
        marks.append(Text(left - 6, top + (i + 0.5) * height + 4, row, "end"))
    for j, column in enumerate(columns):
        middle = left + (j + 0.5) * width
        if is_upright:
            marks.append(Text(middle + 4, top - 6, column, turn=90))
        else:
            marks.append(Text(middle, top - 6, column, "middle"))
    marks.append(Text(14, (top + bottom) / 2, y_label, "middle", turn=90))
    marks.append(Text((left + right) / 2, bottom + 18, x_label, "middle"))
    marks += moved(cells.marks(rows, columns), left, top)
    if x_label:
        bottom += 24
    marks += moved(key, left, bottom + 8)
    # Room for the scale.
    return Scene(max(right + 4, left + 320), bottom + 30, tuple(marks))


def colour_bar(least: str, strip: NDArray[np.uint8], most: str) -> list[Mark]:
    """A strip of colours [1, N, 3] between the names of its ends."""
    start = text_width([least]) + 6
    return [Text(0, 11, least), Pixels(start, 0, 80, 14, strip), Text(start + 86, 11, most)]


def colour_scale(most: float, signed: bool) -> list[Mark]:
    """The colour bar of values."""
    least = -1.0 if signed else 0.0
    strip = colours(np.linspace(least, 1.0, 64)[None], signed=signed, most=1.0)
    return colour_bar(f"{least * most:.3g}", strip, f"{most:.3g}")


def attention_scale(strip: NDArray[np.uint8] | None = None) -> list[Mark]:
    """The colour bar of attention that is shaded against even attention, or another `strip`."""
    if strip is None:
        strip = colours(np.linspace(EVEN_SHADE, 1.0, 64)[None], most=1.0)
    return colour_bar("even", strip, "all attention (logarithmic)")


@dataclass(frozen=True, eq=False)
class Panel:
    """The attention weights of one small picture, and those of `even` attention, to draw against.

    Rows are queries; the panel of an overlay is one of them, or the mean of some.
    """

    name: str
    weights: Array  # [queries, keys] or [keys]
    even: Array | None = None

    def of_query(self, query: int | None) -> Panel:
        """The panel of one query, or of the mean of all."""
        rows = slice(None) if query is None else [query]
        even = None if self.even is None else self.even[rows].mean(axis=0)
        return Panel(self.name, self.weights[rows].mean(axis=0), even)


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
    marks: list[Mark] = []
    for number, panel in enumerate(panels):
        down, right = divmod(number, across)
        x = right * width
        y = down * height
        marks.append(Text(x + left, y + 12, panel.name, strong=True))
        for i in range(0, len(rows), step):
            baseline = y + top + (i + 0.5) * cell + 4
            marks.append(Text(x + left - 5, baseline, rows[i], "end"))
        for j in range(0, len(columns), step):
            middle = x + left + (j + 0.5) * cell + 4
            marks.append(Text(middle, y + top - 5, columns[j], turn=90))
        paint = colours(attention_shades(panel.weights, panel.even), most=1.0)
        marks.append(Pixels(x + left, y + top, cell * len(columns), cell * len(rows), paint))
    bottom = math.ceil(len(panels) / across) * height
    marks += moved(attention_scale(), 0, bottom)
    return titled(title, Scene(max(300, across * width), bottom + 24, tuple(marks)))


def links(
    weights: Array,
    left: Sequence[str],
    right: Sequence[str],
    *,
    even: Array | None = None,
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
    marks: list[Mark] = []
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


def link_opacities(weights: Array, even: Array | None = None) -> Array:
    """The opacity of a link for each weight: its shade, or faint where it is about even."""
    opacities: Array = np.where(is_clear(weights, even), attention_shades(weights, even), FAINT)
    return opacities


def bars(
    values: Sequence[float], names: Sequence[str], *, title: str, labels: Sequence[str]
) -> Scene:
    """A horizontal bar from 0 for each value; `labels` are written behind them."""
    names = [shown(name) for name in names]
    left = text_width(names) + 10
    largest = max((abs(value) for value in values), default=0.0) or 1.0
    marks: list[Mark] = []
    for i, (value, name, label) in enumerate(zip(values, names, labels, strict=True)):
        y = 4.0 + i * ROW
        length = abs(value) / largest
        colour = POSITIVE if value >= 0 else NEGATIVE
        marks.append(Text(left - 6, y + 13, name, "end"))
        # Even a zero has a bar that can be seen.
        marks.append(Rect(left, y + 3, max(1.0, 260 * length), 13, colour))
        marks.append(Text(left + 266 * length + 6, y + 13, label))
    return titled(title, Scene(left + 360, len(values) * ROW + 8, tuple(marks)))


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
