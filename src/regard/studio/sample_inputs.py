"""A picture and a recording to begin with, made here: so that every model can be shown something at once."""

from __future__ import annotations

import io
import wave
from functools import cache

import numpy as np

from regard.data.audio import RATE

EXAMPLE = "example"


@cache
def example(kind: str) -> bytes:
    """The contents of a PNG or of a WAV file."""
    return _picture() if kind == "image" else _sound()


def _picture() -> bytes:
    """A house under the sun."""
    from PIL import Image, ImageDraw

    image = Image.new("RGB", (448, 448), "#9ecae8")
    draw = ImageDraw.Draw(image)
    draw.rectangle((0, 320, 448, 448), fill="#6fa35a")
    draw.ellipse((318, 40, 408, 130), fill="#ffd24a")
    draw.rectangle((96, 210, 286, 360), fill="#d9825b")
    draw.polygon([(76, 214), (191, 112), (306, 214)], fill="#7a3b2e")
    draw.rectangle((168, 276, 214, 360), fill="#4a2c20")
    for left in (116, 232):
        draw.rectangle((left, 236, left + 38, 274), fill="#e8f2fa", outline="#4a2c20", width=4)
    held = io.BytesIO()
    image.save(held, "PNG")
    return held.getvalue()


def _sound() -> bytes:
    """Three rising tones with overtones, and silence between them."""
    time = np.arange(3 * RATE) / RATE
    air = np.zeros_like(time)
    for first, last, low, high in (
        (0.2, 0.8, 220, 440),
        (1.1, 1.7, 330, 880),
        (2.0, 2.7, 440, 1760),
    ):
        here = (time >= first) & (time < last)
        share = (time[here] - first) / (last - first)
        phase = 2 * np.pi * np.cumsum(low + (high - low) * share) / RATE
        air[here] = sum(np.sin(n * phase) / n for n in (1, 2, 3)) * np.sin(np.pi * share) * 0.4
    held = io.BytesIO()
    with wave.open(held, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes((air * 32767 * 0.8).astype("<i2").tobytes())
    return held.getvalue()
