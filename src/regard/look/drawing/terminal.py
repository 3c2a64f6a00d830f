"""Tables and heat maps for a terminal: Unicode shades without escape codes, as pipes need it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from rich.cells import cell_len
from rich.text import Text

from regard.look.drawing.marks import shown
from regard.look.drawing.palette import Array

SHADES = " ░▒▓█"
_ATTENTION_LEGEND = f"blank: uniform attention or less; {SHADES[1:]}: up to 1 (logarithmic)"
MAX_LABEL = 16  # columns of the terminal for the name of a row
MAX_STRONGEST = 14  # … for the name of the strongest column


def heat(
    values: Array,
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    width: int = 100,
    shades: Array | None = None,
) -> list[str]:
    """A heat map: a line for each row, which ends with the name of its strongest column.

    The scale goes up to the largest value; attention comes with its own `shades`, against even
    attention. Columns that do not fit follow below.
    """
    rows = [shown(row) for row in rows]
    columns = [shown(column) for column in columns]
    label = min(MAX_LABEL, max(map(cell_len, rows), default=0))
    longest = max(map(cell_len, columns), default=0) + 1
    # What is left beside the row's name and "→ column 0.00" at the end.
    inside = width - label - min(MAX_STRONGEST + 1, longest) - 8
    cell = max(5, min(longest, 9, inside // max(1, len(columns))))
    columns_at_once = max(1, inside // cell)
    legend = _ATTENTION_LEGEND
    if shades is None:
        largest = float(values.max(initial=0.0)) or 1.0  # of zeros alone
        shades = values / largest
        levels = enumerate(SHADES[1:], 1)
        legend = "  ".join(f"{sign} from {largest * i / len(SHADES):.2f}" for i, sign in levels)
    lines: list[str] = []
    for first in range(0, len(columns), columns_at_once):
        last = first + columns_at_once
        if lines:
            lines.append("")
        names = "".join(fitted(column, cell - 1) + " " for column in columns[first:last])
        lines.append(" " * (label + 1) + names.rstrip())
        for name, row, row_shades in zip(rows, values, shades, strict=True):
            cells = "".join(_shade(share) * (cell - 1) + " " for share in row_shades[first:last])
            end = ""
            # Only the last part has room for the strongest column of the whole row.
            if last >= len(columns):
                strongest = int(row.argmax())
                column = fitted(columns[strongest], MAX_STRONGEST).rstrip()
                end = f"→ {column} {row[strongest]:.2f}"
            lines.append(f"{fitted(name, label)} {cells} {end}".rstrip())
    return [*lines, "", legend]


def _shade(share: float) -> str:
    """The shade of a share from 0 to 1."""
    return SHADES[min(len(SHADES) - 1, max(0, int(share * len(SHADES))))]


def table(rows: Sequence[Sequence[str]], *, width: int = 100) -> list[str]:
    """A table with columns as wide as their widest entry; lines are cut at the width.

    Rows may end early.
    """
    widths = [max(map(cell_len, column)) for column in zip_longest(*rows, fillvalue="")]
    texts = ["  ".join(map(fitted, row, widths)) for row in rows]
    return [fitted(text, width).rstrip() for text in texts]


def by_head(names: Sequence[str], values: Array, form: str, *, width: int = 100) -> list[str]:
    """A table with a number for each attention and head; heads that do not fit follow below."""
    cells = [[format(value, form) for value in row] for row in values]
    # Two spaces stand between columns.
    cell = max((len(text) for row in cells for text in row), default=1) + 2
    label = max(map(cell_len, names), default=0)
    heads_at_once = max(1, (width - label) // cell)
    lines: list[str] = []
    for first in range(0, values.shape[1], heads_at_once):
        last = min(first + heads_at_once, values.shape[1])
        rows = [["head", *map(str, range(first, last))]]
        rows += [[name, *row[first:last]] for name, row in zip(names, cells, strict=True)]
        if lines:
            lines.append("")
        lines += table(rows, width=width)
    return lines


def bar(value: float, most: float, width: int = 30) -> str:
    """A bar as long as its share of `most`."""
    if most <= 0:
        return ""
    return "█" * round(width * min(1.0, abs(value) / most))


def fitted(text: str, width: int) -> str:
    """A text cut with … or filled with spaces to exactly this many columns of a terminal."""
    line = Text(text)
    line.truncate(width, overflow="ellipsis", pad=True)
    return line.plain
