"""Kernels for the linear layers, norms and embeddings of one decoding step of few rows."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language import constexpr

from regard.core.kernels.dependent_launch import launch_next, wait_for_previous


@triton.jit
def _activation(x, KIND: constexpr):
    if KIND == "relu":
        x = tl.maximum(x, 0.0)
    if KIND == "gelu":
        x = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))  # √½
    if KIND == "gelu_tanh":
        # √(2 / π), and the cubic term of Hendrycks and Gimpel 2016
        inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
        x = x * tl.sigmoid(2.0 * inner)  # (1 + tanh z) / 2 = σ(2 z)
    if KIND == "quick_gelu":
        x = x * tl.sigmoid(1.702 * x)
    if KIND == "silu":
        x = x * tl.sigmoid(x)
    if KIND == "tanh":
        x = 2.0 * tl.sigmoid(2.0 * x) - 1.0  # tanh x = 2 σ(2 x) − 1
    return x


@triton.jit
def _load(at, valid):
    """The values at these places in float32, zeros where they are not valid."""
    return tl.load(at, mask=valid, other=0.0).to(tl.float32)


@triton.jit
def _norm_statistics(row, valid, K, eps, NORM: constexpr):
    """Mean (0 for RMSNorm) and inverse standard deviation of a row of K numbers, zeros beside
    them."""
    mean = tl.full((), 0.0, tl.float32)
    if NORM == "layer":
        mean = tl.sum(row, axis=0) / K
        row = tl.where(valid, row - mean, 0.0)
    return mean, 1.0 / tl.sqrt(tl.sum(row * row, axis=0) / K + eps)


@triton.jit
def _row_or_zeros(row, at, valid, PRESENT: constexpr):
    """The values of a row at these indices, in float32; zeros if there is no row."""
    values = tl.zeros_like(at).to(tl.float32)
    if PRESENT:
        values = _load(row + at, valid)
    return values


@triton.jit
def linear_one_row(
    x, weight, bias, gain, shift, residual, normed, out, N, K, weight_stride, eps, offset,
    NORM: constexpr, ACTIVATION: constexpr, GATED: constexpr, BIAS: constexpr,
    SHIFT: constexpr, RESIDUAL: constexpr, KEEP: constexpr, ROW: constexpr, BN: constexpr,
    BK: constexpr, PDL: constexpr,
):  # fmt: skip
    """x [K] → residual + activation(norm(x) Wᵀ + b) [N], BN outputs by each program.

    Reading the weights is all the work. Each block of them is loaded one iteration before it is
    needed, and the first of them before x is there. ROW is K, rounded up to a power of two; where
    BK is that, the first block is all of them, and the norm is of the x that is multiplied. KEEP
    writes norm(x) to `normed`.
    """
    launch_next(PDL)
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    n_valid = n < N
    weight_at = weight + n[:, None].to(tl.int64) * weight_stride + k[None, :]  # [BN, BK]
    first_tile = n_valid[:, None] & (k < K)[None, :]
    w = tl.load(weight_at, mask=first_tile, other=0.0, eviction_policy="evict_first")
    gate_w = w
    if GATED:
        # The second half of the weight's rows, which the activated first half multiplies.
        gate_at = weight_at + N.to(tl.int64) * weight_stride
        gate_w = tl.load(gate_at, mask=first_tile, other=0.0, eviction_policy="evict_first")
    b = _row_or_zeros(bias, n, n_valid, BIAS)
    g = tl.zeros([BK], dtype=tl.float32)
    s = tl.zeros([BK], dtype=tl.float32)
    if NORM != "none":
        g = _load(gain + k, k < K)
        if SHIFT:
            s = _load(shift + k, k < K)
    wait_for_previous(PDL)
    mean = 0.0
    scale = 1.0
    x_part = _load(x + k, k < K)
    if NORM != "none":
        column = tl.arange(0, ROW)
        row = x_part if BK == ROW else _load(x + column, column < K)
        mean, scale = _norm_statistics(row, column < K, K, eps, NORM)
    is_first = tl.program_id(0) == 0
    # Products are summed over BK at the end only: one reduction for all blocks.
    total = tl.zeros([BN, BK], dtype=tl.float32)
    gate = tl.zeros([BN, BK], dtype=tl.float32)
    for begin in range(0, K, BK):
        if BK < ROW:
            x_part = _load(x + begin + k, begin + k < K)
        next_k = begin + BK + k
        next_valid = next_k < K
        if NORM != "none":
            x_part = (x_part - mean) * scale * (g + offset) + s
            if KEEP:
                tl.store(normed + begin + k, x_part, mask=is_first & (begin + k < K))
            g = _load(gain + next_k, next_valid)
            if SHIFT:
                s = _load(shift + next_k, next_valid)
        total += w.to(tl.float32) * x_part[None, :]
        weight_at += BK
        next_tile = n_valid[:, None] & next_valid[None, :]
        w = tl.load(weight_at, mask=next_tile, other=0.0, eviction_policy="evict_first")
        if GATED:
            gate += gate_w.to(tl.float32) * x_part[None, :]
            next_gate_at = weight_at + N.to(tl.int64) * weight_stride
            gate_w = tl.load(next_gate_at, mask=next_tile, other=0.0, eviction_policy="evict_first")
    y = _activation(tl.sum(total, axis=1) + b, ACTIVATION)
    if GATED:
        y = y * (tl.sum(gate, axis=1) + _row_or_zeros(bias, N + n, n_valid, BIAS))
    y += _row_or_zeros(residual, n, n_valid, RESIDUAL)
    tl.store(out + n, y, mask=n_valid)


@triton.jit(do_not_specialize=["M"])
def linear_few_rows(
    x, weight, bias, residual, out, M, N, K, weight_stride, split,
    ACTIVATION: constexpr, GATED: constexpr, BIAS: constexpr, RESIDUAL: constexpr,
    BM: constexpr, BN: constexpr, BK: constexpr, PRECISION: constexpr,
    PDL: constexpr,
):  # fmt: skip
    """x [M, K] → residual + activation(x Wᵀ + b) [M, N], a tile [BM, BN] by each program.

    Or the summands [parts, M, N] of it, each of `split` of the K inputs (split-K).
    """
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    m = tl.program_id(1) * BM + tl.arange(0, BM)
    part = tl.program_id(2)
    n_valid = n < N
    m_valid = m < M
    wait_for_previous(PDL)
    total = tl.zeros([BM, BN], dtype=tl.float32)
    gate = tl.zeros([BM, BN], dtype=tl.float32)
    first = part * split
    for begin in range(first, tl.minimum(first + split, K), BK):
        k = begin + tl.arange(0, BK)
        k_valid = k < K
        x_at = x + m[:, None] * K + k[None, :]
        x_part = tl.load(x_at, mask=m_valid[:, None] & k_valid[None, :], other=0.0)  # [BM, BK]
        weight_at = weight + n[None, :].to(tl.int64) * weight_stride + k[:, None]  # [BK, BN]
        valid = k_valid[:, None] & n_valid[None, :]
        w = tl.load(weight_at, mask=valid, other=0.0)
        total = tl.dot(x_part, w, total, input_precision=PRECISION)
        if GATED:
            gate_at = weight_at + N.to(tl.int64) * weight_stride
            gate_w = tl.load(gate_at, mask=valid, other=0.0)
            gate = tl.dot(x_part, gate_w, gate, input_precision=PRECISION)
    y = total
    if BIAS:
        y += _load(bias + n, n_valid)[None, :]
    y = _activation(y, ACTIVATION)
    if GATED:
        if BIAS:
            gate += _load(bias + N + n, n_valid)[None, :]
        y = y * gate
    out_valid = m_valid[:, None] & n_valid[None, :]
    if RESIDUAL:
        y += _load(residual + m[:, None] * N + n[None, :], out_valid)
    row = (part * M + m).to(tl.int64)
    tl.store(out + row[:, None] * N + n[None, :], y, mask=out_valid)


@triton.jit
def residual_sum_norm(
    x, parts, bias, gain, shift, total, out, part_stride, K, eps, offset,
    PARTS: constexpr, BIAS: constexpr, TOTAL: constexpr, NORM: constexpr,
    SHIFT: constexpr, BK: constexpr, PDL: constexpr,
):  # fmt: skip
    """One row of x [M, K] by each program: x + Σ parts + bias, and the norm of that."""
    k = tl.arange(0, BK)
    valid = k < K
    row = tl.program_id(0) * K + k
    b = _row_or_zeros(bias, k, valid, BIAS)
    g = _row_or_zeros(gain, k, valid, NORM != "none") + offset
    s = _row_or_zeros(shift, k, valid, SHIFT)
    wait_for_previous(PDL)
    y = _load(x + row, valid) + b
    for i in tl.static_range(PARTS):
        y += tl.load(parts + i * part_stride + row, mask=valid, other=0.0)
    y = y.to(x.dtype.element_ty)  # the norm is that of the sum as it is stored
    if TOTAL:
        tl.store(total + row, y, mask=valid)
    y = y.to(tl.float32)
    if NORM == "layer":
        y = tl.where(valid, y - tl.sum(y, axis=0) / K, 0.0)
    if NORM != "none":
        y = y * (1.0 / tl.sqrt(tl.sum(y * y, axis=0) / K + eps)) * g + s
    tl.store(out + row, y, mask=valid)


@triton.jit
def embedding_lookup(
    tokens, table, positions, position, out, scale, K,
    POSITIONS: constexpr, EACH: constexpr, BK: constexpr, PDL: constexpr,
):  # fmt: skip
    """The embedding of one token by each program, plus that of the position they all have, or that
    EACH has."""
    wait_for_previous(PDL)
    k = tl.arange(0, BK)
    valid = k < K
    row = tl.program_id(0)
    token = tl.load(tokens + row)
    y = _load(table + token * K + k, valid) * scale
    if POSITIONS:
        y += _load(positions + tl.load(position + row * EACH) * K + k, valid)
    tl.store(out + row * K + k, y, mask=valid)
