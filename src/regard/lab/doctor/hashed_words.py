"""Texts as vectors of the words in them, hashed: enough to compare texts without a vocabulary."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

BUCKETS = 512  # that words are hashed into


def words(text: str) -> list[str]:
    """The words of a text in lower case, without punctuation."""
    return re.findall(r"\w+", text.lower())


def counts(texts: Sequence[str], buckets: int = BUCKETS) -> Array:
    """[N, W]: how often each word occurs in each text."""
    result = np.zeros((len(texts), buckets), dtype=np.float32)
    for row, text in enumerate(texts):
        for word in text.lower().split():
            result[row, zlib.crc32(word.encode()) % buckets] += 1
    return result


def presence(texts: Sequence[str]) -> Array:
    """[N, W]: which words occur in each text."""
    return np.minimum(counts(texts), 1)
