"""Padding: rows of any integer or floating-point type as one tensor and its mask."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from regard.data.padding import pad_rows
from regard.models.memory_network import pad_stories


@pytest.mark.parametrize("side", ["right", "left"])
def test_the_mask_says_where_the_rows_are(side: str) -> None:
    rows = [[4, 5, 6], [], [7]]
    ids, mask = pad_rows(rows, -1, side=side, pad_to_multiple_of=2)
    assert ids.shape == (3, 4)
    assert ids.dtype == torch.int64
    assert [row[kept].tolist() for row, kept in zip(ids, mask, strict=True)] == rows
    assert (ids[~mask] == -1).all()
    assert mask[0].tolist() == ([1, 1, 1, 0] if side == "right" else [0, 1, 1, 1])


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
