"""Padding: rows come back from the padded tensor, on either side and at any width."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.data.padding import pad_rows

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
