"""The order of long epochs: every row once, the same from any position, shares of mixtures."""

from __future__ import annotations

import itertools
import tracemalloc
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data import batching, corpus, epoch_order
from regard.data.batching import BlockSampler, corpus_sampler
from regard.data.corpus import Corpus, Mixture, order_notes, row_chunks, write_chunks
from regard.data.epoch_order import RowOrder, RowSpan, mixture_weights, permuted_numbers
from regard.system.errors import DataError, SettingError

# --- the permutation ---


@given(st.integers(1, 3000), st.integers(0, 2**63))
def test_every_number_comes_once(size: int, key: int) -> None:
    permuted = permuted_numbers(np.arange(size), size, key)
    assert np.array_equal(np.sort(permuted), np.arange(size))


def test_positions_are_permuted_one_by_one() -> None:
    """Constant time a position: no other position is needed, however many there are."""
    permutation = partial(permuted_numbers, size=10**12, key=7)
    positions = np.array([0, 1, 10**6, 10**12 - 1])
    together = permutation(positions)
    alone = [int(permutation(np.array([position]))[0]) for position in positions]
    assert together.tolist() == alone
    assert together.min() >= 0
    assert together.max() < 10**12


def test_the_permutation_looks_random() -> None:
    """Fixed points, neighbours and displacement are those of random permutations."""
    size = 50_000
    permuted = permuted_numbers(np.arange(size), size, key=3)
    assert np.count_nonzero(permuted == np.arange(size)) < 10  # 1 is expected
    assert np.count_nonzero(np.diff(permuted) == 1) < 10
    # The mean distance of two random numbers is a third of the range.
    assert np.abs(permuted - np.arange(size)).mean() == pytest.approx(size / 3, rel=0.02)
    other = permuted_numbers(np.arange(size), size, key=4)
    assert np.count_nonzero(permuted == other) < 10


# --- the order of rows ---


@settings(max_examples=30)
@given(st.integers(1, 20_000), st.integers(0, 5), st.lists(st.integers(0, 20_000), max_size=5))
def test_an_epoch_has_each_row_once_however_it_is_cut(
    size: int, epoch: int, cuts: list[int]
) -> None:
    order = RowOrder([RowSpan(0, size)], seed=1)
    borders = [0, *sorted(min(cut, size) for cut in cuts), size]
    start = epoch * size
    pieces = [order(start + a, start + b) for a, b in itertools.pairwise(borders)]
    rows = np.concatenate(pieces)
    assert np.array_equal(np.sort(rows), np.arange(size))
    assert np.array_equal(rows, order(start, start + size))


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(1, 3000), st.floats(0.01, 10)), min_size=1, max_size=5))
def test_mixtures_have_their_shares_everywhere(corpora: list[tuple[int, float]]) -> None:
    weights = [weight for _, weight in corpora]
    rows = [count for count, _ in corpora]
    order = RowOrder(epoch_order.spans(rows, weights), seed=0)
    before = order.draws(0)
    for position in range(1, 400):
        draws = order.draws(position)
        assert sum(draws) == position
        # One more row of one corpus, none of the others.
        assert sorted(b - a for a, b in zip(before, draws, strict=True)) == [0] * (
            len(rows) - 1
        ) + [1]
        before = draws
    for count, weight in zip(before, weights, strict=True):
        assert abs(count - 399 * weight / sum(weights)) <= len(rows)


def test_a_small_corpus_comes_again_after_all_of_its_rows() -> None:
    order = RowOrder(epoch_order.spans([10, 5000], [0.5, 0.5]), seed=0)
    rows = order(0, 200)
    small = rows[rows < 10]
    assert len(small) == 100
    assert np.array_equal(np.bincount(small), np.full(10, 10))


def test_temperature_evens_out() -> None:
    rows = [1_000_000, 10_000]
    assert mixture_weights(rows, None, 1.0) == pytest.approx([100 / 101, 1 / 101])
    assert mixture_weights(rows, None, 2.0) == pytest.approx([10 / 11, 1 / 11])
    assert mixture_weights(rows, (3.0, 1.0), None) == [0.75, 0.25]
    with pytest.raises(SettingError, match="3 weights for 2 corpora"):
        mixture_weights(rows, (1.0, 1.0, 1.0), None)


# --- batches ---


@pytest.fixture
def long_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Corpus:
    """3,000 rows in blocks of 512, chunks of 16."""
    monkeypatch.setattr(batching, "BLOCK_ROWS", 512)
    monkeypatch.setattr(batching, "BATCHES_PER_BLOCK", 1)
    monkeypatch.setattr(epoch_order, "CHUNK_ROWS", 16)
    monkeypatch.setattr(batching, "CHUNK_ROWS", 16)
    monkeypatch.setattr(corpus, "MAX_LISTED_ROWS", 100)
    lengths = np.random.default_rng(0).integers(1, 30, size=3000)
    rows = (([i % 60_000] * length,) for i, length in enumerate(lengths.tolist()))
    write_chunks(
        row_chunks(rows, ["uint16"]),
        ["text"],
        ["uint16"],
        tmp_path / "c",
        about=lambda: order_notes({"": 3000}, None),
    )
    return Corpus.open(tmp_path / "c")


def test_blocks_have_each_row_once_within_the_budget(long_corpus: Corpus) -> None:
    sampler = corpus_sampler(long_corpus, 200, seed=5)
    assert isinstance(sampler, BlockSampler)
    seen = []
    for epoch, _, rows in sampler.iterate():
        if epoch == 1:
            break
        assert len(rows) * int(long_corpus.row_lengths(rows).max()) <= 200
        seen.append(rows)
    assert np.array_equal(np.sort(np.concatenate(seen)), np.arange(3000))
    assert sampler.batches_per_epoch() == pytest.approx(len(seen), rel=0.1)


def test_any_position_goes_on_as_the_uninterrupted_order(long_corpus: Corpus) -> None:
    sampler = corpus_sampler(long_corpus, 200, seed=5)
    batches = list(itertools.islice(sampler.iterate(), 700))  # into the second epoch
    assert batches[-1][0] >= 1
    for place in (0, 1, 57, 300, 650):
        epoch, index, _ = batches[place]
        again = corpus_sampler(long_corpus, 200, seed=5).iterate(epoch, index + 1)
        for (e, i, rows), (e2, i2, rows2) in zip(
            batches[place + 1 : place + 20], again, strict=False
        ):
            assert (e, i, rows.tolist()) == (e2, i2, rows2.tolist())


def test_a_position_between_batches_is_refused(long_corpus: Corpus) -> None:
    sampler = corpus_sampler(long_corpus, 200, seed=5)
    for index in (1, 4000):
        with pytest.raises(DataError, match=f"begins at {index}"):
            list(itertools.islice(sampler.iterate(0, index), 3))


def test_the_order_of_an_epoch_needs_no_memory_for_its_rows() -> None:
    """Ten times the rows, the same peak: lengths and order are those of one block."""
    peaks = []
    for size in (10**7, 10**8):
        order = RowOrder([RowSpan(0, size)], seed=0)
        tracemalloc.start()
        for start in (0, size // 2, size - 70_000):
            order(start, start + 65_536)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.05 * peaks[0]


def test_short_corpora_store_the_list_of_an_epoch(tmp_path: Path) -> None:
    rows = [([1] * (1 + i % 7),) for i in range(500)]
    write_chunks(row_chunks(rows, ["uint16"]), ["text"], ["uint16"], tmp_path / "c")
    corpus = Corpus.open(tmp_path / "c")
    sampler = corpus_sampler(corpus, 40, seed=3)
    expected = batching.batch_indices(corpus.lengths, 40, seed=3, epoch=0)
    for (_, _, rows_now), batch in zip(sampler.iterate(), expected, strict=False):
        assert rows_now.tolist() == batch.tolist()
    assert order_notes({"": 500}, None) == {}
    assert order_notes({"": 500}, Mixture()) == {}
    mixed = order_notes({"a": 400, "b": 100}, Mixture(temperature=1.0))
    assert mixed["order"] == "blocks"
    assert [one["weight"] for one in mixed["corpora"]] == [0.8, 0.2]
