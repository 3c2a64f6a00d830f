"""A picture as a list of marks, and as SVG, in a self-contained HTML page."""

from __future__ import annotations

import base64
import struct
import unicodedata
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Literal

import numpy as np

from regard.look.drawing.palette import Colours
from regard.system import disk


def image(colours: Colours) -> bytes:
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


# Pixels
CELL = 22.0  # the side of a cell
FONT = 12.0  # the size of letters
WIDTH = 7.2  # about how wide a letter is
WIDE_LETTERS = frozenset("mwMWO@%—")  # about a half wider
ROW = 18  # the height of a line of text
PAGE_WIDTH = 1200.0
TITLE_HEIGHT = 24.0
TILE_GAP = 20.0


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
    turn: float = 0.0  # degrees against the clock: at 90 it reads from bottom to top
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
class Polyline:
    """A line through points; or the area inside them, of the opacity `filled`."""

    points: tuple[tuple[float, float], ...]
    colour: str = "ink"
    width: float = 1.0
    dashed: bool = False
    filled: float = 0.0
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
    colours: Colours  # [rows, columns, 3]


Mark = Rect | Text | Line | Polyline | Circle | Pixels
Marks = list[Mark]


@dataclass(frozen=True)
class Scene:
    """A picture: its size and its marks, in the order they are painted."""

    width: float
    height: float
    marks: tuple[Mark, ...]

    def _repr_html_(self) -> str:
        """The picture that a notebook shows."""
        texts = [mark.text for mark in self.marks if isinstance(mark, Text)]
        return svg(self, next(iter(texts), "figure"))


def below(scenes: Sequence[Scene], gap: float = 24.0) -> Scene:
    """Scenes one below the other."""
    marks: Marks = []
    top = 0.0
    for scene in scenes:
        marks += moved(scene.marks, 0.0, top)
        top += scene.height + gap
    width = max((scene.width for scene in scenes), default=0.0)
    return Scene(width, max(0.0, top - gap), tuple(marks))


def tiles(scenes: Sequence[Scene], *, title: str) -> Scene:
    """Scenes side by side, in as many rows as they need, under a title."""
    marks: Marks = []
    top = 0.0
    x = 0.0
    height = 0.0
    width = 0.0
    for scene in scenes:
        if x > 0 and x + scene.width > PAGE_WIDTH:
            x = 0.0
            top += height + TILE_GAP
            height = 0.0
        marks += moved(scene.marks, x, top)
        x += scene.width + TILE_GAP
        height = max(height, scene.height)
        width = max(width, x - TILE_GAP)
    return titled(title, Scene(width, top + height, tuple(marks)))


def titled(title: str, scene: Scene) -> Scene:
    """A picture under its title, if it has one."""
    if not title:
        return scene
    width = max(scene.width, 1.1 * text_width([title]))
    marks = (Text(0, 14, title, strong=True), *moved(scene.marks, 0.0, TITLE_HEIGHT))
    return Scene(width, scene.height + TITLE_HEIGHT, marks)


def moved(marks: Iterable[Mark], right: float, down: float) -> Marks:
    """Marks at another place."""
    places: Marks = []
    for mark in marks:
        match mark:
            case Line():
                line = replace(mark, x1=mark.x1 + right, x2=mark.x2 + right)
                places.append(replace(line, y1=mark.y1 + down, y2=mark.y2 + down))
            case Polyline():
                points = tuple((x + right, y + down) for x, y in mark.points)
                places.append(replace(mark, points=points))
            case _:
                places.append(replace(mark, x=mark.x + right, y=mark.y + down))
    return places


def shown(token: str) -> str:
    """A token for people: without marks of where words begin or end, with visible white space."""
    if len(token) > 1:
        token = token.lstrip("▁Ġ").removesuffix("</w>")
    if token in ("", " "):
        token = "␣"
    token = token.replace("\n", "⏎").replace("\t", "⇥")
    # Byte-level tokens may be parts of a letter, which have no form, as control codes have none.
    formless = ("Cc", "Cs", "Cn", "Co")
    return "".join("�" if unicodedata.category(c) in formless else c for c in token)


def text_width(texts: Sequence[str]) -> float:
    """The width of the longest text."""
    lengths = [len(text) + 0.5 * sum(map(WIDE_LETTERS.__contains__, text)) for text in texts]
    return max(lengths, default=0.0) * WIDTH


# --- SVG ------------------------------------------------------------------------------------------


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
            turn = ""
            if mark.turn:
                # An SVG rotates clockwise.
                turn = f' transform="rotate({-mark.turn:.1f} {mark.x:.1f} {mark.y:.1f})"'
            weight = ' font-weight="600"' if mark.strong else ""
            return (
                f'<text x="{mark.x:.1f}" y="{mark.y:.1f}" text-anchor="{mark.anchor}" '
                f'fill="{_ink(mark.colour)}"{weight}{turn}>{escape(mark.text)}</text>'
            )
        case Polyline(filled=0.0):
            dash = ' stroke-dasharray="6 5"' if mark.dashed else ""
            return (
                f'<polyline points="{_points(mark)}" fill="none" stroke="{_ink(mark.colour)}" '
                f'stroke-width="{mark.width:g}" stroke-linejoin="round"{dash}'
                f"{_closed('polyline', mark.title)}"
            )
        case Polyline():
            return (
                f'<polygon points="{_points(mark)}" fill="{_ink(mark.colour)}" '
                f'fill-opacity="{mark.filled:g}"{_closed("polygon", mark.title)}'
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


def _points(mark: Polyline) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in mark.points)


def _closed(tag: str, tooltip: str) -> str:
    """The end of an element, with its tooltip."""
    if not tooltip:
        return "/>"
    return f"><title>{escape(tooltip)}</title></{tag}>"


def _ink(colour: str) -> str:
    return "currentColor" if colour == "ink" else colour


# The colours and the typeface of the studio (studio/web/style.css).
LIGHT = """color-scheme: light; --page: #f5f6f8; --card: #ffffff; --ink: #15181e; --faint: #5b6472;
  --line: #d9dde4; --soft: #eef1f5; --accent: #1f5fbf; --good: #0b6e4f; --good-soft: #e0f3ec;
  --warm: #9a4a06; --warm-soft: #fdf0dc; --bad: #a61b1b; --bad-soft: #fdecec;"""
DARK = """color-scheme: dark; --page: #0f1115; --card: #181b21; --ink: #eceff4; --faint: #a0a9b8;
  --line: #2e343e; --soft: #20252d; --accent: #8ab8ff; --good: #6fd6ae; --good-soft: #14342a;
  --warm: #ffc46b; --warm-soft: #3a2b12; --bad: #ffa8a0; --bad-soft: #3a1d1d;"""
# `.regard` is the body of a page, or a part of another one. Its box #theme changes the colours.
STYLE = f"""
.regard {{ {LIGHT} }}
@media (prefers-color-scheme: dark) {{ .regard {{ {DARK} }} }}
:root:has(#theme:checked) .regard {{ {DARK} }}
@media (prefers-color-scheme: dark) {{ :root:has(#theme:checked) .regard {{ {LIGHT} }} }}
.regard {{ color: var(--ink); background: var(--page);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }}
.regard * {{ box-sizing: border-box; }}
.regard h1, .regard h2, .regard h3 {{ line-height: 1.25; margin: 0; font-weight: 650; }}
.regard a {{ color: var(--accent); }}
.regard figure {{ margin: 0; min-width: 0; }}
.regard figcaption, .regard .faint {{ color: var(--faint); max-width: 60rem; }}
"""
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">\
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" \
content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<title>{title}</title>
<style>body {{ margin: 0; padding: 1rem; overflow-wrap: anywhere; }}{style}</style></head>
<body class="regard">{body}</body></html>
"""


def page(title: str, body: str, style: str = "") -> str:
    """A self-contained HTML page, with a style of its own after that of all pages."""
    return _PAGE.format(title=escape(title), body=body, style=STYLE + style)


def write_page(path: str | Path, title: str, body: str) -> None:
    """Writes a self-contained HTML page."""
    disk.write_file(Path(path), page(title, body, ".regard { background: var(--card); }"))


def figure(scene: Scene, title: str, below: str = "") -> str:
    """A picture for a page or a notebook, scrolled where it is wide; `below` is HTML."""
    return f'<figure style="margin:0;overflow-x:auto">{svg(scene, title)}{below}</figure>'
