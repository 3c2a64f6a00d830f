"""What one token of a few rows costs on a GPU is mostly waiting: for kernels to start, and for what they read first.

These do the work of many: a linear map with the norm before it and the activation and the residual sum after it, and
attention of few queries, which turns them, writes what is new into its slot and looks at all slots so far. Each begins while
the one before it still runs (`AHEAD`) and asks for what no kernel of this step makes, its weights and the slots filled so far;
then it waits for the one before. What it reads before that wait must have been there before the step's first ordinary
kernel, and every kernel waits: so each of them, once it has waited, follows all that came before.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.core.norm import KernelNorm

_PROGRAMS = 192  # that a device has room for, at least


@cache
def _ahead(device: torch.device) -> bool:
    """Whether kernels of this device can begin before the one before them has ended."""
    return torch.cuda.is_available() and torch.cuda.get_device_capability(device) >= (9, 0)


@triton.jit
def _let_next(AHEAD: tl.constexpr):
    if AHEAD:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def _wait(AHEAD: tl.constexpr):
    """For the kernel before; then the one after may begin, if it was not let to already."""
    if AHEAD:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def _activated(x, KIND: tl.constexpr):
    if KIND == "relu":
        x = tl.maximum(x, 0.0)
    if KIND == "gelu":
        x = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    if KIND == "gelu_tanh":
        inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
        x = x * tl.sigmoid(2.0 * inner)  # (1 + tanh z) / 2 = σ(2 z)
    if KIND == "quick_gelu":
        x = x * tl.sigmoid(1.702 * x)
    if KIND == "silu":
        x = x * tl.sigmoid(x)
    if KIND == "tanh":
        x = 2.0 * tl.sigmoid(2.0 * x) - 1.0
    return x


@triton.jit
def _one_row(
    x, w, bias, gain, shift, rest, out, N, K, w_n, eps, offset,
    NORM: tl.constexpr, ACT: tl.constexpr, GATED: tl.constexpr, BIAS: tl.constexpr, SHIFT: tl.constexpr,
    REST: tl.constexpr, WHOLE: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """x [K] → out [N]: BN numbers of it by each program. Weights are asked for one turn before they are needed, the first of
    them before x is there."""
    _let_next(AHEAD)
    n, k = tl.program_id(0) * BN + tl.arange(0, BN), tl.arange(0, BK)
    inside = n < N
    place = w + n[:, None].to(tl.int64) * w_n + k[None, :]
    first = inside[:, None] & (k < K)[None, :]
    weight = tl.load(place, mask=first, other=0.0, eviction_policy="evict_first")
    other = weight
    if GATED:
        other = tl.load(
            place + N.to(tl.int64) * w_n, mask=first, other=0.0, eviction_policy="evict_first"
        )
    added = tl.zeros([BN], dtype=tl.float32)
    if BIAS:
        added = tl.load(bias + n, mask=inside, other=0.0).to(tl.float32)
    gained, shifted = tl.zeros([BK], dtype=tl.float32), tl.zeros([BK], dtype=tl.float32)
    if NORM != "none":
        gained = tl.load(gain + k, mask=k < K, other=0.0).to(tl.float32)
        if SHIFT:
            shifted = tl.load(shift + k, mask=k < K, other=0.0).to(tl.float32)
    _wait(AHEAD)
    mean, scale = 0.0, 1.0
    if NORM != "none":
        every = tl.arange(0, WHOLE)
        row = tl.load(x + every, mask=every < K, other=0.0).to(tl.float32)
        if NORM == "layer":
            mean = tl.sum(row, axis=0) / K
            row = tl.where(every < K, row - mean, 0.0)
        scale = 1.0 / tl.sqrt(tl.sum(row * row, axis=0) / K + eps)
    total, gate = tl.zeros([BN, BK], dtype=tl.float32), tl.zeros([BN, BK], dtype=tl.float32)
    for begin in range(0, K, BK):
        there = begin + k < K
        part = tl.load(x + begin + k, mask=there, other=0.0).to(tl.float32)
        after = begin + BK + k < K
        if NORM != "none":
            part = (part - mean) * scale * (gained + offset) + shifted
            gained = tl.load(gain + begin + BK + k, mask=after, other=0.0).to(tl.float32)
            if SHIFT:
                shifted = tl.load(shift + begin + BK + k, mask=after, other=0.0).to(tl.float32)
        total += weight.to(tl.float32) * part[None, :]
        place += BK
        ahead = inside[:, None] & after[None, :]
        weight = tl.load(place, mask=ahead, other=0.0, eviction_policy="evict_first")
        if GATED:
            gate += other.to(tl.float32) * part[None, :]
            other = tl.load(
                place + N.to(tl.int64) * w_n, mask=ahead, other=0.0, eviction_policy="evict_first"
            )
    y = _activated(tl.sum(total, axis=1) + added, ACT)
    if GATED:
        value = tl.sum(gate, axis=1)
        if BIAS:
            value += tl.load(bias + N + n, mask=inside, other=0.0).to(tl.float32)
        y = y * value
    if REST:
        y += tl.load(rest + n, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + n, y, mask=inside)


@triton.jit
def _looked_up(
    tokens, table, rows, place, out, scale, K, PLACES: tl.constexpr, BK: tl.constexpr, AHEAD: tl.constexpr
):  # fmt: skip
    """The row of one token by each program, and that of their place."""
    _wait(AHEAD)
    k = tl.arange(0, BK)
    there, row = k < K, tl.program_id(0)
    y = tl.load(table + tl.load(tokens + row) * K + k, mask=there, other=0.0).to(tl.float32) * scale
    if PLACES:
        y += tl.load(rows + tl.load(place) * K + k, mask=there, other=0.0).to(tl.float32)
    tl.store(out + row * K + k, y, mask=there)


@triton.jit
def _summed(
    x, parts, bias, gain, shift, total, out, far, K, eps, offset,
    PARTS: tl.constexpr, BIAS: tl.constexpr, TOTAL: tl.constexpr, NORM: tl.constexpr, SHIFT: tl.constexpr, BK: tl.constexpr,
    AHEAD: tl.constexpr,
):  # fmt: skip
    """One row of x [M, K] by each program: with what is added to it, and its norm."""
    k = tl.arange(0, BK)
    there, row = k < K, tl.program_id(0) * K + k
    nothing = tl.zeros([BK], dtype=tl.float32)
    added, gained, shifted = nothing, nothing, nothing
    if BIAS:
        added = tl.load(bias + k, mask=there, other=0.0).to(tl.float32)
    if NORM != "none":
        gained = tl.load(gain + k, mask=there, other=0.0).to(tl.float32) + offset
    if SHIFT:
        shifted = tl.load(shift + k, mask=there, other=0.0).to(tl.float32)
    _wait(AHEAD)
    y = tl.load(x + row, mask=there, other=0.0).to(tl.float32) + added
    for i in tl.static_range(PARTS):
        y += tl.load(parts + i * far + row, mask=there, other=0.0)
    y = y.to(x.dtype.element_ty)
    if TOTAL:
        tl.store(total + row, y, mask=there)
    y = y.to(tl.float32)
    if NORM == "layer":
        y = tl.where(there, y - tl.sum(y, axis=0) / K, 0.0)
    if NORM != "none":
        y = y * (1.0 / tl.sqrt(tl.sum(y * y, axis=0) / K + eps)) * gained + shifted
    tl.store(out + row, y, mask=there)


@triton.jit(do_not_specialize=["M"])
def _few_rows(
    x, w, bias, rest, out, M, N, K, w_n, span,
    ACT: tl.constexpr, GATED: tl.constexpr, BIAS: tl.constexpr, REST: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr, BK: tl.constexpr, EXACT: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """x [M, K] → out [M, N]: BN columns of it by each program. Or out [parts, M, N], each of `span` of the K."""
    n, m = tl.program_id(0) * BN + tl.arange(0, BN), tl.program_id(1) * BM + tl.arange(0, BM)
    inside, rows = n < N, m < M
    _wait(AHEAD)
    total, gate = tl.zeros([BM, BN], dtype=tl.float32), tl.zeros([BM, BN], dtype=tl.float32)
    part_at = tl.program_id(2) * span
    for begin in range(part_at, tl.minimum(part_at + span, K), BK):
        k = begin + tl.arange(0, BK)
        there = k < K
        part = tl.load(
            x + m[:, None] * K + k[None, :], mask=rows[:, None] & there[None, :], other=0.0
        )
        place = w + n[None, :].to(tl.int64) * w_n + k[:, None]
        both = there[:, None] & inside[None, :]
        total = tl.dot(part, tl.load(place, mask=both, other=0.0), total, input_precision=EXACT)
        if GATED:
            other = tl.load(place + N.to(tl.int64) * w_n, mask=both, other=0.0)
            gate = tl.dot(part, other, gate, input_precision=EXACT)
    y = total
    if BIAS:
        y += tl.load(bias + n, mask=inside, other=0.0).to(tl.float32)[None, :]
    y = _activated(y, ACT)
    if GATED:
        if BIAS:
            gate += tl.load(bias + N + n, mask=inside, other=0.0).to(tl.float32)[None, :]
        y = y * gate
    outside = rows[:, None] & inside[None, :]
    if REST:
        y += tl.load(rest + m[:, None] * N + n[None, :], mask=outside, other=0.0).to(tl.float32)
    row = (tl.program_id(2) * M + m).to(tl.int64)
    tl.store(out + row[:, None] * N + n[None, :], y, mask=outside)


def look_up(
    tokens: Tensor, table: Tensor, scale: float, rows: Tensor | None, place: Tensor
) -> Tensor:
    """scale · table[tokens] + rows[place] for tokens [M] and place [1]."""
    out, ahead = table.new_empty(len(tokens), table.shape[1]), _ahead(table.device)
    _looked_up[(len(tokens),)](
        tokens, table, table if rows is None else rows, place, out, scale, table.shape[1], PLACES=rows is not None,
        BK=triton.next_power_of_2(table.shape[1]), AHEAD=ahead, num_warps=4, launch_pdl=ahead,
    )  # fmt: skip
    return out


class Sum(NamedTuple):
    """A residual sum [M, K], or what it will be the sum of: `parts` [P, M, K], and one bias."""

    x: Tensor
    parts: Tensor | None = None
    bias: Tensor | None = None


def summed(held: Sum, norm: KernelNorm | None, *, total: bool = False) -> tuple[Tensor, Tensor]:
    """The sum, if the `total` is asked for or there are no parts, and its norm."""
    x, parts, bias = held
    (rows, width), (kind, gain, shift, eps, offset) = x.shape, norm or ("none", x, None, 0.0, 0.0)
    out, ahead, block = torch.empty_like(x), _ahead(x.device), triton.next_power_of_2(width)
    keep = total and (parts is not None or bias is not None)
    whole = torch.empty_like(x) if keep else x
    _summed[(rows,)](
        x, x if parts is None else parts, x if bias is None else bias, gain, gain if shift is None else shift, whole, out,
        x.numel(), width, eps, offset, PARTS=0 if parts is None else len(parts), BIAS=bias is not None, TOTAL=keep,
        NORM=kind, SHIFT=shift is not None, BK=block, AHEAD=ahead, num_warps=4 if block <= 4096 else 8, launch_pdl=ahead,
    )  # fmt: skip
    return whole, out


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, norm: KernelNorm | None = None, activation: str = "none",
    gated: bool = False, rest: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """rest + activation(norm(x) Wᵀ + b) for x [M, K]; only one row has a norm. Of a gated map the activation is that of the
    first half of the outputs, which multiply the second."""
    (rows, inputs), outputs = x.shape, len(weight) // 2 if gated else len(weight)
    out, ahead = x.new_empty(rows, outputs), _ahead(x.device)
    bias_or, rest_or = x if bias is None else bias, x if rest is None else rest
    said: dict[str, Any] = {
        "ACT": activation,
        "GATED": gated,
        "BIAS": bias is not None,
        "REST": rest is not None,
    }
    if rows == 1:
        kind, gain, shift, eps, offset = norm or ("none", x, None, 0.0, 0.0)
        block, depth, warps = _cut(inputs, outputs)
        _one_row[(triton.cdiv(outputs, block),)](
            x, weight, bias_or, gain, gain if shift is None else shift, rest_or, out, outputs, inputs, weight.stride(0),
            eps, offset, NORM=kind, SHIFT=shift is not None, **said, WHOLE=triton.next_power_of_2(inputs), BN=block,
            BK=depth, AHEAD=ahead, num_warps=warps, launch_pdl=ahead,
        )  # fmt: skip
        return out
    assert norm is None, (
        "inside it would be taken anew by each program: of several rows that costs more than a kernel"
    )
    _few(x, weight, bias_or, rest_or, out, inputs, said)
    return out


def parts(x: Tensor, weight: Tensor) -> Tensor:
    """x Wᵀ for x [M, K] of several rows, as a sum that is still to be made: [P, M, N] in float32. A map to few outputs is cut
    along its inputs as well, so that all of the device has work."""
    (rows, inputs), outputs = x.shape, len(weight)
    high, block, depth, _ = _tile(rows, inputs, outputs)
    count = max(
        1,
        min(inputs // depth, _PROGRAMS // (triton.cdiv(outputs, block) * triton.cdiv(rows, high))),
    )
    span = triton.cdiv(triton.cdiv(inputs, count), depth) * depth
    out = x.new_empty(triton.cdiv(inputs, span), rows, outputs, dtype=torch.float32)
    _few(x, weight, x, x, out, span, {"ACT": "none", "GATED": False, "BIAS": False, "REST": False})
    return out


def _few(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    rest: Tensor,
    out: Tensor,
    span: int,
    said: dict[str, Any],
) -> None:
    """Fills out [M, N], or [parts, M, N], each of `span` inputs."""
    (rows, inputs), outputs, ahead = x.shape, out.shape[-1], _ahead(x.device)
    high, block, depth, stages = _tile(rows, inputs, outputs)
    _few_rows[(triton.cdiv(outputs, block), triton.cdiv(rows, high), triton.cdiv(inputs, span))](
        x, weight, bias, rest, out, rows, outputs, inputs, weight.stride(0), span, **said, BM=high, BN=block, BK=depth,
        EXACT="ieee" if x.dtype == torch.float32 else "tf32", AHEAD=ahead, num_warps=4, num_stages=stages,
        launch_pdl=ahead,
    )  # fmt: skip


def _cut(inputs: int, outputs: int) -> tuple[int, int, int]:
    """Outputs and inputs that a program takes at once, and its warps: small maps are cut small, so that all of the device has
    work; measured on an H200 (LOG.md)."""
    if outputs > 16384 and inputs <= 1024:
        return 16, 256, 4
    if outputs <= 1024:
        return (2, 4096, 8) if 1024 < inputs <= 4096 else (2, 1024, 4)
    return (4, 1024, 4) if inputs > 8192 else (4, 512, 4)


def _tile(rows: int, inputs: int, outputs: int) -> tuple[int, int, int, int]:
    """Rows, outputs and inputs that a program takes at once, and how many turns ahead it asks for them."""
    high = max(16, min(64, triton.next_power_of_2(rows)))
    if outputs > 8192:
        return high, 128, 64, 4
    return high, 16, 256 if high <= 32 else 128, 3


@triton.jit(do_not_specialize=["S", "m_b", "m_h", "m_t", "m_s", "T", "R", "G", "columns"])
def _few_queries(
    q, k, v, new_k, new_v, mask, last, cos, sin, out,
    q_b, q_h, q_t, k_b, k_g, k_s, v_b, v_g, v_s, nk_b, nk_g, nv_b, nv_g, m_b, m_h, m_t, m_s, o_b, o_h, o_t,
    G, T, R, S, columns, scale,
    BQ: tl.constexpr, BS: tl.constexpr, K: tl.constexpr, MASK: tl.constexpr, NEW: tl.constexpr, LAST: tl.constexpr,
    ROPE: tl.constexpr, EXACT: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """T queries of each of R heads look at the keys of their group, each half of the width by itself, as rotation wants it."""
    _wait(AHEAD)
    HALF: tl.constexpr = K // 2
    program = tl.program_id(0)
    b, g = (program // G).to(tl.int64), program % G
    i, s, low, wide = tl.arange(0, BQ), tl.arange(0, BS), tl.arange(0, HALF), tl.arange(0, K)
    there = i < T * R
    head, t = g * R + i // T, i % T
    query_at = q + b * q_b + head[:, None] * q_h + t[:, None] * q_t + low[None, :]
    first = tl.load(query_at, mask=there[:, None], other=0.0)
    second = tl.load(query_at + HALF, mask=there[:, None], other=0.0)
    kind = q.dtype.element_ty
    if ROPE:
        c, d = tl.load(cos + low)[None, :], tl.load(sin + low)[None, :]
        one, two = first.to(tl.float32), second.to(tl.float32)
        first, second = (one * c - two * d).to(kind), (two * c + one * d).to(kind)
    end = S
    if LAST:
        end = tl.load(last).to(tl.int32) * columns
        if not NEW:
            end += columns
    top = tl.full([BQ], float("-inf"), dtype=tl.float32)
    total = tl.zeros([BQ], dtype=tl.float32)
    mixed = tl.zeros([BQ, K], dtype=tl.float32)
    seen_at = mask + b * m_b + head[:, None] * m_h + t[:, None] * m_t
    if NEW:
        new_at = new_k + b * nk_b + g * nk_g + low
        new1, new2 = tl.load(new_at).to(tl.float32), tl.load(new_at + HALF).to(tl.float32)
        if ROPE:
            turn, lift = tl.load(cos + low), tl.load(sin + low)
            new1, new2 = new1 * turn - new2 * lift, new2 * turn + new1 * lift
        value = tl.load(new_v + b * nv_b + g * nv_g + wide)
        slot = k + b * k_b + g * k_g + end * k_s + low
        tl.store(slot, new1)
        tl.store(slot + HALF, new2)
        tl.store(v + b * v_b + g * v_g + end * v_s + wide, value)
        new1, new2 = new1.to(kind).to(tl.float32), new2.to(kind).to(tl.float32)
        top = (
            tl.sum(
                first.to(tl.float32) * new1[None, :] + second.to(tl.float32) * new2[None, :], axis=1
            )
        ) * scale
        if MASK == 2:
            top += tl.load(
                mask + b * m_b + head * m_h + t * m_t + end * m_s, mask=there, other=0.0
            ).to(tl.float32)
        total += 1.0
        mixed += value.to(tl.float32)[None, :]
    for begin in range(0, end, BS):
        at = begin + s
        padding_mask = at < end
        key_at = k + b * k_b + g * k_g + at[:, None].to(tl.int64) * k_s + low[None, :]
        k1 = tl.load(key_at, mask=padding_mask[:, None], other=0.0)
        k2 = tl.load(key_at + HALF, mask=padding_mask[:, None], other=0.0)
        scores = tl.dot(first, tl.trans(k1), input_precision=EXACT)
        scores = tl.dot(second, tl.trans(k2), scores, input_precision=EXACT) * scale
        visible = there[:, None] & padding_mask[None, :]
        if MASK == 1:
            visible = visible & (tl.load(seen_at + at[None, :] * m_s, mask=visible, other=0) != 0)
        if MASK == 2:
            scores += tl.load(seen_at + at[None, :] * m_s, mask=visible, other=0.0).to(tl.float32)
        scores = tl.where(visible, scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, axis=1))
        safe = tl.where(higher == float("-inf"), 0.0, higher)
        weights = tl.exp(scores - safe[:, None])
        shrunk = tl.exp(top - safe)
        total = total * shrunk + tl.sum(weights, axis=1)
        value_at = v + b * v_b + g * v_g + at[:, None].to(tl.int64) * v_s + wide[None, :]
        values = tl.load(value_at, mask=padding_mask[:, None], other=0.0)
        mixed = tl.dot(
            weights.to(values.dtype), values, mixed * shrunk[:, None], input_precision=EXACT
        )
        top = higher
    mixed = mixed / tl.where(total == 0.0, 1.0, total)[:, None]
    out_at = out + b * o_b + head[:, None] * o_h + t[:, None] * o_t + wide[None, :]
    tl.store(out_at, mixed, mask=there[:, None])


@triton.jit
def _turned(x, at, wide, cos, sin, K: tl.constexpr):
    """x [K], which lies at `at`: each half turned by the other."""
    HALF: tl.constexpr = K // 2
    other = tl.load(at + (wide + HALF) % K).to(tl.float32)
    return x * tl.load(cos + wide % HALF) + tl.where(wide < HALF, -other, other) * tl.load(
        sin + wide % HALF
    )


@triton.jit(do_not_specialize=["S", "m_b", "m_h", "m_s", "columns"])
def _one_query(
    q, k, v, new_k, new_v, mask, last, cos, sin, out,
    q_b, q_h, k_b, k_h, k_s, v_b, v_h, v_s, nk_b, nk_h, nv_b, nv_h, m_b, m_h, m_s, o_b, o_h, H, S, columns, scale,
    BS: tl.constexpr, K: tl.constexpr, MASK: tl.constexpr, NEW: tl.constexpr, LAST: tl.constexpr, ROPE: tl.constexpr,
    AHEAD: tl.constexpr,
):  # fmt: skip
    """One query of a head that has keys of its own."""
    b, h = (tl.program_id(0) // H).to(tl.int64), tl.program_id(0) % H
    s, wide = tl.arange(0, BS), tl.arange(0, K)
    kind = q.dtype.element_ty
    end = S
    if LAST:
        end = tl.load(last).to(tl.int32) * columns
        if not NEW:
            end += columns
    key_at = k + b * k_b + h * k_h + s[:, None].to(tl.int64) * k_s + wide[None, :]
    value_at = v + b * v_b + h * v_h + s[:, None].to(tl.int64) * v_s + wide[None, :]
    keys = tl.load(key_at, mask=(s < end)[:, None], other=0.0)
    values = tl.load(value_at, mask=(s < end)[:, None], other=0.0)
    _wait(AHEAD)
    query_at = q + b * q_b + h * q_h
    query = tl.load(query_at + wide).to(tl.float32)
    if ROPE:
        query = _turned(query, query_at, wide, cos, sin, K).to(kind).to(tl.float32)
    seen_at = mask + b * m_b + h * m_h
    top, total, mixed = float("-inf"), 0.0, tl.zeros([K], dtype=tl.float32)
    if NEW:
        new_at = new_k + b * nk_b + h * nk_h
        key = tl.load(new_at + wide).to(tl.float32)
        if ROPE:
            key = _turned(key, new_at, wide, cos, sin, K).to(kind).to(tl.float32)
        value = tl.load(new_v + b * nv_b + h * nv_h + wide)
        tl.store(k + b * k_b + h * k_h + end.to(tl.int64) * k_s + wide, key)
        tl.store(v + b * v_b + h * v_h + end.to(tl.int64) * v_s + wide, value)
        top = tl.sum(query * key, axis=0) * scale
        if MASK == 2:
            top += tl.load(seen_at + end * m_s).to(tl.float32)
        total = 1.0
        mixed = value.to(tl.float32)
    for begin in range(0, end, BS):
        at = begin + s
        visible, after = at < end, at + BS < end
        scores = tl.sum(keys.to(tl.float32) * query[None, :], axis=1) * scale
        key_at += BS * k_s.to(tl.int64)
        keys = tl.load(key_at, mask=after[:, None], other=0.0)
        if MASK == 1:
            visible = visible & (tl.load(seen_at + at * m_s, mask=visible, other=0) != 0)
        if MASK == 2:
            scores += tl.load(seen_at + at * m_s, mask=visible, other=0.0).to(tl.float32)
        scores = tl.where(visible, scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, axis=0))
        safe = tl.where(higher == float("-inf"), 0.0, higher)
        weights, shrunk = tl.exp(scores - safe), tl.exp(top - safe)
        total = total * shrunk + tl.sum(weights, axis=0)
        mixed = mixed * shrunk + tl.sum(values.to(tl.float32) * weights[:, None], axis=0)
        value_at += BS * v_s.to(tl.int64)
        values = tl.load(value_at, mask=after[:, None], other=0.0)
        top = higher
    tl.store(out + b * o_b + h * o_h + wide, mixed / tl.where(total == 0.0, 1.0, total))


def attend(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, *, last: Tensor | None = None, columns: int = 1,
    new: tuple[Tensor, Tensor] | None = None, angles: tuple[Tensor, Tensor] | None = None, settled: bool = False,
) -> Tensor:  # fmt: skip
    """q [B, H, T, K], k and v [B, G, S, K] → [B, T, H, K]. `mask` [B or 1, H or 1, T or 1, S]: who may look, or what is added
    to the scores. `last` [1] is the last place that is looked at, each place being `columns` keys. `new` are the keys and
    values [B, G, 1, K] of that place, which are written there; `angles` turn queries and new keys. `settled`: all other keys
    and values were there before this step."""
    batch, heads, length, width = q.shape
    groups, keys = k.shape[1:3]
    out = q.new_empty(batch, length, heads, width)
    new_k, new_v = new or (q, q)
    cos, sin = angles or (q, q)
    wide = None if mask is None else mask.expand(batch, heads, length, keys)
    if wide is not None and wide.dtype == torch.bool:
        wide = wide.view(torch.uint8)
    ahead, kind = (
        settled and _ahead(q.device),
        0 if wide is None else 1 if wide.dtype == torch.uint8 else 2,
    )
    said: dict[str, Any] = {
        "NEW": new is not None,
        "LAST": last is not None,
        "ROPE": angles is not None,
        "AHEAD": ahead,
    }
    many = batch * groups > 256  # programs; fewer of them have a part of the device each
    if length == 1 and heads == groups:
        m_b, m_h, _, m_s = (0,) * 4 if wide is None else wide.stride()
        _one_query[(batch * heads,)](
            q, k, v, new_k, new_v, q if wide is None else wide, q if last is None else last, cos, sin, out,
            *q.stride()[:2], *k.stride()[:3], *v.stride()[:3], *new_k.stride()[:2], *new_v.stride()[:2], m_b, m_h, m_s,
            out.stride(0), out.stride(2), heads, keys, columns, scale,
            BS=max(16, (8192 if many else 16384) // (width * q.element_size())), K=width, MASK=kind, **said, num_warps=4,
            launch_pdl=ahead,
        )  # fmt: skip
        return out
    exact = "ieee" if q.dtype == torch.float32 else "tf32"
    _few_queries[(batch * groups,)](
        q, k, v, new_k, new_v, q if wide is None else wide, q if last is None else last, cos, sin, out,
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *new_k.stride()[:2], *new_v.stride()[:2],
        *((0,) * 4 if wide is None else wide.stride()), out.stride(0), out.stride(2), out.stride(1),
        groups, length, heads // groups, keys, columns, scale,
        BQ=max(16, triton.next_power_of_2(length * heads // groups)), BS=32 if many else 128, K=width,
        MASK=kind, **said, EXACT=exact, num_warps=1 if many else 4, num_stages=3 if many else 2, launch_pdl=ahead,
    )  # fmt: skip
    return out
