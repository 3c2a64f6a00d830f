"""What is hidden, how much of it, and that nothing else is lost."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.corruption import (
    MaskingRates,
    RandomStream,
    corrupt_spans,
    denoise,
    mask_tokens,
    sentence_pair,
)
from regard.data.padding import IGNORED
from regard.system.errors import DataError

MASK, SENTINELS = 4, list(range(900, 1000))
rows = st.lists(st.integers(10, 800), min_size=4, max_size=300).map(
    lambda ids: np.array(ids, dtype=np.int64)
)


def breaks_of(ids: np.ndarray, seed: int) -> np.ndarray:
    count = 1 + seed % min(6, len(ids))
    return np.append(0, RandomStream(seed, 9, 9).some(len(ids) - 1, count - 1) + 1).astype(np.int64)


def test_chance_is_a_pure_function_of_its_place() -> None:
    drawn = {
        tuple(RandomStream(s, e, r).numbers(3))
        for s in range(3)
        for e in range(3)
        for r in range(3)
    }
    assert len(drawn) == 27
    assert (RandomStream(1, 2, 3).numbers(4) == RandomStream(1, 2, 3).numbers(4)).all()
    many = RandomStream(5, 0, 0).numbers(20_000)
    assert many.min() >= 0
    assert many.max() < 1
    assert abs(many.mean() - 0.5) < 0.01


@given(rows, st.integers(0, 50))
def test_masks_ask_only_where_something_is_hidden(ids: np.ndarray, row: int) -> None:
    seen, labels = mask_tokens(
        ids,
        RandomStream(1, 0, row),
        share=0.15,
        token=MASK,
        ordinary=np.arange(10, 801),
        rates=MaskingRates(),
    )
    asked = labels != IGNORED
    assert asked.sum() == max(1, round(0.15 * len(ids)))
    assert (labels[asked] == ids[asked]).all()
    assert (seen[~asked] == ids[~asked]).all()


def test_masks_are_80_10_10() -> None:
    """Of 30,000 guesses: 3 standard deviations of each share; a random token hits the right one by
    chance in 1 of 791.
    """
    counts = np.zeros(3)
    for row in range(1000):
        ids = np.random.default_rng(row).integers(10, 801, 200)
        seen, labels = mask_tokens(
            ids,
            RandomStream(7, 1, row),
            share=0.15,
            token=MASK,
            ordinary=np.arange(10, 801),
            rates=MaskingRates(),
        )
        asked = labels != IGNORED
        shown, truth = seen[asked], ids[asked]
        counts += [
            (shown == MASK).sum(),
            ((shown != MASK) & (shown != truth)).sum(),
            (shown == truth).sum(),
        ]
    total = counts.sum()
    for count, share in zip(counts, (0.8, 0.1, 0.1), strict=True):
        assert abs(count / total - share) < 3 * (share * (1 - share) / total) ** 0.5 + 0.1 / 791


@given(rows, st.integers(0, 50), st.floats(0.05, 0.6), st.floats(1.0, 6.0))
def test_spans_can_be_undone(ids: np.ndarray, row: int, share: float, mean: float) -> None:
    sentinels = list(range(2000, 2400))
    seen, target = corrupt_spans(
        ids, RandomStream(3, 0, row), share=share, mean=mean, sentinels=sentinels
    )
    assert (restore_spans(seen, target, sentinels) == ids).all()
    hidden = min(max(1, round(share * len(ids))), len(ids) - 1)
    count = int(np.isin(seen, sentinels).sum())
    assert len(seen) == len(ids) - hidden + count
    assert len(target) == hidden + count + 1
    used = seen[np.isin(seen, sentinels)]
    assert (used == sentinels[:count]).all()
    assert target[0] == sentinels[0]
    assert target[-1] == sentinels[count]


def test_spans_have_the_share_and_length_asked_for() -> None:
    ids = np.arange(10, 522)
    starts = np.zeros(512)
    for row in range(400):
        seen, target = corrupt_spans(
            ids, RandomStream(1, 0, row), share=0.15, mean=3.0, sentinels=SENTINELS
        )
        assert (len(target) - 27, np.isin(seen, SENTINELS).sum()) == (
            77,
            26,
        )  # 15 % of 512, in spans of 3
        starts[np.setdiff1d(ids, seen) - 10] += 1
    assert abs(starts[100:400].mean() / 400 - 0.15) < 0.01  # everywhere alike
    with pytest.raises(DataError, match="sentinels"):
        corrupt_spans(ids, RandomStream(1, 0, 0), share=0.5, mean=1.0, sentinels=SENTINELS)


@given(rows, st.integers(0, 50), st.floats(0.05, 0.6))
def test_denoising_keeps_all_that_no_mask_stands_for(
    ids: np.ndarray, row: int, share: float
) -> None:
    breaks = breaks_of(ids, row)
    seen, target, damage = denoise(
        ids, breaks, RandomStream(2, 0, row), share=share, mean=3.0, token=MASK
    )
    assert (target == ids).all()
    assert sorted(damage.order) == list(range(len(breaks)))
    sentences = np.split(ids, breaks[1:])
    mixed = np.concatenate([sentences[i] for i in damage.order]).tolist()
    # Put back what each mask stands for, and the sentences are whole again.
    place = 0
    whole: list[int] = []
    lengths = iter(damage.lengths.tolist())
    for token in seen.tolist():
        step = next(lengths) if token == MASK else 1
        whole += mixed[place : place + step] if token == MASK else [token]
        place += step
    assert whole == mixed
    assert next(lengths, None) is None
    assert damage.lengths.sum() <= max(1, round(share * len(ids)))
    # One mask for each span; an empty span adds one token.
    assert len(seen) == len(ids) - damage.lengths.sum() + len(damage.lengths)


def test_spans_of_denoising_are_poisson() -> None:
    drawn = []
    for row in range(300):
        ids = np.arange(10, 410)
        _, _, damage = denoise(
            ids, np.array([0]), RandomStream(4, 0, row), share=0.3, mean=3.0, token=MASK
        )
        assert damage.lengths.sum() == 120
        drawn += damage.lengths[:-1].tolist()  # the last is cut to fit
    lengths = np.array(drawn)
    assert abs(lengths.mean() - 3.0) < 0.1
    assert abs((lengths == 0).mean() - np.exp(-3)) < 0.01


@given(rows, rows, st.integers(0, 50))
def test_pairs_follow_or_are_strangers(ids: np.ndarray, other: np.ndarray, row: int) -> None:
    first, second, stranger = sentence_pair(
        ids, breaks_of(ids, row), other, breaks_of(other, row), RandomStream(1, 0, row), room=300
    )
    assert 0 < len(first) < len(ids)
    assert len(second) > 0
    assert (first == ids[: len(first)]).all()
    whole = other if stranger else ids
    assert (second == whole[-len(second) :]).all() or len(first) + len(second) == 300
    if not stranger:
        assert len(first) + len(second) == len(ids)


def test_half_of_the_pairs_are_strangers() -> None:
    ids = np.arange(10, 40)
    breaks = np.array([0, 10, 20])
    drawn = [
        sentence_pair(ids, breaks, ids, breaks, RandomStream(1, e, r), room=30)[2]
        for e in range(10)
        for r in range(100)
    ]
    assert abs(np.mean(drawn) - 0.5) < 0.05


def restore_spans(corrupted: np.ndarray, target: np.ndarray, sentinels: list[int]) -> np.ndarray:
    """The inverse of span corruption."""
    markers = set(sentinels)
    hidden_spans: dict[int, list[int]] = {}
    for token in target.tolist():
        if token in markers:
            span = hidden_spans.setdefault(token, [])
        else:
            span.append(token)
    text = [piece for token in corrupted.tolist() for piece in hidden_spans.get(token, [token])]
    return np.array(text, dtype=np.int64)
