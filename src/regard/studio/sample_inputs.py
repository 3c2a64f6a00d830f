"""Sample inputs: an image and a recording, drawn and computed here."""

from __future__ import annotations

import io
import wave
from functools import cache

import numpy as np
from numpy.typing import NDArray

from regard.data.audio import RATE

EXAMPLE = "example"  # the name of the sample among uploaded files

# Of each tone: when it begins and ends (seconds), and its pitch then (hertz).
TONES = ((0.2, 0.8, 220, 440), (1.1, 1.7, 330, 880), (2.0, 2.7, 440, 1760))


@cache
def example(kind: str) -> bytes:
    """The contents of a PNG file (`image`) or of a WAV file (`sound`)."""
    return _image() if kind == "image" else _sound()


def _image() -> bytes:
    """A house under the sun."""
    from PIL import Image, ImageDraw

    image = Image.new("RGB", (448, 448), "#9ecae8")
    draw = ImageDraw.Draw(image)
    draw.rectangle((0, 320, 448, 448), fill="#6fa35a")  # grass
    draw.ellipse((318, 40, 408, 130), fill="#ffd24a")  # sun
    draw.rectangle((96, 210, 286, 360), fill="#d9825b")  # wall
    draw.polygon([(76, 214), (191, 112), (306, 214)], fill="#7a3b2e")  # roof
    draw.rectangle((168, 276, 214, 360), fill="#4a2c20")  # door
    for left in (116, 232):
        window = (left, 236, left + 38, 274)
        draw.rectangle(window, fill="#e8f2fa", outline="#4a2c20", width=4)
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def _sound() -> bytes:
    """Three rising tones with overtones, and silence between them."""
    time = np.arange(3 * RATE) / RATE
    samples = np.zeros_like(time)
    for first, last, low, high in TONES:
        during = (time >= first) & (time < last)
        progress = (time[during] - first) / (last - first)  # 0 to 1
        samples[during] = _tone(progress, low, high)
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)  # bytes: 16-bit samples
        writer.setframerate(RATE)
        # Samples are between −1 and 1; a fifth of the range is left free.
        writer.writeframes((samples * 32767 * 0.8).astype("<i2").tobytes())
    return file.getvalue()


def _tone(progress: NDArray[np.float64], low: float, high: float) -> NDArray[np.float64]:
    """A tone that rises from `low` to `high` and swells and fades, with two overtones."""
    frequency = low + (high - low) * progress
    # The phase is the integral of the frequency.
    phase = 2 * np.pi * np.cumsum(frequency) / RATE
    overtones = sum(np.sin(n * phase) / n for n in (1, 2, 3))
    return overtones * np.sin(np.pi * progress) * 0.4
