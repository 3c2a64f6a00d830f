"""Softmax attention over short sequences on a GPU, forward and backward: one program for each row and head holds all of its
queries, keys and values. Kernels for long sequences cut them into tiles of which short ones fill a corner.

Weights are neither written nor read: the backward pass makes them again, with the same dropout from the same seed.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _rows(
    x, batch, head, stride_b, stride_h, stride_t, stride_k, T, K, BT: tl.constexpr, BK: tl.constexpr
):
    """[BT, BK] pointers to the places of one row and head, and which of them are."""
    t, k = tl.arange(0, BT)[:, None], tl.arange(0, BK)[None, :]
    return x + batch * stride_b + head * stride_h + t * stride_t + k * stride_k, (t < T) & (k < K)


@triton.jit
def _seen(
    mask,
    batch,
    mask_b,
    mask_t,
    mask_s,
    T,
    S,
    BT: tl.constexpr,
    BS: tl.constexpr,
    KIND: tl.constexpr,
):
    """[BT, BS]: who may look at whom. KIND 0: all, 1: what comes before, 2: as `mask` says."""
    t, s = tl.arange(0, BT)[:, None], tl.arange(0, BS)[None, :]
    seen = (t < T) & (s < S)
    if KIND == 1:
        seen = seen & (s <= t)
    if KIND == 2:
        seen = seen & (
            tl.load(mask + batch * mask_b + t * mask_t + s * mask_s, mask=seen, other=0) != 0
        )
    return seen


@triton.jit
def _kept(seed, program, rate, BT: tl.constexpr, BS: tl.constexpr):
    """[BT, BS]: 0 for what is dropped, 1 / (1 − rate) for the rest."""
    places = tl.arange(0, BT)[:, None] * BS + tl.arange(0, BS)[None, :]
    drawn = tl.rand(tl.load(seed), program * (BT * BS) + places)
    return tl.where(drawn >= rate, 1.0 / (1.0 - rate), 0.0)


# Lengths differ from batch to batch: a kernel for each of them would take longer to compile than all steps take.
_LENGTHS = ["T", "S", "mask_b", "mask_t", "mask_s"]


@triton.jit(do_not_specialize=_LENGTHS)
def _forward(
    q, k, v, out, sums, mask, seed,
    q_b, q_h, q_t, q_k, k_b, k_h, k_t, k_k, v_b, v_h, v_t, v_k, o_b, o_h, o_t, o_k, mask_b, mask_t, mask_s,
    H, T, S, K, E, scale, rate,
    BT: tl.constexpr, BS: tl.constexpr, BK: tl.constexpr, BE: tl.constexpr, KIND: tl.constexpr, DROPS: tl.constexpr,
    EXACT: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    batch, head = (program // H).to(tl.int64), program % H
    place, there = _rows(q, batch, head, q_b, q_h, q_t, q_k, T, K, BT, BK)
    queries = tl.load(place, mask=there, other=0.0)
    place, there = _rows(k, batch, head, k_b, k_h, k_t, k_k, S, K, BS, BK)
    keys = tl.load(place, mask=there, other=0.0)
    place, there = _rows(v, batch, head, v_b, v_h, v_t, v_k, S, E, BS, BE)
    values = tl.load(place, mask=there, other=0.0)
    seen = _seen(mask, batch, mask_b, mask_t, mask_s, T, S, BT, BS, KIND)
    scores = tl.where(
        seen, tl.dot(queries, tl.trans(keys), input_precision=EXACT) * scale, float("-inf")
    )
    top = tl.max(scores, axis=1)
    top = tl.where(top == float("-inf"), 0.0, top)  # a query that sees nothing
    weights = tl.exp(scores - top[:, None])
    total = tl.sum(weights, axis=1)
    weights = weights / tl.where(total == 0.0, 1.0, total)[:, None]
    if DROPS:
        weights = weights * _kept(seed, program, rate, BT, BS)
    mixed = tl.dot(weights.to(values.dtype), values, input_precision=EXACT)
    place, there = _rows(out, batch, head, o_b, o_h, o_t, o_k, T, E, BT, BE)
    tl.store(place, mixed.to(values.dtype), mask=there)
    t = tl.arange(0, BT)
    log_total = tl.where(
        total == 0.0, float("inf"), top + tl.log(total)
    )  # such a query weighs nothing
    tl.store(sums + program * T + t, log_total, mask=t < T)


@triton.jit(do_not_specialize=_LENGTHS)
def _backward(
    q, k, v, above, sums, mask, seed, to_q, to_k, to_v,
    q_b, q_h, q_t, q_k, k_b, k_h, k_t, k_k, v_b, v_h, v_t, v_k, a_b, a_h, a_t, a_k,
    dq_b, dq_h, dq_t, dq_k, dk_b, dk_h, dk_t, dk_k, dv_b, dv_h, dv_t, dv_k, mask_b, mask_t, mask_s,
    H, T, S, K, E, scale, rate,
    BT: tl.constexpr, BS: tl.constexpr, BK: tl.constexpr, BE: tl.constexpr, KIND: tl.constexpr, DROPS: tl.constexpr,
    EXACT: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    batch, head = (program // H).to(tl.int64), program % H
    place, there = _rows(q, batch, head, q_b, q_h, q_t, q_k, T, K, BT, BK)
    queries = tl.load(place, mask=there, other=0.0)
    place, there = _rows(k, batch, head, k_b, k_h, k_t, k_k, S, K, BS, BK)
    keys = tl.load(place, mask=there, other=0.0)
    place, there = _rows(v, batch, head, v_b, v_h, v_t, v_k, S, E, BS, BE)
    values = tl.load(place, mask=there, other=0.0)
    place, there = _rows(above, batch, head, a_b, a_h, a_t, a_k, T, E, BT, BE)
    grads = tl.load(place, mask=there, other=0.0)
    t = tl.arange(0, BT)
    total = tl.load(sums + program * T + t, mask=t < T, other=float("inf"))
    seen = _seen(mask, batch, mask_b, mask_t, mask_s, T, S, BT, BS, KIND)
    scores = tl.dot(queries, tl.trans(keys), input_precision=EXACT) * scale
    weights = tl.exp(tl.where(seen, scores, float("-inf")) - total[:, None])
    to_weights = tl.dot(grads, tl.trans(values), input_precision=EXACT)
    used = weights
    if DROPS:
        kept = _kept(seed, program, rate, BT, BS)
        used = weights * kept
        to_weights = to_weights * kept
    place, there = _rows(to_v, batch, head, dv_b, dv_h, dv_t, dv_k, S, E, BS, BE)
    found = tl.dot(tl.trans(used.to(values.dtype)), grads, input_precision=EXACT)
    tl.store(place, found.to(values.dtype), mask=there)
    to_scores = weights * (to_weights - tl.sum(weights * to_weights, axis=1)[:, None]) * scale
    to_scores = to_scores.to(values.dtype)
    place, there = _rows(to_q, batch, head, dq_b, dq_h, dq_t, dq_k, T, K, BT, BK)
    tl.store(place, tl.dot(to_scores, keys, input_precision=EXACT).to(values.dtype), mask=there)
    place, there = _rows(to_k, batch, head, dk_b, dk_h, dk_t, dk_k, S, K, BS, BK)
    tl.store(
        place,
        tl.dot(tl.trans(to_scores), queries, input_precision=EXACT).to(values.dtype),
        mask=there,
    )


def _settings(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, rate: float
) -> dict[str, Any]:
    # Queries and keys in blocks of one size, so that few kernels are compiled.
    length, d_k, d_v = (
        max(16, triton.next_power_of_2(n))
        for n in (max(q.shape[2], k.shape[2]), q.shape[3], v.shape[3])
    )
    names = {"BT": length, "BS": length, "BK": d_k, "BE": d_v}
    exact = (
        "ieee" if q.dtype == torch.float32 and not torch.backends.cuda.matmul.allow_tf32 else "tf32"
    )
    warps = {16: 1, 32: 2}.get(length, 4)
    return names | {
        "KIND": 1 if causal else 0 if mask is None else 2, "DROPS": rate > 0, "EXACT": exact, "num_warps": warps
    }  # fmt: skip


def _strides(q: Tensor, k: Tensor, mask: Tensor | None) -> tuple[int, ...]:
    """Of a mask [B or 1, 1, T or 1, S or 1]: those of row, query and key."""
    if mask is None:
        return (0, 0, 0)
    wide = mask.expand(len(q), 1, q.shape[2], k.shape[2])
    return wide.stride(0), wide.stride(2), wide.stride(3)


def _made(like: Tensor) -> Tensor:
    """[B, H, T, K] whose heads lie beside each other, as projections want them."""
    b, h, t, k = like.shape
    return like.new_empty(b, t, h, k).transpose(1, 2)


def _mixed(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    seed: Tensor,
    causal: bool,
    scale: float,
    rate: float,
) -> tuple[Tensor, Tensor]:
    b, h, t, _ = q.shape
    out = v.new_empty(b, t, h, v.shape[3]).transpose(1, 2)
    sums = torch.empty(b, h, t, device=q.device)
    _forward[(b * h,)](
        q, k, v, out, sums, seed if mask is None else mask.view(torch.uint8), seed,
        *q.stride(), *k.stride(), *v.stride(), *out.stride(), *_strides(q, k, mask),
        h, t, k.shape[2], q.shape[3], v.shape[3], scale, rate, **_settings(q, k, v, mask, causal, rate),
    )  # fmt: skip
    return out, sums


_attention = torch.library.custom_op("regard::short_attention", _mixed, mutates_args=())


@_attention.register_fake
def _(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    seed: Tensor,
    causal: bool,
    scale: float,
    rate: float,
) -> Any:
    b, h, t, _ = q.shape
    return v.new_empty(b, t, h, v.shape[3]).transpose(1, 2), q.new_empty(
        b, h, t, dtype=torch.float32
    )


@torch.library.custom_op("regard::short_attention_backward", mutates_args=())
def _gradients(
    above: Tensor, q: Tensor, k: Tensor, v: Tensor, sums: Tensor, mask: Tensor | None, seed: Tensor, causal: bool,
    scale: float, rate: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    b, h, t, _ = q.shape
    found = _made(q), _made(k), _made(v)
    _backward[(b * h,)](
        q, k, v, above, sums, seed if mask is None else mask.view(torch.uint8), seed, *found,
        *q.stride(), *k.stride(), *v.stride(), *above.stride(), *(n for x in found for n in x.stride()),
        *_strides(q, k, mask), h, t, k.shape[2], q.shape[3], v.shape[3], scale, rate,
        **_settings(q, k, v, mask, causal, rate),
    )  # fmt: skip
    return found


@_gradients.register_fake
def _(above: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Any:
    return _made(q), _made(k), _made(v)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, mask, seed, ctx.causal, ctx.scale, ctx.rate = inputs
    ctx.save_for_backward(q, k, v, output[1], mask, seed)


def _back(ctx: Any, above: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    q, k, v, sums, mask, seed = ctx.saved_tensors
    found = torch.ops.regard.short_attention_backward(
        above, q, k, v, sums, mask, seed, ctx.causal, ctx.scale, ctx.rate
    )
    return *found, None, None, None, None, None


_attention.register_autograd(_back, setup_context=_remember)


def attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float, rate: float
) -> Tensor:
    """q [B, H, T, K], k [B, H, S, K], v [B, H, S, E] → [B, H, T, E]; `mask` [B or 1, 1, T or 1, S] says who may look."""
    # The chance of a call is one number from the default generator, drawn on the device.
    seed = (
        torch.randint(2**31, (1,), device=q.device)
        if rate > 0
        else torch.empty(1, dtype=torch.long, device=q.device)
    )
    # What an operator of torch's is wrapped in costs more than a short text does.
    plain = not (torch.is_grad_enabled() or torch.compiler.is_compiling())
    mixed, _ = (_mixed if plain else torch.ops.regard.short_attention)(
        q, k, v, mask, seed, causal, scale, rate
    )
    return mixed
