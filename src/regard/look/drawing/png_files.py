"""Pictures as PNG files, painted by Pillow."""

from __future__ import annotations

import itertools
import math
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from regard.look.drawing.marks import (
    FONT,
    Circle,
    Line,
    Mark,
    Pixels,
    Polyline,
    Rect,
    Scene,
    Text,
    moved,
)
from regard.look.drawing.palette import INK
from regard.system import disk
from regard.system.errors import SettingError

MARGIN = 8.0  # around a picture
DASH = 6.0  # the length of a dash
FONTS = ("DejaVuSans.ttf", "NotoSans-Regular.ttf", "Arial Unicode.ttf", "arial.ttf", "Arial.ttf")
MOST_PIXELS = 40_000_000


def write_png(path: str | Path, scene: Scene) -> None:
    """Writes the scene on white, at twice its size unless that is too large."""
    try:
        from PIL import Image
    except ImportError:
        raise SettingError(
            "PNG files need the package Pillow",
            "pip install 'regard[image]', or write HTML instead",
        ) from None
    width = scene.width + 2 * MARGIN
    height = scene.height + 2 * MARGIN
    # Two pixels for one look sharp on most screens.
    scale = min(2.0, (MOST_PIXELS / (width * height)) ** 0.5)
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    canvas = Image.new("RGB", size, "#ffffff")
    painter = _Painter(canvas, scale)
    for mark in moved(scene.marks, MARGIN, MARGIN):
        painter.paint(mark)
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
                points = ((mark.x1, mark.y1), (mark.x2, mark.y2))
                self._line(points, mark.width, _ink(mark.colour, mark.opacity))
            case Polyline(dashed=True):
                for dash in _dashes(mark.points):
                    self._line(dash, mark.width, _ink(mark.colour))
            case Polyline(filled=0.0):
                self._line(mark.points, mark.width, _ink(mark.colour))
            case Polyline():
                pixels = [(x * scale, y * scale) for x, y in mark.points]
                self.pen.polygon(pixels, fill=_ink(mark.colour, mark.filled))
            case Circle():
                centre = (mark.x * scale, mark.y * scale)
                self.pen.circle(centre, mark.radius * scale, _ink(mark.colour, mark.opacity))
            case Text():
                self._text(mark)
            case Pixels():
                from PIL import Image

                size = (round(mark.width * scale), round(mark.height * scale))
                picture = Image.fromarray(mark.colours).resize(size, Image.Resampling.NEAREST)
                self.canvas.paste(picture, (round(mark.x * scale), round(mark.y * scale)))

    def _line(self, points: Sequence[tuple[float, float]], width: float, ink: str) -> None:
        pixels = [(x * self.scale, y * self.scale) for x, y in points]
        self.pen.line(pixels, fill=ink, width=max(1, round(width * self.scale)))

    def _text(self, mark: Text) -> None:
        from PIL import Image, ImageDraw

        text = self.spell(mark.text)
        x = mark.x * self.scale
        y = mark.y * self.scale
        # Pillow's anchors: left, middle or right, at the baseline.
        anchor = {"start": "ls", "middle": "ms", "end": "rs"}[mark.anchor]
        style = {"fill": _ink(mark.colour), "font": self.font, "anchor": anchor}
        if not mark.turn:
            self.pen.text((x, y), text, **style)
            return
        # On a label of its own, which turns around the place of the text in its middle.
        reach = round(self.pen.textlength(text, font=self.font) + FONT * self.scale)
        label = Image.new("RGBA", (2 * reach, 2 * reach), "#ffffff00")
        ImageDraw.Draw(label).text((reach, reach), text, **style)
        turned = label.rotate(mark.turn)
        self.canvas.paste(turned, (round(x) - reach, round(y) - reach), turned)


def _ink(colour: str, opacity: float = 1.0) -> str:
    """A colour for Pillow, which takes the opacity as two more hexadecimal digits."""
    return f"{INK if colour == 'ink' else colour}{round(255 * opacity):02x}"


def _dashes(points: Sequence[tuple[float, float]]) -> Iterator[list[tuple[float, float]]]:
    """The dashes of a line through points, with gaps as long as they are."""
    for (x1, y1), (x2, y2) in itertools.pairwise(points):
        distance = math.hypot(x2 - x1, y2 - y1)
        for start in np.arange(0.0, distance, 2 * DASH).tolist():
            shares = (start / distance, min(1.0, (start + DASH) / distance))
            yield [(x1 + share * (x2 - x1), y1 + share * (y2 - y1)) for share in shares]


def _font(fonts: Any, size: float) -> tuple[Any, Callable[[str], str]]:
    """A system font with most letters, or Pillow's own one; and how texts are spelt in it."""
    for name in FONTS:
        try:
            return fonts.truetype(name, round(size)), str
        except OSError:
            continue
    return fonts.load_default(size), _in_ascii


ASCII = str.maketrans(
    {"→": "->", "←": "<-", "−": "-", "×": "x", "●": "*", "…": "...", "ß": "ss", "·": "."}
)


def _in_ascii(text: str) -> str:
    """A text in the letters that Pillow's own font has."""
    # Decomposed, letters lose their accents but stay.
    decomposed = unicodedata.normalize("NFKD", text.translate(ASCII))
    return decomposed.encode("ascii", "ignore").decode()
