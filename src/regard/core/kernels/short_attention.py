"""Softmax attention over short sequences on a GPU, forward and backward.

One program for each sequence and head loads all of its queries, keys and values at once. Kernels
for long sequences cut them into tiles, of which short ones would fill a corner.

Attention weights are never in memory: the backward pass recomputes them from the saved log-sum-exp,
with the same dropout from the same seed (as FlashAttention does, Dao et al. 2022).

Shapes: q [B, H, T, K], k [B, H, S, K], v [B, H, S, E]; blocks BT, BS, BK, BE are these sizes,
rounded up to powers of two. `x_b`, `x_h`, `x_t`, `x_k` are the strides of x.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr

# MASK: what a query may attend to.
_NO_MASK = 0
_CAUSAL = 1
_BOOLEAN_MASK = 2

# Lengths differ from batch to batch: to compile a kernel for each of them would take longer than
# all steps take.
_LENGTHS = ["T", "S", "mask_b", "mask_t", "mask_s"]


# --- kernels ---


@triton.jit
def _block(
    x, batch, head, x_b, x_h, x_t, x_k, T, K, BT: constexpr, BK: constexpr
):  # fmt: skip
    """[BT, BK] pointers to the vectors of one sequence and head, and which of them exist."""
    t = tl.arange(0, BT)[:, None]
    k = tl.arange(0, BK)[None, :]
    return x + batch * x_b + head * x_h + t * x_t + k * x_k, (t < T) & (k < K)


@triton.jit
def _visible(
    mask, batch, mask_b, mask_t, mask_s, T, S,
    BT: constexpr, BS: constexpr, MASK: constexpr,
):  # fmt: skip
    """[BT, BS] the attention mask: True where query t may attend to key s."""
    t = tl.arange(0, BT)[:, None]
    s = tl.arange(0, BS)[None, :]
    visible = (t < T) & (s < S)
    if MASK == 1:
        visible = visible & (s <= t)
    if MASK == 2:
        mask_at = mask + batch * mask_b + t * mask_t + s * mask_s
        visible = visible & (tl.load(mask_at, mask=visible, other=0) != 0)
    return visible


@triton.jit
def _dropout_factors(seed, program, rate, BT: constexpr, BS: constexpr):
    """[BT, BS]: 0 for dropped weights, 1 / (1 − rate) for the others."""
    index = tl.arange(0, BT)[:, None] * BS + tl.arange(0, BS)[None, :]
    uniform = tl.rand(tl.load(seed), program * (BT * BS) + index)
    return tl.where(uniform >= rate, 1.0 / (1.0 - rate), 0.0)


@triton.jit(do_not_specialize=_LENGTHS)
def _forward_kernel(
    q, k, v, out, logsumexp, mask, seed,
    q_b, q_h, q_t, q_k, k_b, k_h, k_t, k_k, v_b, v_h, v_t, v_k, o_b, o_h, o_t, o_k,
    mask_b, mask_t, mask_s, H, T, S, K, E, scale, rate,
    BT: constexpr, BS: constexpr, BK: constexpr, BE: constexpr, MASK: constexpr,
    DROPOUT: constexpr, PRECISION: constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    batch = (program // H).to(tl.int64)
    head = program % H
    query_at, query_valid = _block(q, batch, head, q_b, q_h, q_t, q_k, T, K, BT, BK)
    queries = tl.load(query_at, mask=query_valid, other=0.0)  # [BT, BK]
    key_at, key_valid = _block(k, batch, head, k_b, k_h, k_t, k_k, S, K, BS, BK)
    keys = tl.load(key_at, mask=key_valid, other=0.0)  # [BS, BK]
    value_at, value_valid = _block(v, batch, head, v_b, v_h, v_t, v_k, S, E, BS, BE)
    values = tl.load(value_at, mask=value_valid, other=0.0)  # [BS, BE]
    visible = _visible(mask, batch, mask_b, mask_t, mask_s, T, S, BT, BS, MASK)
    scores = tl.dot(queries, tl.trans(keys), input_precision=PRECISION) * scale  # [BT, BS]
    scores = tl.where(visible, scores, float("-inf"))
    top = tl.max(scores, axis=1)
    top = tl.where(top == float("-inf"), 0.0, top)  # a fully masked query
    weights = tl.exp(scores - top[:, None])
    total = tl.sum(weights, axis=1)
    weights = weights / tl.where(total == 0.0, 1.0, total)[:, None]
    if DROPOUT:
        weights = weights * _dropout_factors(seed, program, rate, BT, BS)
    mixed = tl.dot(weights.to(values.dtype), values, input_precision=PRECISION)  # [BT, BE]
    out_at, out_valid = _block(out, batch, head, o_b, o_h, o_t, o_k, T, E, BT, BE)
    tl.store(out_at, mixed.to(values.dtype), mask=out_valid)
    t = tl.arange(0, BT)
    # +∞ makes all weights of a fully masked query zero in the backward pass.
    row_logsumexp = tl.where(total == 0.0, float("inf"), top + tl.log(total))
    tl.store(logsumexp + program * T + t, row_logsumexp, mask=t < T)


@triton.jit(do_not_specialize=_LENGTHS)
def _backward_kernel(
    q, k, v, grad, logsumexp, mask, seed, dq, dk, dv,
    q_b, q_h, q_t, q_k, k_b, k_h, k_t, k_k, v_b, v_h, v_t, v_k, g_b, g_h, g_t, g_k,
    dq_b, dq_h, dq_t, dq_k, dk_b, dk_h, dk_t, dk_k, dv_b, dv_h, dv_t, dv_k,
    mask_b, mask_t, mask_s, H, T, S, K, E, scale, rate,
    BT: constexpr, BS: constexpr, BK: constexpr, BE: constexpr, MASK: constexpr,
    DROPOUT: constexpr, PRECISION: constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    batch = (program // H).to(tl.int64)
    head = program % H
    query_at, query_valid = _block(q, batch, head, q_b, q_h, q_t, q_k, T, K, BT, BK)
    queries = tl.load(query_at, mask=query_valid, other=0.0)
    key_at, key_valid = _block(k, batch, head, k_b, k_h, k_t, k_k, S, K, BS, BK)
    keys = tl.load(key_at, mask=key_valid, other=0.0)
    value_at, value_valid = _block(v, batch, head, v_b, v_h, v_t, v_k, S, E, BS, BE)
    values = tl.load(value_at, mask=value_valid, other=0.0)
    grad_at, grad_valid = _block(grad, batch, head, g_b, g_h, g_t, g_k, T, E, BT, BE)
    grads = tl.load(grad_at, mask=grad_valid, other=0.0)  # [BT, BE]
    t = tl.arange(0, BT)
    total = tl.load(logsumexp + program * T + t, mask=t < T, other=float("inf"))
    visible = _visible(mask, batch, mask_b, mask_t, mask_s, T, S, BT, BS, MASK)
    scores = tl.dot(queries, tl.trans(keys), input_precision=PRECISION) * scale
    weights = tl.exp(tl.where(visible, scores, float("-inf")) - total[:, None])
    weight_grads = tl.dot(grads, tl.trans(values), input_precision=PRECISION)
    dropped_weights = weights
    if DROPOUT:
        factors = _dropout_factors(seed, program, rate, BT, BS)
        dropped_weights = weights * factors
        weight_grads = weight_grads * factors
    # dV = Pᵀ dO
    dv_at, dv_valid = _block(dv, batch, head, dv_b, dv_h, dv_t, dv_k, S, E, BS, BE)
    dropped_weights = dropped_weights.to(values.dtype)
    value_grads = tl.dot(tl.trans(dropped_weights), grads, input_precision=PRECISION)
    tl.store(dv_at, value_grads.to(values.dtype), mask=dv_valid)
    # The softmax: dS = P ∘ (dP − Σ P ∘ dP)
    row_sums = tl.sum(weights * weight_grads, axis=1)
    score_grads = weights * (weight_grads - row_sums[:, None]) * scale
    score_grads = score_grads.to(values.dtype)
    # dQ = dS K and dK = dSᵀ Q
    dq_at, dq_valid = _block(dq, batch, head, dq_b, dq_h, dq_t, dq_k, T, K, BT, BK)
    query_grads = tl.dot(score_grads, keys, input_precision=PRECISION)
    tl.store(dq_at, query_grads.to(values.dtype), mask=dq_valid)
    dk_at, dk_valid = _block(dk, batch, head, dk_b, dk_h, dk_t, dk_k, S, K, BS, BK)
    key_grads = tl.dot(tl.trans(score_grads), queries, input_precision=PRECISION)
    tl.store(dk_at, key_grads.to(values.dtype), mask=dk_valid)


# --- launches ---


def _options(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, rate: float
) -> dict[str, Any]:
    """The compile-time options of both kernels."""
    # Queries and keys in blocks of one size, so that few kernels are compiled.
    length = _block_size(max(q.shape[2], k.shape[2]))
    if causal:
        mask_kind = _CAUSAL
    elif mask is None:
        mask_kind = _NO_MASK
    else:
        mask_kind = _BOOLEAN_MASK
    exact = q.dtype == torch.float32 and not torch.backends.cuda.matmul.allow_tf32
    return {
        "BT": length,
        "BS": length,
        "BK": _block_size(q.shape[3]),
        "BE": _block_size(v.shape[3]),
        "MASK": mask_kind,
        "DROPOUT": rate > 0,
        "PRECISION": "ieee" if exact else "tf32",
        "num_warps": {16: 1, 32: 2}.get(length, 4),
    }


def _block_size(n: int) -> int:
    """A power of two that `tl.dot` takes."""
    return max(16, triton.next_power_of_2(n))


def _mask_strides(q: Tensor, k: Tensor, mask: Tensor | None) -> tuple[int, ...]:
    """The strides of a mask [B or 1, 1, T or 1, S or 1] over sequence, query and key."""
    if mask is None:
        return (0, 0, 0)
    expanded = mask.expand(len(q), 1, q.shape[2], k.shape[2])
    return expanded.stride(0), expanded.stride(2), expanded.stride(3)


def _mask_pointer(mask: Tensor | None, placeholder: Tensor) -> Tensor:
    """An argument for a kernel: a pointer that is not used must still point somewhere."""
    return placeholder if mask is None else mask.view(torch.uint8)


def _empty_heads(like: Tensor) -> Tensor:
    """[B, H, T, K] whose heads are adjacent in memory, as the projections around it read them."""
    b, h, t, k = like.shape
    return like.new_empty(b, t, h, k).transpose(1, 2)


def _launch_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    seed: Tensor,
    causal: bool,
    scale: float,
    rate: float,
) -> tuple[Tensor, Tensor]:
    """The output [B, H, T, E], and the log-sum-exp of the scores [B, H, T]."""
    b, h, t, _ = q.shape
    out = v.new_empty(b, t, h, v.shape[3]).transpose(1, 2)
    logsumexp = torch.empty(b, h, t, device=q.device)
    _forward_kernel[(b * h,)](
        q, k, v, out, logsumexp, _mask_pointer(mask, seed), seed,
        *q.stride(), *k.stride(), *v.stride(), *out.stride(), *_mask_strides(q, k, mask),
        h, t, k.shape[2], q.shape[3], v.shape[3], scale, rate,
        **_options(q, k, v, mask, causal, rate),
    )  # fmt: skip
    return out, logsumexp


# --- operators of PyTorch: autograd, and shapes for torch.compile ---

_forward_op = torch.library.custom_op("regard::short_attention", _launch_forward, mutates_args=())


@_forward_op.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Any:
    b, h, t, _ = q.shape
    out = v.new_empty(b, t, h, v.shape[3]).transpose(1, 2)
    logsumexp = q.new_empty(b, h, t, dtype=torch.float32)
    return out, logsumexp


@torch.library.custom_op("regard::short_attention_backward", mutates_args=())
def _backward_op(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    logsumexp: Tensor,
    mask: Tensor | None,
    seed: Tensor,
    causal: bool,
    scale: float,
    rate: float,
) -> tuple[Tensor, Tensor, Tensor]:
    b, h, t, _ = q.shape
    dq = _empty_heads(q)
    dk = _empty_heads(k)
    dv = _empty_heads(v)
    _backward_kernel[(b * h,)](
        q, k, v, grad, logsumexp, _mask_pointer(mask, seed), seed, dq, dk, dv,
        *q.stride(), *k.stride(), *v.stride(), *grad.stride(),
        *dq.stride(), *dk.stride(), *dv.stride(), *_mask_strides(q, k, mask),
        h, t, k.shape[2], q.shape[3], v.shape[3], scale, rate,
        **_options(q, k, v, mask, causal, rate),
    )  # fmt: skip
    return dq, dk, dv


@_backward_op.register_fake
def _(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Any:
    return _empty_heads(q), _empty_heads(k), _empty_heads(v)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, mask, seed, ctx.causal, ctx.scale, ctx.rate = inputs
    _, logsumexp = output
    ctx.save_for_backward(q, k, v, logsumexp, mask, seed)


def _backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    q, k, v, logsumexp, mask, seed = ctx.saved_tensors
    gradients = torch.ops.regard.short_attention_backward(
        grad, q, k, v, logsumexp, mask, seed, ctx.causal, ctx.scale, ctx.rate
    )
    return *gradients, None, None, None, None, None


_forward_op.register_autograd(_backward, setup_context=_setup_context)


def attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float, rate: float
) -> Tensor:
    """Softmax attention: q [B, H, T, K], k [B, H, S, K], v [B, H, S, E] → [B, H, T, E].

    `mask` [B or 1, 1, T or 1, S]: True for keys that may be attended to; `rate` is that of dropout.
    """
    if rate > 0:
        # The dropout of a call follows from one number of the default generator of the device.
        seed = torch.randint(2**31, (1,), device=q.device)
    else:
        seed = torch.empty(1, dtype=torch.long, device=q.device)
    arguments = (q, k, v, mask, seed, causal, scale, rate)
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        out, _ = torch.ops.regard.short_attention(*arguments)
    else:
        # The overhead of a PyTorch operator costs more than attention over a short text.
        out, _ = _launch_forward(*arguments)
    return out  # type: ignore[no-any-return]
