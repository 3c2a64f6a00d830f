"""Pictures as lists of marks, written as SVG, as a self-contained page, or as PNG.

Two scales that colour-blind readers can tell apart and that also work in grey: viridis for amounts, blue–orange for signs.
Text is escaped where it is written, and nowhere is markup made from it.
"""

from __future__ import annotations

import base64
import itertools
import struct
import unicodedata
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from regard import disk
from regard.errors import SettingError

if TYPE_CHECKING:
    from numpy.typing import NDArray

VIRIDIS = ("440154", "472d7b", "3b528b", "2c728e", "21918c", "28ae80", "5ec962", "addc30", "fde725")
SIGNED = ("14508c", "5b93c7", "b9d3ea", "f5f5f5", "f6cfa5", "dd8b3c", "9c4f05")
CELL, FONT, WIDTH = 22.0, 12.0, 6.6  # pixels: a cell, the size of letters, about how wide one is
FONTS = ("DejaVuSans.ttf", "NotoSans-Regular.ttf", "Arial Unicode.ttf", "arial.ttf", "Arial.ttf")
MOST_CELLS = (
    4096  # beyond this many a heat map is one embedded image instead of a mark for each cell
)

MOST_PIXELS = 40_000_000  # of a PNG

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<title>{title}</title>
<style>:root {{ color-scheme: light dark; }} body {{ margin: 1rem; background: #fff; color: #1b1b1f; }}
@media (prefers-color-scheme: dark) {{ body {{ background: #17171b; color: #ececf1; }} }}</style></head>
<body>{body}</body></html>
"""


# ------------------------------------------------------------------ marks


@dataclass(frozen=True)
class Rect:
    x: float
    y: float
    width: float
    height: float
    colour: str
    title: str = ""


@dataclass(frozen=True)
class Text:
    x: float
    y: float
    text: str
    anchor: Literal["start", "middle", "end"] = "start"
    colour: str = "ink"
    upright: bool = False  # read from bottom to top
    strong: bool = False


@dataclass(frozen=True)
class Line:
    x1: float
    y1: float
    x2: float
    y2: float
    width: float = 1.0
    opacity: float = 1.0
    colour: str = "ink"
    title: str = ""


@dataclass(frozen=True, eq=False)
class Pixels:
    x: float
    y: float
    width: float
    height: float
    colours: NDArray[np.uint8]  # [rows, columns, 3]


Mark = Rect | Text | Line | Pixels


@dataclass(frozen=True)
class Scene:
    width: float
    height: float
    marks: tuple[Mark, ...]


def below(scenes: Sequence[Scene], gap: float = 24.0) -> Scene:
    """Scenes one under the other."""
    marks: list[Mark] = []
    top = 0.0
    for scene in scenes:
        marks += [_moved(mark, 0.0, top) for mark in scene.marks]
        top += scene.height + gap
    return Scene(
        max((scene.width for scene in scenes), default=0.0), max(0.0, top - gap), tuple(marks)
    )


def _moved(mark: Mark, right: float, down: float) -> Mark:
    match mark:
        case Rect(x, y, width, height, colour, title):
            return Rect(x + right, y + down, width, height, colour, title)
        case Text(x, y, text, anchor, colour, upright, strong):
            return Text(x + right, y + down, text, anchor, colour, upright, strong)
        case Line(x1, y1, x2, y2, width, opacity, colour, title):
            return Line(x1 + right, y1 + down, x2 + right, y2 + down, width, opacity, colour, title)
        case Pixels(x, y, width, height, colours):
            return Pixels(x + right, y + down, width, height, colours)


# ------------------------------------------------------------------ colours


def colours(
    values: NDArray[Any], *, signed: bool = False, most: float | None = None
) -> NDArray[np.uint8]:
    """[..., 3] for values from 0 to `most` (or −most to most), the largest there is unless said."""
    largest = float(np.abs(values).max(initial=0.0)) if most is None else most
    scaled = values / largest if largest > 0 else np.zeros_like(values)
    place = np.clip((scaled + 1) / 2 if signed else scaled, 0.0, 1.0)
    table = np.array(
        [[int(code[i : i + 2], 16) for i in (0, 2, 4)] for code in (SIGNED if signed else VIRIDIS)]
    )
    at = place * (len(table) - 1)
    low = np.minimum(at.astype(int), len(table) - 2)
    share = (at - low)[..., None]
    return np.round(table[low] * (1 - share) + table[low + 1] * share).astype(np.uint8)


def code(colour: NDArray[np.uint8]) -> str:
    return "#" + "".join(f"{int(part):02x}" for part in colour)


def over(colour: NDArray[np.uint8]) -> str:
    """Letters that can be read on this colour."""
    red, green, blue = (int(part) for part in colour)
    return "#000000" if 0.299 * red + 0.587 * green + 0.114 * blue > 140 else "#ffffff"


# ------------------------------------------------------------------ pictures


def shown(token: str) -> str:
    """A token as people read it: without the mark that a word begins, and with white space that can be seen."""
    bare = token.lstrip("▁Ġ") if len(token) > 1 else token
    return ("␣" if not bare or bare == " " else bare).replace("\n", "⏎").replace("\t", "⇥")


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
    """A coloured cell for each value; `inside` is written into the cells."""
    rows, columns = [shown(row) for row in rows], [shown(column) for column in columns]
    height = CELL
    width = cell or (
        CELL if inside is None else max(len(text) for line in inside for text in line) * WIDTH + 10
    )
    left = max((len(row) for row in rows), default=0) * WIDTH + 10
    top = max((len(column) for column in columns), default=0) * WIDTH + 12 + (20 if title else 0)
    paint = colours(values, signed=signed, most=most)
    marks: list[Mark] = [Text(0, 14, title, strong=True)] if title else []
    marks += [Text(left - 6, top + (i + 0.7) * height, row, "end") for i, row in enumerate(rows)]
    marks += [
        Text(left + (j + 0.5) * width + 4, top - 6, column, upright=True) for j, column in enumerate(columns)
    ]  # fmt: skip
    if values.size > MOST_CELLS:
        marks.append(Pixels(left, top, width * len(columns), height * len(rows), paint))
    else:
        for i, row in enumerate(rows):
            for j, column in enumerate(columns):
                x, y, colour = left + j * width, top + i * height, paint[i, j]
                said = f"{row} → {column}: {values[i, j]:.4g}"
                marks.append(Rect(x, y, width - 1, height - 1, code(colour), said))
                if inside is not None:
                    marks.append(
                        Text(x + width / 2, y + 0.7 * height, inside[i][j], "middle", over(colour))
                    )
    largest = float(np.abs(values).max(initial=0.0)) if most is None else most
    marks += _scale(left, top + height * len(rows) + 8, largest, signed)
    return Scene(
        max(left + width * len(columns) + 4, left + 200),
        top + height * len(rows) + 30,
        tuple(marks),
    )


def _scale(x: float, y: float, most: float, signed: bool) -> list[Mark]:
    """What the colours mean."""
    first = -most if signed else 0.0
    strip = colours(np.linspace(-1.0 if signed else 0.0, 1.0, 64)[None], signed=signed, most=1.0)
    return [
        Text(x, y + 11, f"{first:.3g}"),
        Pixels(x + 50, y, 80, 14, strip),
        Text(x + 136, y + 11, f"{most:.3g}"),
    ]


def grid(
    panels: Sequence[tuple[str, NDArray[Any]]],
    *,
    title: str = "",
    across: int = 4,
    side: float = 150,
) -> Scene:
    """Small heat maps side by side, each under its name, all on one scale from 0 to the largest value."""
    marks: list[Mark] = [Text(0, 14, title, strong=True)] if title else []
    across = min(across, max(1, len(panels)))
    most = max((float(values.max(initial=0.0)) for _, values in panels), default=1.0)
    for n, (name, values) in enumerate(panels):
        x, y = (n % across) * (side + 16), (n // across) * (side + 34) + 40
        marks += [Text(x, y - 5, name), Pixels(x, y, side, side, colours(values, most=most))]
    down = -(-len(panels) // across)
    marks += _scale(0, down * (side + 34) + 16, most, False)
    return Scene(max(200, across * (side + 16)), down * (side + 34) + 36, tuple(marks))


def links(
    values: NDArray[Any], left: Sequence[str], right: Sequence[str], *, title: str = ""
) -> Scene:
    """Two columns of tokens, and between them a line for each weight, the stronger the darker."""
    width = max((len(shown(token)) for token in left), default=0) * WIDTH + 10
    far = width + 160
    top = 34.0 if title else 10.0
    marks: list[Mark] = [Text(0, 14, title, strong=True)] if title else []
    largest = float(values.max(initial=0.0)) or 1.0
    for i, row in enumerate(values):
        for j in np.nonzero(row >= 0.04 * largest)[0].tolist():
            ends = (width, top + (i + 0.5) * 18, far, top + (j + 0.5) * 18)
            said = f"{shown(left[i])} → {shown(right[j])}: {row[j]:.3f}"
            marks.append(
                Line(
                    *ends, width=2.0, opacity=float(row[j] / largest), colour="#21918c", title=said
                )
            )
    marks += [
        Text(width - 5, top + i * 18 + 13, shown(token), "end") for i, token in enumerate(left)
    ]
    marks += [Text(far + 5, top + j * 18 + 13, shown(token)) for j, token in enumerate(right)]
    ending = far + 5 + max((len(shown(token)) for token in right), default=0) * WIDTH + 4
    return Scene(ending, top + max(len(left), len(right)) * 18 + 8, tuple(marks))


def bars(
    values: Sequence[float], names: Sequence[str], *, title: str = "", labels: Sequence[str] = ()
) -> Scene:
    """A horizontal bar for each value, from 0."""
    left = max((len(shown(name)) for name in names), default=0) * WIDTH + 10
    most = max((abs(value) for value in values), default=0.0) or 1.0
    top = 26.0 if title else 4.0
    marks: list[Mark] = [Text(0, 14, title, strong=True)] if title else []
    for i, (value, name) in enumerate(zip(values, names, strict=True)):
        y = top + i * 18
        marks += [
            Text(left - 6, y + 13, shown(name), "end"),
            Rect(
                left,
                y + 3,
                max(1.0, 260 * abs(value) / most),
                13,
                "#21918c" if value >= 0 else "#dd8b3c",
            ),
            Text(
                left + 266 * abs(value) / most + 6, y + 13, labels[i] if labels else f"{value:.4g}"
            ),
        ]
    return Scene(left + 360, top + len(values) * 18 + 4, tuple(marks))


def curves(series: Mapping[str, Sequence[tuple[float, float]]], *, title: str = "") -> Scene:
    """A line through the points of each series, named in its colour at the right; both axes from the least to the most."""
    wide, high, left, top = 360.0, 200.0, 60.0, 30.0
    points = [point for line in series.values() for point in line]
    (x0, x1), (y0, y1) = (
        ((min(axis), max(axis)) for axis in zip(*points, strict=True))
        if points
        else ((0, 1), (0, 1))
    )

    def place(x: float, y: float) -> tuple[float, float]:
        return (
            left + wide * (x - x0) / ((x1 - x0) or 1.0),
            top + high - high * (y - y0) / ((y1 - y0) or 1.0),
        )

    marks: list[Mark] = [Text(0, 14, title, strong=True)] if title else []
    marks += [Line(left, top, left, top + high), Line(left, top + high, left + wide, top + high)]
    marks += [Text(left - 6, place(x0, y)[1] + 4, f"{y:.3g}", "end") for y in (y0, y1)]
    marks += [Text(place(x, y0)[0], top + high + 16, f"{x:.4g}", "middle") for x in (x0, x1)]
    shades = [
        code(colour) for colour in colours(np.linspace(0.0, 0.9, max(1, len(series))), most=1.0)
    ]
    for i, (name, line) in enumerate(series.items()):
        for (a, b), (c, d) in itertools.pairwise(line):
            said = f"{name}: {d:.4g} at {c:.4g}"
            marks.append(Line(*place(a, b), *place(c, d), width=2.0, colour=shades[i], title=said))
        y = top + 12 + i * 18
        marks += [
            Line(left + wide + 14, y - 4, left + wide + 34, y - 4, width=3.0, colour=shades[i])
        ]
        marks += [Text(left + wide + 40, y, name)]
    longest = max((len(name) for name in series), default=0)
    deep = max(top + high + 24, top + 18.0 * len(series))
    return Scene(left + wide + 44 + longest * WIDTH, deep, tuple(marks))


# ------------------------------------------------------------------ as files


def svg(scene: Scene, title: str) -> str:
    """The scene as an SVG element; `ink` follows the text colour of what it stands in."""
    width, height = max(1, round(scene.width)), max(1, round(scene.height))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{escape(title)}" width="{width}" '
        f'height="{height}" viewBox="0 0 {width} {height}" font-family="system-ui, sans-serif" font-size="{FONT:g}">'
        f"{''.join(map(_element, scene.marks))}</svg>"
    )


def _element(mark: Mark) -> str:
    match mark:
        case Rect(x, y, width, height, colour, title):
            said = f"><title>{escape(title)}</title></rect>" if title else "/>"
            return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"{said}'
        case Line(x1, y1, x2, y2, width, opacity, colour, title):
            said = f"><title>{escape(title)}</title></line>" if title else "/>"
            paint = (
                f'stroke="{_ink(colour)}" stroke-width="{width:g}" stroke-opacity="{opacity:.3f}"'
            )
            return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" {paint}{said}'
        case Text(x, y, text, anchor, colour, upright, strong):
            turn = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if upright else ""
            weight = ' font-weight="600"' if strong else ""
            place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{_ink(colour)}"'
            return f"<text {place}{weight}{turn}>{escape(text)}</text>"
        case Pixels(x, y, width, height, colours):
            data = base64.b64encode(image(colours)).decode()
            place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
            return (
                f'<image {place} preserveAspectRatio="none" style="image-rendering:pixelated" '
                f'href="data:image/png;base64,{data}"/>'
            )


def _ink(colour: str) -> str:
    return "currentColor" if colour == "ink" else colour


def image(colours: NDArray[np.uint8]) -> bytes:
    """Pixels [rows, columns, 3] as a PNG file."""
    rows, columns, _ = colours.shape
    lines = np.concatenate([np.zeros((rows, 1), np.uint8), colours.reshape(rows, -1)], axis=1)
    header = struct.pack(">IIBBBBB", columns, rows, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 6)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )


def write_page(path: str | Path, title: str, body: str) -> None:
    disk.write_file(Path(path), PAGE.format(title=escape(title), body=body))


def write_png(path: str | Path, scene: Scene) -> None:
    """The scene on white, two pixels for one unless that is too large. Pillow draws the letters."""
    try:
        from PIL import Image, ImageDraw, ImageFont
    except ImportError:
        raise SettingError(
            "pictures need Pillow", "pip install 'regard[image]', or write HTML instead"
        ) from None
    area = (scene.width + 16) * (scene.height + 16)
    scale = min(2.0, (MOST_PIXELS / area) ** 0.5)
    size = (max(1, round((scene.width + 16) * scale)), max(1, round((scene.height + 16) * scale)))
    canvas = Image.new("RGB", size, "#ffffff")
    pen, (font, readable) = ImageDraw.Draw(canvas, "RGBA"), _font(ImageFont, FONT * scale)
    for mark in scene.marks:
        match _moved(mark, 8.0, 8.0):
            case Rect(x, y, width, height, colour):
                pen.rectangle(
                    (x * scale, y * scale, (x + width) * scale - 1, (y + height) * scale - 1),
                    fill=colour,
                )
            case Line(x1, y1, x2, y2, width, opacity, colour):
                ink = "#1b1b1f" if colour == "ink" else colour
                paint = f"{ink}{round(255 * opacity):02x}"
                ends = (x1 * scale, y1 * scale, x2 * scale, y2 * scale)
                pen.line(ends, fill=paint, width=max(1, round(width * scale)))
            case Text(x, y, said, anchor, colour, upright):
                text = readable(said)
                ink = "#1b1b1f" if colour == "ink" else colour
                if upright:
                    reach = max(1, round(pen.textlength(text, font=font)) + 2)
                    label = Image.new("RGBA", (reach, round(FONT * scale * 1.5)), "#ffffff00")
                    ImageDraw.Draw(label).text(
                        (1, round(FONT * scale * 1.1)), text, fill=ink, font=font, anchor="ls"
                    )
                    turned = label.rotate(90, expand=True)
                    corner = (
                        round(x * scale - FONT * scale * 1.1),
                        round(y * scale) - turned.height,
                    )
                    canvas.paste(turned, corner, turned)
                else:
                    side = {"start": "ls", "middle": "ms", "end": "rs"}[anchor]
                    pen.text((x * scale, y * scale), text, fill=ink, font=font, anchor=side)
            case Pixels(x, y, width, height, colours):
                small = Image.fromarray(colours)
                large = small.resize(
                    (round(width * scale), round(height * scale)), Image.Resampling.NEAREST
                )
                canvas.paste(large, (round(x * scale), round(y * scale)))
    _save(canvas, Path(path))


def _font(fonts: Any, size: float) -> tuple[Any, Callable[[str], str]]:
    """A font of the system that has most letters; or Pillow's own, for which others are spelt with those it has."""
    for name in FONTS:
        try:
            return fonts.truetype(name, round(size)), str
        except OSError:
            continue
    return fonts.load_default(size), _in_ascii


def _in_ascii(text: str) -> str:
    for sign, spelt in {
        "→": "->",
        "←": "<-",
        "−": "-",
        "×": "x",
        "●": "*",
        "…": "...",
        "ß": "ss",
        "·": ".",
    }.items():
        text = text.replace(sign, spelt)
    return unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()


def _save(canvas: Any, path: Path) -> None:
    held = BytesIO()
    canvas.save(held, "PNG")
    disk.write_file(path, held.getvalue())
