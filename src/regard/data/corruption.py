"""Corruption of texts for denoising objectives, and which patches of an image are hidden.

- masking and pairs of sentences: BERT
- span corruption: T5
- sentence permutation and text infilling: BART

All are pure functions of a row's tokens and of its own random stream, so a resumed run corrupts a
row as an uninterrupted one does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.core.seeding import derive_seed, philox
from regard.data.padding import IGNORED
from regard.system.errors import DataError

Ids = NDArray[np.int64]
_IMAGE_STREAM = 0x3A5C  # apart from those that order and augment images


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


# --- span corruption (T5) ---


def corrupt_spans(
    ids: Ids, chance: RandomStream, *, share: float, mean: float, sentinels: Sequence[int]
) -> tuple[Ids, Ids]:
    """Span corruption: spans are replaced by one sentinel each (Raffel et al., 2020, figure 2).

    The spans have `mean` length and `share` of all tokens. The target is every sentinel followed by
    its span, and one more sentinel at the end.
    """
    # At least one token is hidden, and at least one stays.
    hidden = min(max(1, round(share * len(ids))), len(ids) - 1)
    visible = len(ids) - hidden
    count = min(max(1, round(hidden / mean)), hidden, visible)
    if count >= len(sentinels):
        raise DataError(
            f"{count} spans need {count + 1} sentinels, but the tokenizer has {len(sentinels)}",
            "use a shorter context, or longer spans",
        )
    # Visible and hidden stretches alternate, and a visible one comes first.
    visible_lengths = _random_partition(visible, count, chance)
    hidden_lengths = _random_partition(hidden, count, chance)
    corrupted: list[int] = []
    target: list[int] = []
    position = 0
    for i in range(count):
        start = position + visible_lengths[i]
        end = start + hidden_lengths[i]
        corrupted += [*ids[position:start], sentinels[i]]
        target += [sentinels[i], *ids[start:end]]
        position = end
    target.append(sentinels[count])
    return np.array(corrupted, dtype=np.int64), np.array(target, dtype=np.int64)


def _random_partition(total: int, count: int, chance: RandomStream) -> Ids:
    """`count` lengths of at least 1 that add up to `total`."""
    # Random borders inside, as in T5's random_segmentation, and the total as the last one.
    ends = np.append(chance.some(total - 1, count - 1) + 1, total)
    return np.diff(ends, prepend=0)


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
    ends = np.append(breaks[1:], len(ids))
    permuted = np.concatenate([ids[breaks[i] : ends[i]] for i in order])
    lengths = _span_lengths(max(1, round(share * len(ids))), mean, chance)
    visible = len(ids) - int(lengths.sum())
    # Spans are in different gaps between visible tokens, so they never touch.
    lengths = lengths[: visible + 1]
    gaps = chance.some(visible + 1, len(lengths))
    corrupted: list[int] = []
    start = 0
    # A span stands after as many visible tokens as its gap says.
    for gap, before, length in zip(gaps, np.cumsum(lengths) - lengths, lengths, strict=True):
        corrupted += [*permuted[start : gap + before], token]
        start = gap + before + length
    corrupted += [*permuted[start:]]
    return np.array(corrupted, dtype=np.int64), ids.copy(), Corruption(order, lengths)


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


# --- token masking and pairs of sentences (BERT, Devlin et al. 2019) ---


@dataclass(frozen=True)
class MaskingRates:
    """Of the tokens to predict, the shares replaced by the mask and by a random token.

    The rest stay as they are (Devlin et al., 2019, section 3.1).
    """

    masked: float = 0.8
    swapped: float = 0.1  # the other 10 % stay as they are


def mask_tokens(
    ids: Ids, chance: RandomStream, *, share: float, token: int, ordinary: Ids, rates: MaskingRates
) -> tuple[Ids, Ids]:
    """Masking: `share` of the tokens are to be predicted.

    Most of these become the mask `token`, some one of the `ordinary` tokens, some stay as they are.
    Returns the corrupted tokens, and the labels, IGNORED where nothing is to be predicted.
    """
    positions = chance.some(len(ids), max(1, round(share * len(ids))))
    # All are drawn, whatever becomes of a token, so that the stream has one length.
    draws = chance.numbers(len(positions))
    random_tokens = ordinary[chance.below(len(ordinary), len(positions))]
    originals = ids[positions]
    labels = np.full_like(ids, IGNORED)
    labels[positions] = originals
    swapped = np.where(draws < rates.masked + rates.swapped, random_tokens, originals)
    corrupted = ids.copy()
    corrupted[positions] = np.where(draws < rates.masked, token, swapped)
    return corrupted, labels


def sentence_pair(
    ids: Ids, breaks: Ids, other: Ids, other_breaks: Ids, chance: RandomStream, *, room: int
) -> tuple[Ids, Ids, int]:
    """A pair for next sentence prediction, of at most `room` tokens.

    A row is split in two where a sentence begins; half of the time the second part is taken from an
    `other` row instead. `breaks` are the positions where sentences begin. Returns both parts, and 1
    if the second is from elsewhere, else 0.
    """
    first = ids[: _sentence_break(ids, breaks, chance)]
    from_elsewhere = int(chance.numbers(1)[0] < 0.5)
    # Drawn in either case: the numbers of a row do not depend on each other.
    other_break = _sentence_break(other, other_breaks, chance)
    second = ids[len(first) :]
    if from_elsewhere:
        second = other[other_break:]
    return first, second[: room - len(first)], from_elsewhere


def _sentence_break(ids: Ids, breaks: Ids, chance: RandomStream) -> int:
    """Where a random sentence but the first begins; the middle, if there is only one."""
    number = chance.below(max(1, len(breaks) - 1), 1)[0]
    if len(breaks) > 1:
        return int(breaks[1 + number])
    return len(ids) // 2


# --- patches of images ---


def masking_noise(seed: int, epoch: int, rows: Ids, patches: int) -> Tensor:
    """Uniform noise [B, patches]; the patches with the highest are hidden.

    Of (seed, epoch, row), so that a resumed run hides the same, in whichever batch a row is.
    """
    key = derive_seed(seed, _IMAGE_STREAM)
    noise = [RandomStream(key, epoch, int(row)).numbers(patches) for row in rows]
    return torch.from_numpy(np.stack(noise))
