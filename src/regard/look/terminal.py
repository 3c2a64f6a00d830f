"""Tables for a terminal: shades of Unicode, no colours or escape codes, so that a pipe gets the same text."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from regard.look.drawing import shown

if TYPE_CHECKING:
    from numpy.typing import NDArray

SHADES = " ░▒▓█"


def heat(
    values: NDArray[Any],
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    width: int = 100,
    most: float | None = None,
) -> list[str]:
    """One line a row, shaded up to `most` or the largest there is, with its strongest column named at the end; columns that
    do not fit follow below."""
    label = min(16, max((_width(shown(row)) for row in rows), default=0))
    longest = max((_width(shown(column)) for column in columns), default=0) + 1
    inside = width - label - min(15, longest) - 8
    cell = max(5, min(longest, 9, inside // max(1, len(columns))))
    room = max(1, inside // cell)
    largest = (float(values.max(initial=0.0)) if most is None else most) or 1.0
    lines: list[str] = []
    for first in range(0, len(columns), room):
        some = columns[first : first + room]
        lines += [""] if lines else []
        lines.append(
            " " * (label + 1)
            + "".join(fitted(shown(column), cell - 1) + " " for column in some).rstrip()
        )
        for name, row in zip(rows, values, strict=True):
            shades = "".join(
                SHADES[_level(value / largest)] * (cell - 1) + " "
                for value in row[first : first + room]
            )
            strongest = int(row.argmax())
            said = f"→ {fitted(shown(columns[strongest]), 14).rstrip()} {row[strongest]:.2f}"
            end = said if first + room >= len(columns) else ""
            lines.append(f"{fitted(shown(name), label)} {shades} {end}".rstrip())
    marks = "  ".join(
        f"{shade} from {largest * i / len(SHADES):.2f}" for i, shade in enumerate(SHADES) if i
    )
    return [*lines, "", marks]


def _level(share: float) -> int:
    return min(len(SHADES) - 1, max(0, int(share * len(SHADES))))


def table(rows: Sequence[Sequence[str]], *, width: int = 100) -> list[str]:
    """Columns as wide as their widest entry; the last one is cut at the width."""
    widths = [max(_width(row[i]) for row in rows) for i in range(len(rows[0]))] if rows else []
    lines = [
        "  ".join(fitted(text, wide) for text, wide in zip(row, widths, strict=True))
        for row in rows
    ]
    return [fitted(line, width).rstrip() for line in lines]


def by_head(
    names: Sequence[str], values: NDArray[Any], form: str, *, width: int = 100
) -> list[str]:
    """A number for each attention and head; heads that do not fit follow below."""
    said = [[format(value, form) for value in row] for row in values]
    cell = max((len(text) for row in said for text in row), default=1) + 2
    room = max(1, (width - max((_width(name) for name in names), default=0)) // cell)
    lines: list[str] = []
    for first in range(0, values.shape[1], room):
        rows = [["head", *(str(first + i) for i in range(len(said[0][first : first + room])))]]
        rows += [[name, *row[first : first + room]] for name, row in zip(names, said, strict=True)]
        lines += ([""] if lines else []) + table(rows, width=width)
    return lines


def bar(value: float, most: float, width: int = 30) -> str:
    """A bar as long as its share of `most`."""
    return "█" * round(width * min(1.0, abs(value) / most)) if most > 0 else ""


def fitted(text: str, width: int) -> str:
    """Cut with … or filled with spaces to exactly this many columns of a terminal."""
    if _width(text) > width:
        while _width(text) > width - 1:
            text = text[:-1]
        text += "…"
    return text + " " * (width - _width(text))


def _width(text: str) -> int:
    """Columns it takes: wide characters of East Asia take two, combining ones none."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text
    )  # fmt: skip
