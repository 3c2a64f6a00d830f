"""The best few of a vocabulary and the logarithm of the sum of all, in one reading of the scores."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 4096


@triton.jit
def _of_pieces(scores, stride, size, tops, sums, values, indices, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    """Of one piece of a row: its maximum, the sum of e^(x − maximum), and its best."""
    row, piece, pieces = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    columns = piece * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(scores + row * stride + columns, mask=columns < size, other=float("-inf")).to(tl.float32)
    top = tl.max(x, axis=0)
    tl.store(tops + row * pieces + piece, top)
    safe = tl.where(top == float("-inf"), 0.0, top)
    tl.store(sums + row * pieces + piece, tl.sum(tl.exp(x - safe), axis=0))
    where = (row * pieces + piece) * COUNT
    left = columns < size
    for i in range(COUNT):
        # What was taken is out of the way, even where only −∞ is left.
        best = tl.max(x, axis=0)
        index = tl.min(tl.where(left & (x == best), columns, 2147483647), axis=0)
        tl.store(values + where + i, best)
        tl.store(indices + where + i, index)
        left = left & (columns != index)
        x = tl.where(left, x, float("-inf"))


@triton.jit
def _of_rows(
    tops, sums, values, indices, normalisers, best_values, best_indices, pieces, found,
    COUNT: tl.constexpr, PIECES: tl.constexpr, FOUND: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    piece = tl.arange(0, PIECES)
    top = tl.load(tops + row * pieces + piece, mask=piece < pieces, other=float("-inf"))
    total = tl.load(sums + row * pieces + piece, mask=piece < pieces, other=0.0)
    highest = tl.max(top, axis=0)
    safe = tl.where(highest == float("-inf"), 0.0, highest)
    tl.store(normalisers + row, safe + tl.log(tl.sum(tl.where(total > 0, total * tl.exp(top - safe), 0.0), axis=0)))
    which = tl.arange(0, FOUND)
    left = which < found
    x = tl.load(values + row * found + which, mask=left, other=float("-inf"))
    index = tl.load(indices + row * found + which, mask=left, other=2147483647)
    for i in range(COUNT):
        best = tl.max(x, axis=0)
        chosen = tl.min(tl.where(left & (x == best), index, 2147483647), axis=0)
        tl.store(best_values + row * COUNT + i, best)
        tl.store(best_indices + row * COUNT + i, chosen.to(tl.int64))
        left = left & (index != chosen)
        x = tl.where(left, x, float("-inf"))


def top(scores: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """scores [rows, V] → the best of each row and their places [rows, count], and log Σ exp [rows]."""
    rows, size = scores.shape
    pieces = triton.cdiv(size, _BLOCK)
    tops, sums = torch.empty(2, rows, pieces, device=scores.device)
    values = torch.empty(rows, pieces * count, device=scores.device)
    indices = torch.empty(rows, pieces * count, dtype=torch.int32, device=scores.device)
    _of_pieces[(rows, pieces)](
        scores, scores.stride(0), size, tops, sums, values, indices, COUNT=count, BLOCK=_BLOCK, num_warps=8
    )
    best_values = torch.empty(rows, count, device=scores.device)
    best_indices = torch.empty(rows, count, dtype=torch.long, device=scores.device)
    normalisers = torch.empty(rows, device=scores.device)
    _of_rows[(rows,)](
        tops, sums, values, indices, normalisers, best_values, best_indices, pieces, pieces * count, COUNT=count,
        PIECES=triton.next_power_of_2(pieces), FOUND=triton.next_power_of_2(pieces * count), num_warps=1,
    )  # fmt: skip
    return best_values, best_indices, normalisers
