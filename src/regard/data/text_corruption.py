"""Text corruption for denoising objectives.

- masking: BERT's masked language modelling (its pairs of sentences are in `next_sentence`)
- span corruption: T5
- sentence permutation and text infilling: BART

All are pure functions of a row's tokens and of its own random stream, so a resumed run corrupts a
row as an uninterrupted one does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from regard.core.seeding import philox

Ids = NDArray[np.int64]


class RandomStream:
    """The random stream of one row in one epoch: numbers in [0, 1).

    Made from raw bits, which numpy promises never to change.
    """

    def __init__(self, seed: int, epoch: int, row: int) -> None:
        self._bits = philox(seed, epoch, row)

    def numbers(self, count: int) -> NDArray[np.float64]:
        """Uniform numbers in [0, 1), of 53 bits."""
        # The upper 53 of 64 bits fill the mantissa of a float64.
        return (self._bits.random_raw(count) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def below(self, bound: int, count: int) -> Ids:
        """`count` integers from 0 to `bound` − 1."""
        return (self.numbers(count) * bound).astype(np.int64)

    def some(self, bound: int, count: int) -> Ids:
        """`count` different integers from 0 to `bound` − 1, in ascending order."""
        return np.sort(self.order(bound)[:count])

    def order(self, count: int) -> Ids:
        """A random permutation of the integers from 0 to `count` − 1."""
        return np.argsort(self.numbers(count), kind="stable")


# --- masking (BERT) ---


# --- span corruption (T5) ---


# --- sentence permutation and text infilling (BART) ---


@dataclass(frozen=True)
class Corruption:
    """What `denoise` did: the order of the sentences, and the length of each masked span."""

    order: Ids
    lengths: Ids


def denoise(
    ids: Ids, breaks: Ids, chance: RandomStream, *, share: float, mean: float, token: int
) -> tuple[Ids, Ids, Corruption]:
    """BART's corruption: sentence permutation, then text infilling.

    Lewis et al. (2020), section 2.2. Sentences begin at `breaks`. Infilling replaces spans by one
    mask `token` each; their lengths are from Poisson(`mean`), so some are empty, and they have
    `share` of all tokens. The target is the text as it was.
    """
    order = chance.order(len(breaks))
    permuted = _permute_sentences(ids, breaks, order)
    lengths = _span_lengths(max(1, round(share * len(ids))), mean, chance)
    visible = len(ids) - int(lengths.sum())
    # Spans are in different gaps between visible tokens, so they never touch.
    lengths = lengths[: visible + 1]
    gaps = chance.some(visible + 1, len(lengths))
    corrupted = _infill(permuted, dict(zip(gaps.tolist(), lengths.tolist(), strict=True)), token)
    return corrupted, ids.copy(), Corruption(order, lengths)


def _permute_sentences(ids: Ids, breaks: Ids, order: Ids) -> Ids:
    ends = np.append(breaks[1:], len(ids))
    return np.concatenate([ids[breaks[i] : ends[i]] for i in order])


def _infill(ids: Ids, spans_at: dict[int, int], token: int) -> Ids:
    """Text infilling; `spans_at` has the length of the span in each gap between visible tokens."""
    visible = len(ids) - sum(spans_at.values())
    corrupted: list[int] = []
    position = 0
    for gap in range(visible + 1):
        if gap in spans_at:
            corrupted.append(token)
            position += spans_at[gap]
        if gap < visible:
            corrupted.append(int(ids[position]))
            position += 1
    return np.array(corrupted, dtype=np.int64)


def _span_lengths(total: int, mean: float, chance: RandomStream) -> Ids:
    """Lengths from Poisson(mean) that add up to `total`, at most `total` of them."""
    # 64 terms: for means such as BART's 3, what is beyond has no weight in float64.
    probabilities = [math.exp(-mean) * mean**k / math.factorial(k) for k in range(64)]
    # Inverse transform sampling: independent of numpy's own Poisson, which may change.
    drawn = np.searchsorted(np.cumsum(probabilities), chance.numbers(total), side="right")
    before = np.cumsum(drawn) - drawn
    # The last one is cut to reach the total exactly.
    lengths = np.minimum(drawn, total - before)[before < total]
    return lengths.astype(np.int64)
