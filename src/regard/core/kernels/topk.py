"""The best few of a vocabulary and the logarithm of the sum of all, in one reading of the scores."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 2048


_LEAST = tl.constexpr(-(2**63))  # what was taken, and what is not there


@triton.jit
def _key(x, place):
    """One number that orders by score, and among equals by place, the first highest."""
    bits = x.to(tl.int32, bitcast=True)
    ordered = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return (ordered.to(tl.int64) << 32) | (0x7FFFFFFF - place).to(tl.int64)


@triton.jit
def _score(key):
    ordered = (key >> 32).to(tl.int32)
    return tl.where(ordered < 0, ordered ^ 0x7FFFFFFF, ordered).to(tl.float32, bitcast=True)


@triton.jit
def _place(key):
    return 0x7FFFFFFF - (key & 0x7FFFFFFF).to(tl.int32)


@triton.jit
def _of_pieces(scores, stride, size, tops, sums, keys, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    """Of one piece of a row: its maximum, the sum of e^(x − maximum), and its best."""
    row, piece, pieces = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    columns = piece * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(scores + row * stride + columns, mask=columns < size, other=float("-inf")).to(
        tl.float32
    )
    top = tl.max(x, axis=0)
    tl.store(tops + row * pieces + piece, top)
    safe = tl.where(top == float("-inf"), 0.0, top)
    tl.store(sums + row * pieces + piece, tl.sum(tl.exp(x - safe), axis=0))
    where = (row * pieces + piece) * COUNT
    key = tl.where(columns < size, _key(x, columns), _LEAST)
    for i in range(COUNT):
        best = tl.max(key, axis=0)
        tl.store(keys + where + i, best)
        key = tl.where(key == best, _LEAST, key)


@triton.jit
def _normaliser(tops, sums, row, pieces, PIECES: tl.constexpr):
    """log Σ exp of a row, from its pieces."""
    piece = tl.arange(0, PIECES)
    top = tl.load(tops + row * pieces + piece, mask=piece < pieces, other=float("-inf"))
    total = tl.load(sums + row * pieces + piece, mask=piece < pieces, other=0.0)
    highest = tl.max(top, axis=0)
    safe = tl.where(highest == float("-inf"), 0.0, highest)
    return safe + tl.log(tl.sum(tl.where(total > 0, total * tl.exp(top - safe), 0.0), axis=0))


@triton.jit
def _of_rows(
    tops, sums, keys, normalisers, values, places, pieces, found,
    COUNT: tl.constexpr, PIECES: tl.constexpr, FOUND: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    tl.store(normalisers + row, _normaliser(tops, sums, row, pieces, PIECES))
    which = tl.arange(0, FOUND)
    key = tl.load(keys + row * found + which, mask=which < found, other=_LEAST)
    for i in range(COUNT):
        best = tl.max(key, axis=0)
        tl.store(values + row * COUNT + i, _score(best))
        tl.store(places + row * COUNT + i, _place(best).to(tl.int64))
        key = tl.where(key == best, _LEAST, key)


@triton.jit
def _best_of_rows(
    tops, sums, keys, t, limits, ended, gains, chosen, last, pieces, wide, end, PIECES: tl.constexpr
):  # fmt: skip
    """The best token of a row, written down with all that follows from it; see `take_best`."""
    row, piece = tl.program_id(0).to(tl.int64), tl.arange(0, PIECES)
    best = tl.max(tl.load(keys + row * pieces + piece, mask=piece < pieces, other=_LEAST), axis=0)
    gain = _score(best) - _normaliser(tops, sums, row, pieces, PIECES)
    now = tl.load(t)
    before = tl.load(ended + row) != 0
    done = before | (tl.load(limits + row) <= now)
    token = tl.where(done, end, _place(best)).to(tl.int64)
    tl.store(gains + row, tl.load(gains + row) + tl.where(done, 0.0, gain))
    tl.store(ended + row, before | ((token == end) & (done == 0)))
    tl.store(chosen + row * wide + now, token)
    tl.store(last + row, token)


def top(scores: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """scores [rows, V] → the best of each row and their places [rows, count], and log Σ exp [rows]."""
    (tops, sums, keys), (rows, pieces) = _pieces(scores, count)
    values = torch.empty(rows, count, device=scores.device)
    places = torch.empty(rows, count, dtype=torch.long, device=scores.device)
    normalisers = torch.empty(rows, device=scores.device)
    _of_rows[(rows,)](
        tops, sums, keys, normalisers, values, places, pieces, pieces * count, COUNT=count,
        PIECES=triton.next_power_of_2(pieces), FOUND=triton.next_power_of_2(pieces * count), num_warps=1,
    )  # fmt: skip
    return values, places, normalisers


def take_best(
    scores: Tensor,
    end: int,
    t: Tensor,
    limits: Tensor,
    ended: Tensor,
    gains: Tensor,
    chosen: Tensor,
    last: Tensor,
) -> None:
    """The best token of each row of scores [rows, V], in one kernel with its bookkeeping: as the t-th of chosen [rows, L] and
    in last [rows, 1], its log-probability in the sums `gains`, whether it is the `end` in `ended`; rows that had ended or
    reached their limit get the end again, and nothing else of them changes."""
    (tops, sums, keys), (rows, pieces) = _pieces(scores, 1)
    _best_of_rows[(rows,)](
        tops, sums, keys, t, limits, ended.view(torch.uint8), gains, chosen, last, pieces, chosen.stride(0), end,
        PIECES=triton.next_power_of_2(pieces), num_warps=1,
    )  # fmt: skip


def _pieces(scores: Tensor, count: int) -> tuple[tuple[Tensor, Tensor, Tensor], tuple[int, int]]:
    rows, size = scores.shape
    pieces = triton.cdiv(size, _BLOCK)
    tops, sums = torch.empty(2, rows, pieces, device=scores.device)
    keys = torch.empty(rows, pieces * count, dtype=torch.long, device=scores.device)
    _of_pieces[(rows, pieces)](
        scores, scores.stride(0), size, tops, sums, keys, COUNT=count, BLOCK=_BLOCK, num_warps=4
    )
    return (tops, sums, keys), (rows, pieces)
