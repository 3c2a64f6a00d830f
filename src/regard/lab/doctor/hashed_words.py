"""Texts as vectors of what occurs in them, hashed: to compare texts without a vocabulary."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

BUCKETS = 512  # that words are hashed into


def words(text: str) -> list[str]:
    """The words of a text in lower case, without punctuation."""
    return re.findall(r"\w+", text.lower())


def style(text: str) -> list[str]:
    """How a text is written: its words and signs as they stand, two in a row, and characters."""
    pieces = ["<", *re.findall(r"\w+|[^\w\s]", text), ">"]
    return [*pieces, *(" ".join(two) for two in pairwise(pieces)), *(f"'{one}'" for one in text)]


def counts(texts: Sequence[str], buckets: int = BUCKETS) -> Array:
    """[N, W]: how often each word occurs in each text."""
    return hashed((text.lower().split() for text in texts), len(texts), buckets)


def presence(texts: Sequence[str]) -> Array:
    """[N, W]: which words occur in each text."""
    return np.minimum(counts(texts), 1)


def hashed(rows: Iterable[Iterable[str]], count: int, buckets: int) -> Array:
    """[N, W]: how often each of some strings occurs in each row."""
    result = np.zeros((count, buckets), dtype=np.float32)
    for row, strings in enumerate(rows):
        for one in strings:
            result[row, zlib.crc32(one.encode()) % buckets] += 1
    return result
