"""Kernels for attention of few queries over a KV cache, with rotary positions and cache writes.

Both compute softmax attention block by block with a running maximum and sum, as FlashAttention
does (Dao et al. 2022, algorithm 1). MASK is 0 for none, 1 for a boolean mask, 2 for a bias. With
NEW, the key and value of the newest token are rotated, written into the cache and attended to;
`last` [1] is the position of that token, or the last position that is attended to; with EACH, it
has one for each row.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language import constexpr

from regard.core.kernels.dependent_launch import wait_for_previous


@triton.jit
def _load_rows(at, valid):
    """The rows at these places, zeros where they are not valid."""
    return tl.load(at, mask=valid[:, None], other=0.0)


@triton.jit(do_not_specialize=["S", "m_b", "m_h", "m_t", "m_s", "T", "R", "G", "columns"])
def grouped_query_attention(
    q, k, v, new_k, new_v, mask, last, cos, sin, out,
    q_b, q_h, q_t, k_b, k_g, k_s, v_b, v_g, v_s, nk_b, nk_g, nv_b, nv_g, m_b, m_h, m_t, m_s,
    o_b, o_h, o_t, G, T, R, S, columns, scale,
    BQ: constexpr, BS: constexpr, K: constexpr, MASK: constexpr, NEW: constexpr,
    LAST: constexpr, EACH: constexpr, ROPE: constexpr, PRECISION: constexpr, PDL: constexpr,
):  # fmt: skip
    """T queries of each of the R heads of one group: BQ rows, heads × queries, by each program.

    The two halves of the head dimension are loaded apart, as rotation pairs them.
    """
    wait_for_previous(PDL)
    HALF: constexpr = K // 2
    program = tl.program_id(0)
    b = (program // G).to(tl.int64)
    g = program % G
    i = tl.arange(0, BQ)
    s = tl.arange(0, BS)
    half = tl.arange(0, HALF)
    full = tl.arange(0, K)
    query_valid = i < T * R
    head = g * R + i // T
    t = i % T
    query_at = q + b * q_b + head[:, None] * q_h + t[:, None] * q_t + half[None, :]
    q1 = _load_rows(query_at, query_valid)  # [BQ, HALF]
    q2 = _load_rows(query_at + HALF, query_valid)
    dtype = q.dtype.element_ty
    if ROPE:
        # (q1, q2) rotated by the angles of the newest position, and rounded as PyTorch rounds.
        c = tl.load(cos + half)
        d = tl.load(sin + half)
        one = q1.to(tl.float32)
        two = q2.to(tl.float32)
        q1 = (one * c[None, :] - two * d[None, :]).to(dtype)
        q2 = (two * c[None, :] + one * d[None, :]).to(dtype)
    end = S  # how many cached keys are attended to; with NEW, also where the new one goes
    if LAST:
        end = tl.load(last + b * EACH).to(tl.int32) * columns
        if not NEW:
            end += columns
    top = tl.full([BQ], float("-inf"), dtype=tl.float32)
    total = tl.zeros([BQ], dtype=tl.float32)
    mixed = tl.zeros([BQ, K], dtype=tl.float32)  # Σ weight · value, not yet divided by total
    mask_at = mask + b * m_b + head[:, None] * m_h + t[:, None] * m_t
    if NEW:
        new_at = new_k + b * nk_b + g * nk_g + half
        new1 = tl.load(new_at).to(tl.float32)
        new2 = tl.load(new_at + HALF).to(tl.float32)
        if ROPE:
            new1, new2 = new1 * c - new2 * d, new2 * c + new1 * d
        value = tl.load(new_v + b * nv_b + g * nv_g + full)
        slot = k + b * k_b + g * k_g + end * k_s + half
        tl.store(slot, new1)
        tl.store(slot + HALF, new2)
        tl.store(v + b * v_b + g * v_g + end * v_s + full, value)
        new1 = new1.to(dtype).to(tl.float32)  # as it is stored
        new2 = new2.to(dtype).to(tl.float32)
        product = q1.to(tl.float32) * new1[None, :] + q2.to(tl.float32) * new2[None, :]
        top = tl.sum(product, axis=1) * scale
        if MASK == 2:
            bias_at = mask + b * m_b + head * m_h + t * m_t + end * m_s
            top += tl.load(bias_at, mask=query_valid, other=0.0).to(tl.float32)
        # The new key is the first one seen: its weight is exp(score − top) = 1.
        total += 1.0
        mixed += value.to(tl.float32)[None, :]
    for begin in range(0, end, BS):
        at = begin + s
        key_valid = at < end
        key_at = k + b * k_b + g * k_g + at[:, None].to(tl.int64) * k_s + half[None, :]
        k1 = _load_rows(key_at, key_valid)
        k2 = _load_rows(key_at + HALF, key_valid)
        scores = tl.dot(q1, tl.trans(k1), input_precision=PRECISION)  # [BQ, BS]
        scores = tl.dot(q2, tl.trans(k2), scores, input_precision=PRECISION) * scale
        visible = query_valid[:, None] & key_valid[None, :]
        if MASK == 1:
            visible = visible & (tl.load(mask_at + at[None, :] * m_s, mask=visible, other=0) != 0)
        if MASK == 2:
            scores += tl.load(mask_at + at[None, :] * m_s, mask=visible, other=0.0).to(tl.float32)
        scores = tl.where(visible, scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, axis=1))
        safe = tl.where(new_top == float("-inf"), 0.0, new_top)  # −∞ − −∞ would be NaN
        weights = tl.exp(scores - safe[:, None])
        correction = tl.exp(top - safe)
        total = total * correction + tl.sum(weights, axis=1)
        value_at = v + b * v_b + g * v_g + at[:, None].to(tl.int64) * v_s + full[None, :]
        values = _load_rows(value_at, key_valid)
        mixed = tl.dot(
            weights.to(values.dtype), values, mixed * correction[:, None], input_precision=PRECISION
        )
        top = new_top
    mixed = mixed / tl.where(total == 0.0, 1.0, total)[:, None]  # zeros if all is masked
    out_at = out + b * o_b + head[:, None] * o_h + t[:, None] * o_t + full[None, :]
    tl.store(out_at, mixed, mask=query_valid[:, None])


@triton.jit
def _rotate(x, at, column, cos, sin, K: constexpr):
    """Rotary position embedding of x [K], which is stored at `at`."""
    HALF: constexpr = K // 2
    partner = tl.load(at + (column + HALF) % K).to(tl.float32)
    signed = tl.where(column < HALF, -partner, partner)
    return x * tl.load(cos + column % HALF) + signed * tl.load(sin + column % HALF)


@triton.jit(do_not_specialize=["S", "m_b", "m_h", "m_s", "columns"])
def single_query_attention(
    q, k, v, new_k, new_v, mask, last, cos, sin, out,
    q_b, q_h, k_b, k_h, k_s, v_b, v_h, v_s, nk_b, nk_h, nv_b, nv_h, m_b, m_h, m_s, o_b, o_h,
    H, S, columns, scale,
    BS: constexpr, K: constexpr, MASK: constexpr, NEW: constexpr, LAST: constexpr,
    EACH: constexpr, ROPE: constexpr, PDL: constexpr,
):  # fmt: skip
    """One query of a head that has keys of its own, by each program.

    The first cached keys and values are loaded before the wait, each further block of them one
    iteration before it is needed.
    """
    b = (tl.program_id(0) // H).to(tl.int64)
    h = tl.program_id(0) % H
    s = tl.arange(0, BS)
    column = tl.arange(0, K)
    dtype = q.dtype.element_ty
    end = S
    if LAST:
        end = tl.load(last + b * EACH).to(tl.int32) * columns
        if not NEW:
            end += columns
    key_at = k + b * k_b + h * k_h + s[:, None].to(tl.int64) * k_s + column[None, :]
    value_at = v + b * v_b + h * v_h + s[:, None].to(tl.int64) * v_s + column[None, :]
    keys = _load_rows(key_at, s < end)  # [BS, K]
    values = _load_rows(value_at, s < end)
    wait_for_previous(PDL)
    query_at = q + b * q_b + h * q_h
    query = tl.load(query_at + column).to(tl.float32)
    if ROPE:
        query = _rotate(query, query_at, column, cos, sin, K).to(dtype).to(tl.float32)
    mask_at = mask + b * m_b + h * m_h
    top = float("-inf")
    total = 0.0
    mixed = tl.zeros([K], dtype=tl.float32)
    if NEW:
        new_at = new_k + b * nk_b + h * nk_h
        key = tl.load(new_at + column).to(tl.float32)
        if ROPE:
            key = _rotate(key, new_at, column, cos, sin, K).to(dtype).to(tl.float32)
        value = tl.load(new_v + b * nv_b + h * nv_h + column)
        tl.store(k + b * k_b + h * k_h + end.to(tl.int64) * k_s + column, key)
        tl.store(v + b * v_b + h * v_h + end.to(tl.int64) * v_s + column, value)
        top = tl.sum(query * key, axis=0) * scale
        if MASK == 2:
            top += tl.load(mask_at + end * m_s).to(tl.float32)
        # The new key is the first one seen: its weight is exp(score − top) = 1.
        total = 1.0
        mixed = value.to(tl.float32)
    for begin in range(0, end, BS):
        at = begin + s
        visible = at < end
        next_valid = at + BS < end
        scores = tl.sum(keys.to(tl.float32) * query[None, :], axis=1) * scale  # [BS]
        key_at += BS * k_s.to(tl.int64)
        keys = _load_rows(key_at, next_valid)
        if MASK == 1:
            visible = visible & (tl.load(mask_at + at * m_s, mask=visible, other=0) != 0)
        if MASK == 2:
            scores += tl.load(mask_at + at * m_s, mask=visible, other=0.0).to(tl.float32)
        scores = tl.where(visible, scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, axis=0))
        safe = tl.where(new_top == float("-inf"), 0.0, new_top)  # −∞ − −∞ would be NaN
        weights = tl.exp(scores - safe)
        correction = tl.exp(top - safe)
        total = total * correction + tl.sum(weights, axis=0)
        mixed = mixed * correction + tl.sum(values.to(tl.float32) * weights[:, None], axis=0)
        value_at += BS * v_s.to(tl.int64)
        values = _load_rows(value_at, next_valid)
        top = new_top
    tl.store(out + b * o_b + h * o_h + column, mixed / tl.where(total == 0.0, 1.0, total))
