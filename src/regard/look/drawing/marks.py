"""A picture as a list of marks: rectangles, lines, letters, circles and pixels."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

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
        from regard.look.drawing.svg_files import svg  # which draws the marks of this module

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
