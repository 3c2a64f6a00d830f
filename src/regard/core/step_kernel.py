"""What one token of a few rows costs on a GPU is mostly the number of kernels. These two do the work of many: a linear map
with the norm before it and the activation and the residual sum after it, and attention of few queries, which turns them,
writes what is new into its slot and looks at all slots so far."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


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


# A norm is a sum over the whole row. Nothing waits for it: with gain g and shift h,
# W·(g (x − mean) / σ + h) = (W·gx − mean W·g) / σ + W·h, and all five sums are taken in one pass.


@triton.jit
def _one_row(
    x, w, bias, gain, shift, rest, out, N, K, w_n, eps, offset,
    NORM: tl.constexpr, ACT: tl.constexpr, GATED: tl.constexpr, BIAS: tl.constexpr, SHIFT: tl.constexpr,
    REST: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """x [K] → out [N]: BN numbers of it by each program."""
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    inside = n < N
    total, gate = tl.zeros([BN, BK], dtype=tl.float32), tl.zeros([BN, BK], dtype=tl.float32)
    alone, gate_alone = tl.zeros([BN, BK], dtype=tl.float32), tl.zeros([BN, BK], dtype=tl.float32)
    added, gate_added = tl.zeros([BN, BK], dtype=tl.float32), tl.zeros([BN, BK], dtype=tl.float32)
    plain, squares = tl.zeros([BK], dtype=tl.float32), tl.zeros([BK], dtype=tl.float32)
    for begin in range(0, K, BK):
        k = begin + tl.arange(0, BK)
        there = k < K
        place = w + n[:, None].to(tl.int64) * w_n + k[None, :]
        both = inside[:, None] & there[None, :]
        weight = tl.load(place, mask=both, other=0.0).to(tl.float32)
        part = tl.load(x + k, mask=there, other=0.0).to(tl.float32)
        other = weight
        if GATED:
            other = tl.load(place + N.to(tl.int64) * w_n, mask=both, other=0.0).to(tl.float32)
        if NORM != "none":
            plain += part
            squares += part * part
            if SHIFT:
                low = tl.load(shift + k, mask=there, other=0.0).to(tl.float32)[None, :]
                added += weight * low
                if GATED:
                    gate_added += other * low
            high = (tl.load(gain + k, mask=there, other=0.0).to(tl.float32) + offset)[None, :]
            weight = weight * high
            if NORM == "layer":
                alone += weight
            if GATED:
                other = other * high
                if NORM == "layer":
                    gate_alone += other
        total += weight * part[None, :]
        if GATED:
            gate += other * part[None, :]
    y = tl.sum(total, axis=1)
    value = y
    if GATED:
        value = tl.sum(gate, axis=1)
    if NORM != "none":
        mean = 0.0
        if NORM == "layer":
            mean = tl.sum(plain, axis=0) / K
            y -= mean * tl.sum(alone, axis=1)
            if GATED:
                value -= mean * tl.sum(gate_alone, axis=1)
        scale = 1.0 / tl.sqrt(tl.maximum(tl.sum(squares, axis=0) / K - mean * mean, 0.0) + eps)
        y, value = y * scale, value * scale
        if SHIFT:
            y += tl.sum(added, axis=1)
            if GATED:
                value += tl.sum(gate_added, axis=1)
    if BIAS:
        y += tl.load(bias + n, mask=inside, other=0.0).to(tl.float32)
    y = _activated(y, ACT)
    if GATED:
        if BIAS:
            value += tl.load(bias + N + n, mask=inside, other=0.0).to(tl.float32)
        y = y * value
    if REST:
        y += tl.load(rest + n, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + n, y, mask=inside)


@triton.jit
def _few_rows(
    x, w, bias, gain, shift, rest, out, M, N, K, w_n, eps, offset,
    NORM: tl.constexpr, ACT: tl.constexpr, GATED: tl.constexpr, BIAS: tl.constexpr, SHIFT: tl.constexpr,
    REST: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """x [M, K] → out [M, N]: BN columns of it by each program."""
    n, m = tl.program_id(0) * BN + tl.arange(0, BN), tl.program_id(1) * BM + tl.arange(0, BM)
    inside, rows = n < N, m < M
    total, gate = tl.zeros([BM, BN], dtype=tl.float32), tl.zeros([BM, BN], dtype=tl.float32)
    alone, gate_alone = tl.zeros([BK, BN], dtype=tl.float32), tl.zeros([BK, BN], dtype=tl.float32)
    added, gate_added = tl.zeros([BK, BN], dtype=tl.float32), tl.zeros([BK, BN], dtype=tl.float32)
    plain, squares = tl.zeros([BM, BK], dtype=tl.float32), tl.zeros([BM, BK], dtype=tl.float32)
    for begin in range(0, K, BK):
        k = begin + tl.arange(0, BK)
        there = k < K
        part = tl.load(x + m[:, None] * K + k[None, :], mask=rows[:, None] & there[None, :], other=0.0)
        place = w + n[None, :].to(tl.int64) * w_n + k[:, None]
        both = there[:, None] & inside[None, :]
        weight = tl.load(place, mask=both, other=0.0)
        other = weight
        if GATED:
            other = tl.load(place + N.to(tl.int64) * w_n, mask=both, other=0.0)
        if NORM != "none":
            wide = part.to(tl.float32)
            plain += wide
            squares += wide * wide
            if SHIFT:
                low = tl.load(shift + k, mask=there, other=0.0).to(tl.float32)[:, None]
                added += weight.to(tl.float32) * low
                if GATED:
                    gate_added += other.to(tl.float32) * low
            high = (tl.load(gain + k, mask=there, other=0.0).to(tl.float32) + offset)[:, None]
            weight = (weight.to(tl.float32) * high).to(x.dtype.element_ty)
            if NORM == "layer":
                alone += weight.to(tl.float32)
            if GATED:
                other = (other.to(tl.float32) * high).to(x.dtype.element_ty)
                if NORM == "layer":
                    gate_alone += other.to(tl.float32)
        total = tl.dot(part, weight, total, input_precision=EXACT)
        if GATED:
            gate = tl.dot(part, other, gate, input_precision=EXACT)
    y, value = total, gate
    if NORM != "none":
        mean = tl.zeros([BM], dtype=tl.float32)
        if NORM == "layer":
            mean = tl.sum(plain, axis=1) / K
            y -= mean[:, None] * tl.sum(alone, axis=0)[None, :]
            if GATED:
                value -= mean[:, None] * tl.sum(gate_alone, axis=0)[None, :]
        scale = 1.0 / tl.sqrt(tl.maximum(tl.sum(squares, axis=1) / K - mean * mean, 0.0) + eps)
        y, value = y * scale[:, None], value * scale[:, None]
        if SHIFT:
            y += tl.sum(added, axis=0)[None, :]
            if GATED:
                value += tl.sum(gate_added, axis=0)[None, :]
    if BIAS:
        y += tl.load(bias + n, mask=inside, other=0.0).to(tl.float32)[None, :]
    y = _activated(y, ACT)
    if GATED:
        if BIAS:
            value += tl.load(bias + N + n, mask=inside, other=0.0).to(tl.float32)[None, :]
        y = y * value
    outside = rows[:, None] & inside[None, :]
    if REST:
        y += tl.load(rest + m[:, None] * N + n[None, :], mask=outside, other=0.0).to(tl.float32)
    tl.store(out + m[:, None].to(tl.int64) * N + n[None, :], y, mask=outside)


Norm = tuple[str, Tensor, Tensor | None, float, float]


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, norm: Norm | None = None, activation: str = "none",
    gated: bool = False, rest: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """rest + activation(norm(x) Wᵀ + b) for x [M, K]. `norm` is (layer or rms, gain, shift, ε, what is added to the gain); of a
    gated map the activation is that of the first half of the outputs, which multiply the second."""
    (rows, inputs), outputs = x.shape, len(weight) // 2 if gated else len(weight)
    kind, gain, shift, eps, offset = norm or ("none", x, None, 0.0, 0.0)
    out = x.new_empty(rows, outputs)
    given = (
        x,
        weight,
        x if bias is None else bias,
        gain,
        gain if shift is None else shift,
        x if rest is None else rest,
        out,
    )
    said: dict[str, Any] = {
        "NORM": kind, "ACT": activation, "GATED": gated, "BIAS": bias is not None, "SHIFT": shift is not None,
        "REST": rest is not None,
    }  # fmt: skip
    if rows == 1:
        narrow = outputs <= 4096
        block, depth = (4, min(1024, triton.next_power_of_2(inputs))) if narrow else (8, 512)
        block = block if not gated else 4
        _one_row[(triton.cdiv(outputs, block),)](
            *given, outputs, inputs, weight.stride(0), eps, offset, **said, BN=block, BK=depth, num_warps=4,
        )  # fmt: skip
        return out
    high = max(16, min(64, triton.next_power_of_2(rows)))
    block = 16 if outputs <= 4096 else 64
    exact = "ieee" if x.dtype == torch.float32 else "tf32"
    _few_rows[(triton.cdiv(outputs, block), triton.cdiv(rows, high))](
        *given, rows, outputs, inputs, weight.stride(0), eps, offset, **said,
        BM=high, BN=block, BK=128 if high <= 32 else 64, EXACT=exact, num_warps=4, num_stages=4,
    )  # fmt: skip
    return out


@triton.jit
def _few_queries(
    q, k, v, new_k, new_v, mask, last, cos, sin, out,
    q_b, q_h, q_t, k_b, k_g, k_s, v_b, v_g, v_s, nk_b, nk_g, nv_b, nv_g, m_b, m_h, m_t, m_s, o_b, o_h, o_t,
    G, T, R, S, columns, scale,
    BQ: tl.constexpr, BS: tl.constexpr, K: tl.constexpr, MASK: tl.constexpr, NEW: tl.constexpr, LAST: tl.constexpr,
    ROPE: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """T queries of each of R heads look at the keys of their group, each half of the width by itself, as rotation wants it."""
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
        top = (tl.sum(first.to(tl.float32) * new1[None, :] + second.to(tl.float32) * new2[None, :], axis=1)) * scale
        if MASK == 2:
            top += tl.load(mask + b * m_b + head * m_h + t * m_t + end * m_s, mask=there, other=0.0).to(tl.float32)
        total += 1.0
        mixed += value.to(tl.float32)[None, :]
    for begin in range(0, end, BS):
        at = begin + s
        real = at < end
        key_at = k + b * k_b + g * k_g + at[:, None].to(tl.int64) * k_s + low[None, :]
        k1 = tl.load(key_at, mask=real[:, None], other=0.0)
        k2 = tl.load(key_at + HALF, mask=real[:, None], other=0.0)
        scores = tl.dot(first, tl.trans(k1), input_precision=EXACT)
        scores = tl.dot(second, tl.trans(k2), scores, input_precision=EXACT) * scale
        visible = there[:, None] & real[None, :]
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
        values = tl.load(value_at, mask=real[:, None], other=0.0)
        mixed = tl.dot(weights.to(values.dtype), values, mixed * shrunk[:, None], input_precision=EXACT)
        top = higher
    mixed = mixed / tl.where(total == 0.0, 1.0, total)[:, None]
    out_at = out + b * o_b + head[:, None] * o_h + t[:, None] * o_t + wide[None, :]
    tl.store(out_at, mixed, mask=there[:, None])


def attend(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, *, last: Tensor | None = None, columns: int = 1,
    new: tuple[Tensor, Tensor] | None = None, angles: tuple[Tensor, Tensor] | None = None,
) -> Tensor:  # fmt: skip
    """q [B, H, T, K], k and v [B, G, S, K] → [B, T, H, K]. `mask` [B or 1, H or 1, T or 1, S]: who may look, or what is added
    to the scores. `last` [1] is the last place that is looked at, each place being `columns` keys. `new` are the keys and
    values [B, G, 1, K] of that place, which are written there; `angles` turn queries and new keys."""
    batch, heads, length, width = q.shape
    groups, keys = k.shape[1:3]
    out = q.new_empty(batch, length, heads, width)
    new_k, new_v = new or (q, q)
    cos, sin = angles or (q, q)
    wide = None if mask is None else mask.expand(batch, heads, length, keys)
    if wide is not None and wide.dtype == torch.bool:
        wide = wide.view(torch.uint8)
    exact = "ieee" if q.dtype == torch.float32 else "tf32"
    _few_queries[(batch * groups,)](
        q, k, v, new_k, new_v, q if wide is None else wide, q if last is None else last, cos, sin, out,
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *new_k.stride()[:2], *new_v.stride()[:2],
        *((0,) * 4 if wide is None else wide.stride()), out.stride(0), out.stride(2), out.stride(1),
        groups, length, heads // groups, keys, columns, scale,
        BQ=max(16, triton.next_power_of_2(length * heads // groups)), BS=64, K=width,
        MASK=0 if wide is None else 1 if wide.dtype == torch.uint8 else 2, NEW=new is not None, LAST=last is not None,
        ROPE=angles is not None, EXACT=exact, num_warps=4, num_stages=2,
    )  # fmt: skip
    return out
