"""Tokenized labelled examples on disk are those in memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from regard.data.batching import BatchSampler, BlockSampler, corpus_sampler
from regard.training.data import text_sources as module
from regard.training.data.text_sources import Row, StoredRows, stored_rows


def tokenize(examples: Sequence[int]) -> list[Row]:
    """Rows of other lengths; every fifth example makes two."""
    rows = []
    for number in examples:
        ids = list(range(number % 7 + 1))
        rows += [Row(ids, [i % 2 for i in ids], [-100, number])] * (1 + (number % 5 == 0))
    return rows


def write(folder: Path, examples: Any, **changes: Any) -> StoredRows:
    options: dict[str, Any] = {"max_length": 7, "id_type": "uint16", "workers": 1} | changes
    return stored_rows(folder, examples, options.pop("tokenize", tokenize), **options)


def rows_of(stored: StoredRows) -> list[Row]:
    return [stored[i] for i in range(len(stored))]


@pytest.mark.parametrize("workers", [1, 2])
def test_rows_are_those_of_the_list(
    tmp_path: Path, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK", 10)
    stored = write(tmp_path / "rows", iter(range(103)), workers=workers)
    expected = tokenize(range(103))
    assert rows_of(stored) == expected
    assert stored[-1] == expected[-1]
    assert stored.examples == 103
    assert stored.truncated == sum(len(row.ids) == 7 for row in expected)
    # Opened again, nothing is read or tokenized; another length is tokenized anew.
    assert rows_of(write(tmp_path / "rows", iter([]))) == expected
    assert len(write(tmp_path / "rows", iter(range(3)), max_length=9)) == 4


def test_numbers_are_labels_too(tmp_path: Path) -> None:
    rated = [Row([1], [0], [0.1]), Row([2, 3], [0, 0], [-2.5])]
    stored = write(tmp_path / "rows", rated, tokenize=list)
    labels = [row.labels[0] for row in rows_of(stored)]
    assert labels == [float(np.float32(0.1)), -2.5]


def test_batches_are_those_of_the_lengths(tmp_path: Path) -> None:
    stored = write(tmp_path / "rows", range(200))
    lengths = np.array([[len(row.ids)] for row in rows_of(stored)])
    ours = corpus_sampler(stored.corpus, 40, seed=3, lengths=stored.lengths)
    theirs = BatchSampler(lengths, 40, seed=3)
    assert isinstance(ours, BatchSampler)
    for one, other in zip(ours.batches(1), theirs.batches(1), strict=True):
        np.testing.assert_array_equal(one, other)


def test_many_rows_are_shuffled_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.data.corpus.MAX_LISTED_ROWS", 100)
    stored = write(tmp_path / "rows", range(200))
    assert isinstance(corpus_sampler(stored.corpus, 40, seed=3), BlockSampler)
