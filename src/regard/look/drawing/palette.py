"""Colours: of amounts, of signed values, and of attention.

There are two colour maps, those of the studio, both safe for colour-blind readers and in greyscale:
white to blue for amounts, brown–blue for signed values. A weight of attention is as dark as it is
large, from 0 to 1; of long inputs, where all weights are small, against even attention.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]
    Colours = NDArray[np.uint8]  # [..., 3]: red, green and blue
else:
    Array = np.ndarray
    Colours = np.ndarray

AMOUNT = ("f7fbff", "c6dbef", "6baed6", "2171b5", "08306b")
SIGNED = ("8c510a", "dfc27d", "f7f7f7", "6baed6", "08306b")
POSITIVE = "#2a72d5"  # of bars and lines, between the studio's accents by day and by night
NEGATIVE = "#c9741d"
# Of the series of a chart: dark and bright in turn, told apart in greyscale and by colour-blind
# readers, and each seen on white and on black.
LINES = (POSITIVE, NEGATIVE, "#0f7f5f", "#d06a9f", "#6f5fc0", "#8a8a2b", "#1f7f9c", "#808088")
INK = "#15181e"  # of letters in a PNG; an SVG takes the colour of the text around it
EVEN_SHADE = 0.12  # of a weight as large as if all places that can be seen had the same
CLEAR = 1.5  # times even attention: links below are faint
FAINT = 0.07  # their opacity
LONG = 64  # keys, beyond which weights are shaded against even attention unless someone chooses


def colours(values: Array, *, signed: bool = False, most: float | None = None) -> Colours:
    """RGB [..., 3] for values from 0 to `most` (signed: −most to most), by default the largest."""
    scaled = np.zeros_like(values)  # where all values are 0, so is the scale
    end = scale_end(values, most)
    if end > 0:
        scaled = values / end
    if signed:
        scaled = (scaled + 1) / 2
    codes = SIGNED if signed else AMOUNT
    table = np.array([[int(code[i : i + 2], 16) for i in (0, 2, 4)] for code in codes])
    # Between two entries of the table, colours are interpolated.
    index = np.clip(np.nan_to_num(scaled), 0.0, 1.0) * (len(table) - 1)
    low = np.minimum(index.astype(int), len(table) - 2)
    share = (index - low)[..., None]
    return np.round(table[low] * (1 - share) + table[low + 1] * share).astype(np.uint8)


def even_attention(visible: Array) -> Array:
    """The weights [..., S] of a query that attends alike to all keys that it may attend to."""
    return np.asarray(visible / np.maximum(1, visible.sum(axis=-1, keepdims=True)))


def is_relative(weights: Array, relative: bool | None = None) -> bool:
    """Whether weights [..., S] are shaded against even attention: by default if S is large."""
    return weights.shape[-1] > LONG if relative is None else relative


def attention_shades(
    weights: Array, even: Array | None = None, *, relative: bool | None = None
) -> Array:
    """Shades from 0 to 1 of attention weights [..., S]: the weights themselves, or `relative`.

    Everything that draws attention takes its shades from here, the studio too. Relative to even
    attention, a weight as large as that of `even` is pale, and 1 is full; between them the shade
    grows with the logarithm. Where a query may attend to one key only, its weight is even: pale.
    """
    if not is_relative(weights, relative):
        return np.clip(weights, 0.0, 1.0)
    even = _even_or_guessed(weights, even)
    ratio = np.where(even > 0, weights, 0.0) / np.where(even > 0, even, 1.0)
    # Softmax is exact to about seven digits: what is even to them is not above it.
    is_above = ratio > 1 + 1e-6
    highest = -np.log(np.where(is_above, even, 0.5))  # the logarithm of the ratio of the weight 1
    rising = np.log(np.where(is_above, ratio, 1.0)) / highest
    below = EVEN_SHADE * np.clip(ratio, 0.0, 1.0)
    return np.asarray(np.where(is_above, EVEN_SHADE + (1 - EVEN_SHADE) * rising, below))


def is_clear(weights: Array, even: Array | None = None) -> Array:
    """Which weights are clearly above even attention; the links of others are faint."""
    even = _even_or_guessed(weights, even)
    return np.asarray((even > 0) & (weights >= CLEAR * even))


def _even_or_guessed(weights: Array, even: Array | None) -> Array:
    """The weights of even attention, by default over the keys whose weight is above 0."""
    if even is not None:
        return np.broadcast_to(even, weights.shape)
    # One weight alone may be all that softmax left of several.
    return np.minimum(even_attention(weights > 0), 0.5)


def scale_end(values: Array, most: float | None) -> float:
    """The end of the scale."""
    if most is not None:
        return most
    return float(np.abs(np.nan_to_num(values)).max(initial=0.0))


def sign_colour(value: float) -> str:
    """The colour of a bar or line for a value that raises, or lowers."""
    return POSITIVE if value >= 0 else NEGATIVE


def code(colour: Colours) -> str:
    """An RGB colour as #rrggbb."""
    return f"#{colour.tobytes().hex()}"


def over(colour: Colours) -> str:
    """Black or white, whichever can be read on this colour."""
    luma = float(colour @ (0.299, 0.587, 0.114))  # ITU-R BT.601
    return "#000000" if luma > 140 else "#ffffff"
