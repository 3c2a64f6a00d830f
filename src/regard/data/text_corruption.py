"""Texts with something hidden, for models that learn to restore it. Pure functions of a row's tokens and its own chance.

`chance(seed, epoch, row)` is a stream of numbers for one row, so a resumed run hides the same tokens again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from regard.core.seeding import philox
from regard.data.batching import IGNORED
from regard.errors import DataError

Ids = NDArray[np.int64]


class Chance:
    """Numbers in [0, 1) made from raw bits, which numpy promises never to change."""

    def __init__(self, seed: int, epoch: int, row: int) -> None:
        self._bits = philox(seed, epoch, row)

    def numbers(self, count: int) -> NDArray[np.float64]:
        return (self._bits.random_raw(count) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def below(self, bound: int, count: int) -> Ids:
        """`count` whole numbers from 0 to `bound` − 1."""
        return (self.numbers(count) * bound).astype(np.int64)

    def some(self, bound: int, count: int) -> Ids:
        """`count` different whole numbers from 0 to `bound` − 1, in ascending order."""
        return np.sort(self.order(bound)[:count])

    def order(self, count: int) -> Ids:
        """The numbers from 0 to `count` − 1, shuffled."""
        return np.argsort(self.numbers(count), kind="stable")


@dataclass(frozen=True)
class Fate:
    """Of the tokens to be guessed, the shares that show the mask, and another token; the rest show themselves."""

    masked: float = 0.8
    swapped: float = 0.1


def mask(
    ids: Ids, chance: Chance, *, share: float, token: int, ordinary: Ids, fate: Fate
) -> tuple[Ids, Ids]:
    """BERT: `share` of the tokens are to be guessed; most of these show the mask `token`, some one of the `ordinary` tokens,
    some themselves. Returns what is seen, and the labels, IGNORED where nothing is asked."""
    chosen = chance.some(len(ids), max(1, round(share * len(ids))))
    drawn, others = chance.numbers(len(chosen)), ordinary[chance.below(len(ordinary), len(chosen))]
    seen, labels = ids.copy(), np.full_like(ids, IGNORED)
    labels[chosen] = ids[chosen]
    swapped = np.where(drawn < fate.masked + fate.swapped, others, ids[chosen])
    seen[chosen] = np.where(drawn < fate.masked, token, swapped)
    return seen, labels


def spans(
    ids: Ids, chance: Chance, *, share: float, mean: float, sentinels: Sequence[int]
) -> tuple[Ids, Ids]:
    """T5: spans of `mean` length, `share` of all tokens, each give way to a sentinel of its own. The target is every sentinel
    with what it stands for, and one more sentinel at the end (Figure 2 of the paper)."""
    hidden = min(max(1, round(share * len(ids))), len(ids) - 1)
    count = min(max(1, round(hidden / mean)), hidden, len(ids) - hidden)
    if count >= len(sentinels):
        raise DataError(
            f"{count} spans need {count + 1} sentinels, but the tokenizer has {len(sentinels)}",
            "use a shorter context, or longer spans",
        )
    # Kept and hidden stretches take turns, and a kept one comes first.
    kept_ends = np.append(chance.some(len(ids) - hidden - 1, count - 1) + 1, len(ids) - hidden)
    hidden_ends = np.append(chance.some(hidden - 1, count - 1) + 1, hidden)
    seen: list[int] = []
    target: list[int] = []
    place = 0
    for i in range(count):
        kept = kept_ends[i] - (kept_ends[i - 1] if i else 0)
        gone = hidden_ends[i] - (hidden_ends[i - 1] if i else 0)
        seen += [*ids[place : place + kept], sentinels[i]]
        target += [sentinels[i], *ids[place + kept : place + kept + gone]]
        place += kept + gone
    return np.array(seen, dtype=np.int64), np.array([*target, sentinels[count]], dtype=np.int64)


def restored(seen: Ids, target: Ids, sentinels: Sequence[int]) -> Ids:
    """The inverse of `spans`."""
    marks = set(sentinels)
    stretches: dict[int, list[int]] = {}
    for token in target.tolist():
        if token in marks:
            current = stretches.setdefault(token, [])
        else:
            current.append(token)
    text = [piece for token in seen.tolist() for piece in stretches.get(token, [token])]
    return np.array(text, dtype=np.int64)


@dataclass(frozen=True)
class Damage:
    """What `denoise` did: the sentences' new order, and the length of each span that one mask stands for."""

    order: Ids
    lengths: Ids


def denoise(
    ids: Ids, breaks: Ids, chance: Chance, *, share: float, mean: float, token: int
) -> tuple[Ids, Ids, Damage]:
    """BART: the sentences, which begin at `breaks`, in another order; then spans with lengths from Poisson(`mean`), `share` of
    all tokens, each give way to one mask `token`, empty ones too. The target is the text as it was."""
    order = chance.order(len(breaks))
    ends = np.append(breaks[1:], len(ids))
    mixed = np.concatenate([ids[breaks[i] : ends[i]] for i in order])
    lengths = _lengths(max(1, round(share * len(ids))), mean, chance)
    kept = len(ids) - int(lengths.sum())
    # Spans stand in different gaps between kept tokens, so they never touch.
    lengths = lengths[: kept + 1]
    gaps = dict(zip(chance.some(kept + 1, len(lengths)).tolist(), lengths.tolist(), strict=True))
    seen: list[int] = []
    place = 0
    for gap in range(kept + 1):
        if gap in gaps:
            seen.append(token)
            place += gaps[gap]
        if gap < kept:
            seen.append(int(mixed[place]))
            place += 1
    seen += mixed[place:].tolist()
    return np.array(seen, dtype=np.int64), ids.copy(), Damage(order, lengths)


def _lengths(total: int, mean: float, chance: Chance) -> Ids:
    """Lengths from Poisson(mean) that add up to `total`, at most as many as that."""
    cumulative = np.cumsum([math.exp(-mean) * mean**k / math.factorial(k) for k in range(64)])
    drawn = np.searchsorted(cumulative, chance.numbers(total), side="right")
    before = np.cumsum(drawn) - drawn
    drawn = np.minimum(drawn, total - before)[before < total]
    return drawn.astype(np.int64)


def pair(
    ids: Ids, breaks: Ids, other: Ids, other_breaks: Ids, chance: Chance, *, room: int
) -> tuple[Ids, Ids, int]:
    """BERT's next sentence: a row cut in two at the begin of a sentence, and half of the time the second part is taken from an
    `other` row instead. Returns both parts and whether the second is a stranger."""
    first = ids[: _cut(ids, breaks, chance)]
    stranger = int(chance.numbers(1)[0] < 0.5)
    cut = _cut(other, other_breaks, chance)
    second = other[cut:] if stranger else ids[len(first) :]
    return first, second[: room - len(first)], stranger


def _cut(ids: Ids, breaks: Ids, chance: Chance) -> int:
    """The begin of one of the sentences but the first; the middle, if there is only one."""
    number = chance.below(max(1, len(breaks) - 1), 1)[0]
    return int(breaks[1 + number]) if len(breaks) > 1 else len(ids) // 2
