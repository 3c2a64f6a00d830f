"""A picture as a list of marks: rectangles, lines, letters, circles and pixels; and as SVG.

Text is escaped where it is written; markup is never made from it.
"""

from __future__ import annotations

import base64
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING, Literal

import numpy as np

from regard.look.drawing.png_encoding import image

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Pixels
CELL = 22.0  # the side of a cell
FONT = 12.0  # the size of letters
WIDTH = 7.2  # about how wide a letter is
WIDE_LETTERS = frozenset("mwMWO@%—")  # about a half wider
ROW = 18  # the height of a line of text
PAGE_WIDTH = 1200.0


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
    colours: NDArray[np.uint8]  # [rows, columns, 3]


Mark = Rect | Text | Line | Polyline | Circle | Pixels


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
    if isinstance(mark, Polyline):
        return replace(mark, points=tuple((x + right, y + down) for x, y in mark.points))
    return replace(mark, x=mark.x + right, y=mark.y + down)


def title_marks(title: str) -> list[Mark]:
    """A title in the first line of a picture."""
    return [Text(0, 14, title, strong=True)] if title else []


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
