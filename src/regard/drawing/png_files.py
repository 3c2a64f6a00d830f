"""Pictures as PNG files, painted by Pillow."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard import disk
from regard.drawing.marks import (
    FONT,
    Circle,
    Line,
    Mark,
    Pixels,
    Rect,
    Scene,
    Text,
    moved,
)
from regard.drawing.palette import INK
from regard.errors import SettingError

if TYPE_CHECKING:
    pass

MARGIN = 8.0  # around a picture
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
