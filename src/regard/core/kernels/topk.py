"""Top-k and log-sum-exp over a vocabulary, in one reading of the logits.

A row is cut into pieces, one for each program; a second kernel combines the pieces of a row. A
logit and its index are packed into one 64-bit key, so that the maximum of keys is the argmax.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr

_BLOCK = 2048
# Of several tokens the maximum is taken again and again: within one warp, that waits for nobody.
_TOPK_BLOCK = 1024

_LEAST = constexpr(-(2**63))  # the key of what was taken already, and of what is outside


# --- keys ---


@triton.jit
def _pack(x, index):
    """A key that orders by value, and among equals by index, the first highest.

    The bits of a float32 order like integers, once those of negative numbers are flipped.
    """
    bits = x.to(tl.int32, bitcast=True)
    ordered = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return (ordered.to(tl.int64) << 32) | (0x7FFFFFFF - index).to(tl.int64)


@triton.jit
def _unpack_value(key):
    ordered = (key >> 32).to(tl.int32)
    return tl.where(ordered < 0, ordered ^ 0x7FFFFFFF, ordered).to(tl.float32, bitcast=True)


@triton.jit
def _unpack_index(key):
    return 0x7FFFFFFF - (key & 0x7FFFFFFF).to(tl.int32)


# --- kernels ---


@triton.jit
def _piece_kernel(
    logits, stride, size, maxima, sums, keys, COUNT: constexpr, BLOCK: constexpr
):  # fmt: skip
    """Of one piece of a row: its maximum, Σ exp(x − maximum), and the keys of its top COUNT."""
    row = tl.program_id(0).to(tl.int64)
    piece = tl.program_id(1)
    pieces = tl.num_programs(1)
    columns = piece * BLOCK + tl.arange(0, BLOCK)
    valid = columns < size
    x = tl.load(logits + row * stride + columns, mask=valid, other=float("-inf")).to(tl.float32)
    maximum = tl.max(x, axis=0)
    tl.store(maxima + row * pieces + piece, maximum)
    safe = tl.where(maximum == float("-inf"), 0.0, maximum)  # −∞ − −∞ would be NaN
    tl.store(sums + row * pieces + piece, tl.sum(tl.exp(x - safe), axis=0))
    first_key = (row * pieces + piece) * COUNT
    key = tl.where(valid, _pack(x, columns), _LEAST)
    for i in range(COUNT):
        best = tl.max(key, axis=0)
        tl.store(keys + first_key + i, best)
        key = tl.where(key == best, _LEAST, key)


@triton.jit
def _logsumexp(maxima, sums, row, pieces, PIECES: constexpr):
    """log Σ exp of a row, from its pieces."""
    piece = tl.arange(0, PIECES)
    valid = piece < pieces
    maximum = tl.load(maxima + row * pieces + piece, mask=valid, other=float("-inf"))
    total = tl.load(sums + row * pieces + piece, mask=valid, other=0.0)
    highest = tl.max(maximum, axis=0)
    safe = tl.where(highest == float("-inf"), 0.0, highest)
    return safe + tl.log(tl.sum(tl.where(total > 0, total * tl.exp(maximum - safe), 0.0), axis=0))


@triton.jit
def _topk_kernel(
    maxima, sums, keys, normalizers, values, tokens, pieces, candidates,
    COUNT: constexpr, PIECES: constexpr, CANDIDATES: constexpr,
):  # fmt: skip
    """The top COUNT of one row, from the candidates of its pieces, and its log-sum-exp."""
    row = tl.program_id(0).to(tl.int64)
    tl.store(normalizers + row, _logsumexp(maxima, sums, row, pieces, PIECES))
    candidate = tl.arange(0, CANDIDATES)
    key_at = keys + row * candidates + candidate
    key = tl.load(key_at, mask=candidate < candidates, other=_LEAST)
    for i in range(COUNT):
        best = tl.max(key, axis=0)
        tl.store(values + row * COUNT + i, _unpack_value(best))
        tl.store(tokens + row * COUNT + i, _unpack_index(best).to(tl.int64))
        key = tl.where(key == best, _LEAST, key)


@triton.jit
def _greedy_kernel(
    maxima, sums, keys, t, limits, ended, totals, tokens, last, pieces, tokens_stride, end,
    PIECES: constexpr, EACH: constexpr,
):  # fmt: skip
    """The argmax of one row, with the bookkeeping of greedy decoding; see `take_best`."""
    row = tl.program_id(0).to(tl.int64)
    piece = tl.arange(0, PIECES)
    key = tl.load(keys + row * pieces + piece, mask=piece < pieces, other=_LEAST)
    best = tl.max(key, axis=0)
    log_probability = _unpack_value(best) - _logsumexp(maxima, sums, row, pieces, PIECES)
    step = tl.load(t + row * EACH)
    had_ended = tl.load(ended + row) != 0
    done = had_ended | (tl.load(limits + row) <= step)
    token = tl.where(done, end, _unpack_index(best)).to(tl.int64)
    tl.store(totals + row, tl.load(totals + row) + tl.where(done, 0.0, log_probability))
    tl.store(ended + row, had_ended | ((token == end) & (done == 0)))
    tl.store(tokens + row * tokens_stride + step, token)
    tl.store(last + row, tl.maximum(token, 0))  # −1 where there is no end token


# --- launches ---


def top(logits: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The top-k of logits [rows, V]: values and tokens [rows, count], and log Σ exp [rows]."""
    maxima, sums, keys = _pieces(logits, count)
    rows, pieces = maxima.shape
    values = torch.empty(rows, count, device=logits.device)
    tokens = torch.empty(rows, count, dtype=torch.long, device=logits.device)
    normalizers = torch.empty(rows, device=logits.device)
    candidates = pieces * count
    _topk_kernel[(rows,)](
        maxima, sums, keys, normalizers, values, tokens, pieces, candidates, COUNT=count,
        PIECES=triton.next_power_of_2(pieces), CANDIDATES=triton.next_power_of_2(candidates),
        num_warps=1,
    )  # fmt: skip
    return values, tokens, normalizers


def take_best(
    logits: Tensor,
    end: int,
    t: Tensor,
    limits: Tensor,
    ended: Tensor,
    totals: Tensor,
    tokens: Tensor,
    last: Tensor,
) -> None:
    """A step of greedy decoding: the argmax of logits [rows, V], written down in place.

    The token goes into tokens [rows, L] as the t-th, t being [1] or that of each row [rows], and
    into last [rows, 1]; its log-probability is added to `totals` [rows], and `ended` [rows] says
    whether it is the end token. Rows that had ended or reached their limit get the end token again,
    and nothing else of them changes.
    """
    maxima, sums, keys = _pieces(logits, 1)
    rows, pieces = maxima.shape
    _greedy_kernel[(rows,)](
        maxima, sums, keys, t, limits, ended.view(torch.uint8), totals, tokens, last, pieces,
        tokens.stride(0), end, PIECES=triton.next_power_of_2(pieces),
        EACH=int(len(t) > 1), num_warps=1,
    )  # fmt: skip


def _pieces(logits: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The maxima and sums [rows, pieces] of logits [rows, V], and keys [rows, pieces · count]."""
    rows, size = logits.shape
    block = _BLOCK if count == 1 else _TOPK_BLOCK
    pieces = triton.cdiv(size, block)
    maxima, sums = torch.empty(2, rows, pieces, device=logits.device)
    keys = torch.empty(rows, pieces * count, dtype=torch.long, device=logits.device)
    _piece_kernel[(rows, pieces)](
        logits, logits.stride(0), size, maxima, sums, keys, COUNT=count, BLOCK=block,
        num_warps=4 if count == 1 else 1,
    )  # fmt: skip
    return maxima, sums, keys
