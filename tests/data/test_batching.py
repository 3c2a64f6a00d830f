"""Batches: every row once, the budget held, the order a pure function, the tensors those of a plain
loop.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from regard.data.batching import (
    Batch,
    BatchSampler,
    batch_indices,
    collate,
    prefetch,
)
from regard.data.corpus import Column, Corpus
from regard.system.errors import DataError

Lengths = NDArray[np.int32]

some_lengths = st.integers(1, 3).flatmap(
    lambda columns: st.lists(
        st.lists(st.integers(0, 40), min_size=columns, max_size=columns), min_size=1, max_size=120
    ).map(lambda rows: np.array(rows, dtype=np.int32))
)


def natural(rows: int) -> Lengths:
    """Lengths as translations have them: log-normal, and correlated between the sides."""
    random = np.random.default_rng(0)
    source = np.exp(random.normal(3.1, 0.6, rows))
    target = source * np.exp(random.normal(0.05, 0.2, rows))
    return np.stack([source, target], axis=1).clip(2, 200).astype(np.int32)


def same(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(
        np.array_equal(a, b) for a, b in zip(one, other, strict=True)
    )


@settings(deadline=None)
@given(
    lengths=some_lengths,
    budget=st.integers(1, 300),
    epoch=st.integers(0, 5),
    shuffle=st.booleans(),
    multiple=st.sampled_from([1, 2, 8]),
    max_rows=st.one_of(st.none(), st.integers(1, 9)),
)
def test_every_row_once_within_the_budget(
    lengths: Lengths, budget: int, epoch: int, shuffle: bool, multiple: int, max_rows: int | None
) -> None:
    def batches() -> list[NDArray[np.int64]]:
        return batch_indices(
            lengths,
            budget,
            seed=3,
            epoch=epoch,
            shuffle=shuffle,
            multiple=multiple,
            max_rows=max_rows,
        )

    planned = batches()
    assert sorted(np.concatenate(planned).tolist()) == list(range(len(lengths)))
    for rows in planned:
        widest = -(-int(lengths[rows].max()) // multiple) * multiple
        assert len(rows) == 1 or len(rows) * widest <= budget
        assert max_rows is None or len(rows) <= max_rows
    assert same(planned, batches())


@pytest.mark.parametrize("budget", [64, 500, 4096])
def test_the_budget_holds_where_strips_meet(budget: int) -> None:
    lengths = natural(20_000)
    for rows in batch_indices(lengths, budget, seed=0, epoch=0):
        assert len(rows) == 1 or len(rows) * lengths[rows].max() <= budget


def test_batches_are_full() -> None:
    # 100 rows of 10 at a budget of 100: ten batches, not eleven.
    assert [len(rows) for rows in batch_indices(np.full((100, 2), 10), 100, seed=0, epoch=0)] == [
        10
    ] * 10


def test_lengths_are_not_changed() -> None:
    lengths = natural(500)
    kept = lengths.copy()
    batch_indices(lengths, 500, seed=0, epoch=0, multiple=8)
    assert np.array_equal(lengths, kept)


def test_epochs_and_seeds_differ_in_order_and_in_company() -> None:
    lengths = natural(5000)
    plans = {
        (seed, epoch): batch_indices(lengths, 2000, seed=seed, epoch=epoch)
        for seed in (1, 2)
        for epoch in (0, 1)
    }
    company = {
        key: {frozenset(rows.tolist()) for rows in batches} for key, batches in plans.items()
    }
    keys = list(plans)
    for i, one in enumerate(keys):
        for other in keys[i + 1 :]:
            shared = company[one] & company[other]
            assert len(shared) < 0.2 * len(plans[one])
            assert not same(plans[one], plans[other])


def test_the_order_of_batches_does_not_follow_length() -> None:
    lengths = natural(5000)
    means = [lengths[rows].mean() for rows in batch_indices(lengths, 2000, seed=0, epoch=0)]
    assert abs(np.corrcoef(means, np.arange(len(means)))[0, 1]) < 0.4


def test_without_shuffling_nothing_is_left_to_chance() -> None:
    lengths = natural(300)
    one = batch_indices(lengths, 500, seed=1, epoch=1, shuffle=False)
    assert same(one, batch_indices(lengths, 500, seed=2, epoch=9, shuffle=False))
    assert not same(one, batch_indices(lengths, 500, seed=1, epoch=1))


def test_the_order_is_pinned() -> None:
    # Philox's bits are fixed for good; another order here means that no run in progress can be
    # continued.
    lengths = np.array([[3, 4], [9, 2], [5, 5], [1, 1], [4, 4], [9, 9], [2, 3]])
    assert [rows.tolist() for rows in batch_indices(lengths, 12, seed=7, epoch=1)] == [
        [5],
        [4, 0, 6],
        [1],
        [3],
        [2],
    ]


@pytest.mark.parametrize(("rows", "most"), [(100_000, 0.05), (400_000, 0.025)])
def test_little_padding_on_natural_lengths(rows: int, most: float) -> None:
    lengths = natural(rows)
    batches = batch_indices(lengths, 4096, seed=0, epoch=0)
    positions = sum(len(rows) * int(lengths[rows].max(axis=0).sum()) for rows in batches)
    assert 1 - lengths.sum() / positions < most
    # And the batches are nearly as few as the budget allows.
    assert len(batches) < 1.1 * lengths.max(axis=1).sum() / 4096


def corpus_of(*sides: list[list[int]]) -> Corpus:
    columns = {}
    for name, rows in zip(("source", "target"), sides, strict=True):
        offsets = np.cumsum([0, *map(len, rows)])
        columns[name] = Column(np.array([i for row in rows for i in row], dtype=np.uint16), offsets)
    return Corpus(Path(), columns, "", {})


def plainly(
    source: list[list[int]], target: list[list[int]], multiple: int
) -> tuple[list[list[Any]], ...]:
    """source, target_in, target_out, source_padding, one token at a time: pads are 50 and 60, the
    start is 70.
    """

    def width(rows: list[list[int]]) -> int:
        longest = max(1, *map(len, rows))
        while longest % multiple:
            longest += 1
        return longest

    out: tuple[list[list[Any]], ...] = ([], [], [], [])
    for one, other in zip(source, target, strict=True):
        spare, other_spare = width(source) - len(one), width(target) - len(other)
        out[0].append(one + [50] * spare)
        out[1].append([70] + other[:-1] + [60] * other_spare)
        out[2].append(other + [-100] * other_spare)
        out[3].append([True] * len(one) + [False] * spare)
    return out


sides = st.lists(
    st.tuples(
        st.lists(st.integers(0, 65_535), min_size=1, max_size=7),
        st.lists(st.integers(0, 65_535), min_size=1, max_size=7),
    ),
    min_size=1,
    max_size=8,
)


@settings(deadline=None)
@given(pairs=sides, multiple=st.sampled_from([1, 4]), data=st.data())
def test_collate_equals_a_plain_loop(
    pairs: list[tuple[list[int], list[int]]], multiple: int, data: st.DataObject
) -> None:
    chosen = data.draw(st.lists(st.integers(0, len(pairs) - 1), min_size=1, max_size=8))
    corpus = corpus_of([one for one, _ in pairs], [other for _, other in pairs])
    batch = collate(
        corpus, np.array(chosen), source_pad=50, target_pad=60, start=70, multiple=multiple
    )
    source, target = [pairs[i][0] for i in chosen], [pairs[i][1] for i in chosen]
    wanted = plainly(source, target, multiple)
    assert batch.tensors["source"].tolist() == wanted[0]
    assert batch.tensors["target"].tolist() == wanted[1]
    assert batch.tensors["labels"].tolist() == wanted[2]
    if all(cell for row in wanted[3] for cell in row):
        assert "padding_mask" not in batch.tensors
    else:
        assert batch.tensors["padding_mask"].tolist() == wanted[3]
        assert batch.tensors["padding_mask"].dtype == torch.bool
    assert batch.tokens == sum(map(len, target))
    assert batch.rows.tolist() == chosen
    assert {t.dtype for name, t in batch.tensors.items() if name != "padding_mask"} == {torch.int64}


def test_batches_move_whole() -> None:
    corpus = corpus_of([[1, 2], [3]], [[4], [5, 6]])
    padded = collate(corpus, np.array([0, 1]), source_pad=0, target_pad=0, start=1)
    whole = collate(corpus, np.array([0]), source_pad=0, target_pad=0, start=1)
    for batch in (padded, whole):
        moved = batch.to("meta", non_blocking=True)
        assert {t.device.type for t in tensors(moved)} == {"meta"}
        assert [t.shape for t in tensors(moved)] == [t.shape for t in tensors(batch)]
        pinned = batch.pin()
        assert all(torch.equal(a, b) for a, b in zip(tensors(pinned), tensors(batch), strict=True))
        assert all(t.is_pinned() for t in tensors(pinned)) == torch.cuda.is_available()
    assert (len(tensors(padded)), len(tensors(whole))) == (4, 3)


def tensors(batch: Batch) -> list[torch.Tensor]:
    return list(batch.tensors.values())


def test_filled_batches_have_few_shapes_and_the_same_rows() -> None:
    """Empty rows up to the budget: one height for one width, nothing that counts, and something to
    look at.
    """
    lengths = natural(300)
    corpus = corpus_of([[1] * a for a, _ in lengths], [[2] * b for _, b in lengths])
    shapes = set()
    for rows in batch_indices(corpus.lengths, 600, seed=1, epoch=0, multiple=8):
        padding_side = {"source_pad": 0, "target_pad": 0, "start": 3, "multiple": 8}
        bare, filled = (
            collate(corpus, rows, **padding_side),
            collate(corpus, rows, **padding_side, budget=600),
        )
        assert filled.tokens == bare.tokens
        for name in ("source", "target", "labels"):
            assert torch.equal(filled.tensors[name][: len(rows)], bare.tensors[name])
        assert (filled.tensors["labels"][len(rows) :] < 0).all()
        if "padding_mask" in filled.tensors:
            assert filled.tensors["padding_mask"].any(dim=1).all()
            assert not filled.tensors["padding_mask"][len(rows) :, 1:].any()
        source, target = filled.tensors["source"], filled.tensors["target"]
        width = max(source.shape[1], target.shape[1])
        assert source.shape[0] == max(len(rows), 600 // width)
        shapes.add((source.shape, target.shape))
    assert len(shapes) <= 20


def test_an_order_continues_from_any_position() -> None:
    lengths = natural(200)
    order = BatchSampler(lengths, 500, seed=5, multiple=4)
    per_epoch = len(order.batches(0))
    stream = list(islice(order.iterate(), 3 * per_epoch))
    for start in (0, 1, per_epoch - 1, per_epoch, per_epoch + 3):
        epoch, index, _ = stream[start]
        again = list(
            islice(BatchSampler(lengths, 500, seed=5, multiple=4).iterate(epoch, index), 6)
        )
        assert [item[:2] for item in again] == [item[:2] for item in stream[start : start + 6]]
        assert same([item[2] for item in again], [item[2] for item in stream[start : start + 6]])
    assert same(order.batches(2), batch_indices(lengths, 500, seed=5, epoch=2, multiple=4))


def test_the_end_of_an_epoch_is_the_start_of_the_next() -> None:
    order = BatchSampler(natural(50), 300, seed=0)
    end = len(order.batches(3))
    assert next(order.iterate(3, end))[:2] == (4, 0)
    for index in (end + 1, -1):
        with pytest.raises(DataError, match=f"no batch of epoch 3 begins at {index}"):
            next(order.iterate(3, index))


def test_prefetch_gives_everything_in_order() -> None:
    for depth in (1, 2, 7):
        assert list(prefetch(iter(range(100)), depth)) == list(range(100))
    assert list(prefetch(iter([None, None]))) == [None, None]
    assert list(prefetch(iter([]))) == []


def test_prefetch_runs_ahead_but_not_far() -> None:
    made: list[int] = []

    def numbers() -> Iterator[int]:
        for i in range(100):
            made.append(i)
            yield i

    ahead = prefetch(numbers(), depth=3)
    assert next(ahead) == 0
    wait_until(lambda: len(made) == 5)  # the one given, three in the queue, one in hand
    time.sleep(0.02)
    assert len(made) == 5
    ahead.close()


def test_prefetch_passes_exceptions_on() -> None:
    def breaking() -> Iterator[int]:
        yield 1
        raise DataError("broken", "mend it")

    ahead = prefetch(breaking())
    assert next(ahead) == 1
    with pytest.raises(DataError, match="broken"):
        next(ahead)
    assert workers() == 0


@pytest.mark.parametrize("how", ["close", "drop"])
@pytest.mark.parametrize("depth", [1, 2, 50])
def test_prefetch_leaves_no_thread(how: str, depth: int) -> None:
    closed = threading.Event()

    def endless() -> Iterator[int]:
        try:
            while True:
                yield 1
        finally:
            closed.set()

    ahead = prefetch(endless(), depth)
    assert [next(ahead) for _ in range(5)] == [1] * 5
    assert workers() == 1
    if how == "close":
        ahead.close()
    else:
        del ahead
        gc.collect()
    assert workers() == 0
    assert closed.is_set()


def workers() -> int:
    return sum(thread.name == "prefetch" for thread in threading.enumerate())


def wait_until(true: Any) -> None:
    for _ in range(500):
        if true():
            return
        time.sleep(0.01)
