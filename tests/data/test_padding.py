"""Padding: rows come back from the padded tensor, on either side and at any width."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.data.padding import pad_rows
from regard.models.memory_network import pad_stories

ROWS = st.lists(st.lists(st.integers(0, 9), max_size=7), min_size=1, max_size=5)


@pytest.mark.parametrize("side", ["left", "right"])
@given(rows=ROWS, min_width=st.integers(0, 9), multiple=st.integers(1, 5))
def test_rows_come_back(side: str, rows: list[list[int]], min_width: int, multiple: int) -> None:
    tokens, mask = pad_rows(rows, -1, side=side, min_width=min_width, pad_to_multiple_of=multiple)
    assert tokens.shape == mask.shape
    assert tokens.shape[1] % multiple == 0
    longest = max(min_width, *(len(row) for row in rows), 0)
    assert longest <= tokens.shape[1] < longest + multiple
    for ids, real, row in zip(tokens, mask, rows, strict=True):
        assert ids[real].tolist() == row
        assert (ids[~real] == -1).all()
        padding = real.tolist() if side == "left" else real.tolist()[::-1]
        assert padding == sorted(padding)


def test_arrays_and_lists_pad_alike() -> None:
    rows = [[1, 2, 3], [4]]
    arrays = [np.array(row, dtype=np.uint16) for row in rows]
    for ours, theirs in zip(pad_rows(rows, 0), pad_rows(arrays, 0), strict=True):
        assert torch.equal(ours, theirs)
        assert ours.dtype == theirs.dtype


def test_samples_keep_their_type_and_ids_become_int64() -> None:
    samples = [np.array([0.5, -0.25, 1.0], dtype=np.float32), np.array([0.1], dtype=np.float32)]
    padded, mask = pad_rows(samples, 0.0)
    assert padded.dtype == torch.float32
    assert torch.equal(padded[mask], torch.from_numpy(np.concatenate(samples)))
    assert (padded[~mask] == 0).all()
    assert pad_rows([np.array([1, 2], dtype=np.uint16)], 0)[0].dtype == torch.int64
    assert pad_rows([[], []], 0)[0].shape == (2, 0)


def test_the_question_stands_in_the_last_row_of_every_story() -> None:
    stories = [[[1, 2], [3], [4, 5]], [[6], [7, 8, 9]]]
    padded = pad_stories(stories)  # [B, N + 1, S]
    assert padded.tolist() == [
        [[1, 2, -1], [3, -1, -1], [4, 5, -1]],
        [[6, -1, -1], [-1, -1, -1], [7, 8, 9]],
    ]
    assert pad_stories(stories, 4).shape == (2, 5, 4)
