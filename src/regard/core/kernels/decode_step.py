"""The operations of one decoding step of few rows on a GPU, fused into few kernels.

One token of a few rows costs mostly waiting: for kernels to start, and for what they read first. So
each kernel does the work of many: a linear layer with the norm before it and the activation and
residual sum after it; attention of few queries that rotates them, writes the new key and value into
the cache and attends to all of it. And each is launched by programmatic dependent launch
(`dependent_launch.py`), so that it begins while the one before it still runs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from regard.core.kernels.decode_attention_kernels import (
    grouped_query_attention,
    single_query_attention,
)
from regard.core.kernels.decode_linear_kernels import (
    embedding_lookup,
    linear_few_rows,
    linear_one_row,
    residual_sum_norm,
)
from regard.core.kernels.dependent_launch import supports_pdl
from regard.core.norm import KernelNorm

_PROGRAMS = 192  # programs that a device has room for at once, at least
_MANY_PROGRAMS = 256  # fewer programs of attention have a larger part of the device each


def _pointer(optional: Tensor | None, placeholder: Tensor) -> Tensor:
    """An argument for a kernel: a pointer that is not used must still point somewhere."""
    return placeholder if optional is None else optional


def _precision(x: Tensor) -> str:
    """How `tl.dot` multiplies: all digits of float32; the word does not matter to other dtypes."""
    return "ieee" if x.dtype == torch.float32 else "tf32"


# --- embeddings ---


def look_up(
    tokens: Tensor, table: Tensor, scale: float, positions: Tensor | None, position: Tensor
) -> Tensor:
    """Embeddings: scale · table[tokens] + positions[position] for tokens [M] and position [1], or
    [M, 1] of each."""
    width = table.shape[1]
    out = table.new_empty(len(tokens), width)
    pdl = supports_pdl(table.device)
    embedding_lookup[(len(tokens),)](
        tokens, table, _pointer(positions, table), position, out, scale, width,
        POSITIONS=positions is not None, EACH=int(position.ndim == 2),
        BK=triton.next_power_of_2(width), PDL=pdl,
        num_warps=4, launch_pdl=pdl,
    )  # fmt: skip
    return out


# --- residual sums and norms ---


class Sum(NamedTuple):
    """A residual sum [M, K]: x itself, or x + Σ parts + bias that is still to be computed, and a
    norm that is still to be taken of it."""

    x: Tensor
    parts: Tensor | None = None  # [P, M, K]
    bias: Tensor | None = None  # [K]
    norm: KernelNorm | None = None


def summed(pending: Sum, norm: KernelNorm | None, *, total: bool = False) -> tuple[Tensor, Tensor]:
    """The residual sum and its norm: [M, K] each.

    The sum is only written if `total` asks for it; without parts and bias it is x itself.
    """
    x, parts, bias, _ = pending
    rows, width = x.shape
    kind, gain, shift, eps, offset = norm or ("none", x, None, 0.0, 0.0)
    out = torch.empty_like(x)
    pdl = supports_pdl(x.device)
    block = triton.next_power_of_2(width)
    write_total = total and (parts is not None or bias is not None)
    residual_sum = torch.empty_like(x) if write_total else x
    residual_sum_norm[(rows,)](
        x,
        _pointer(parts, x),
        _pointer(bias, x),
        gain,
        _pointer(shift, gain),
        residual_sum,
        out,
        x.numel(),
        width,
        eps,
        offset,
        PARTS=0 if parts is None else len(parts),
        BIAS=bias is not None,
        TOTAL=write_total,
        NORM=kind,
        SHIFT=shift is not None,
        BK=block,
        PDL=pdl,
        num_warps=4 if block <= 4096 else 8,
        launch_pdl=pdl,
    )
    return residual_sum, out


# --- linear layers ---


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    norm: KernelNorm | None = None,
    normed: Tensor | None = None,
    activation: str = "none",
    gated: bool = False,
    rest: Tensor | None = None,
) -> Tensor:
    """A linear layer of x [M, K]: rest + activation(norm(x) Wᵀ + b), `rest` being the residual.

    Only one row may have a norm; `normed` receives norm(x), unless it is x. In a gated layer, the
    first half of the outputs goes through the activation and multiplies the second half.
    """
    rows, inputs = x.shape
    outputs = len(weight) // 2 if gated else len(weight)
    out = x.new_empty(rows, outputs)
    residual = _pointer(rest, x)
    options: dict[str, Any] = {
        "ACTIVATION": activation,
        "GATED": gated,
        "BIAS": bias is not None,
        "RESIDUAL": rest is not None,
    }
    if rows > 1:
        assert norm is None, (
            "each program would compute the norm anew, which costs more than a kernel of its own"
        )
        _launch_few_rows(x, weight, _pointer(bias, x), residual, out, inputs, options)
        return out
    pdl = supports_pdl(x.device)
    kind, gain, shift, eps, offset = norm or ("none", x, None, 0.0, 0.0)
    block_n, block_k, warps = _one_row_tile(inputs, outputs)
    linear_one_row[(triton.cdiv(outputs, block_n),)](
        x, weight, _pointer(bias, x), gain, _pointer(shift, gain), residual, _pointer(normed, x),
        out, outputs, inputs, weight.stride(0), eps, offset, NORM=kind, SHIFT=shift is not None,
        KEEP=norm is not None and normed is not None and normed is not x, **options,
        ROW=triton.next_power_of_2(inputs), BN=block_n, BK=block_k, PDL=pdl, num_warps=warps,
        launch_pdl=pdl,
    )  # fmt: skip
    return out


def parts(x: Tensor, weight: Tensor) -> Tensor:
    """Split-K: x Wᵀ of x [M, K], M > 1, as summands [P, M, N] in float32, still to be added.

    A layer with few outputs is cut along its inputs as well, so that all of the device has work.
    """
    rows, inputs = x.shape
    outputs = len(weight)
    block_m, block_n, block_k, _ = _few_rows_tile(rows, outputs)
    tiles = triton.cdiv(outputs, block_n) * triton.cdiv(rows, block_m)
    count = max(1, min(inputs // block_k, _PROGRAMS // tiles))
    split = triton.cdiv(triton.cdiv(inputs, count), block_k) * block_k
    out = x.new_empty(triton.cdiv(inputs, split), rows, outputs, dtype=torch.float32)
    plain = {"ACTIVATION": "none", "GATED": False, "BIAS": False, "RESIDUAL": False}
    _launch_few_rows(x, weight, x, x, out, split, plain)
    return out


def _launch_few_rows(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    residual: Tensor,
    out: Tensor,
    split: int,
    options: dict[str, Any],
) -> None:
    """Fills out [M, N], or out [P, M, N] with summands of `split` inputs each."""
    rows, inputs = x.shape
    outputs = out.shape[-1]
    pdl = supports_pdl(x.device)
    block_m, block_n, block_k, stages = _few_rows_tile(rows, outputs)
    grid = (
        triton.cdiv(outputs, block_n),
        triton.cdiv(rows, block_m),
        triton.cdiv(inputs, split),
    )
    linear_few_rows[grid](
        x, weight, bias, residual, out, rows, outputs, inputs, weight.stride(0), split, **options,
        BM=block_m, BN=block_n, BK=block_k, PRECISION=_precision(x), PDL=pdl, num_warps=4,
        num_stages=stages, launch_pdl=pdl,
    )  # fmt: skip


def _one_row_tile(inputs: int, outputs: int) -> tuple[int, int, int]:
    """Outputs and inputs that a program takes at once, and its warps; measured on an H200.

    Small layers are cut small, so that all of the device has work, and take all inputs at once:
    what is loaded before the wait costs nothing.
    """
    if outputs > 16384 and inputs <= 1024:
        return 16, 256, 4
    if outputs <= 1024 and inputs <= 4096:
        return 2, triton.next_power_of_2(inputs), 8 if inputs > 1024 else 4
    if inputs <= 1024:
        return 8 if outputs > 2048 else 4, triton.next_power_of_2(inputs), 4
    return (4, 1024, 4) if inputs > 8192 else (4, 512, 4)


def _few_rows_tile(rows: int, outputs: int) -> tuple[int, int, int, int]:
    """Rows, outputs and inputs that a program takes at once, and its pipeline stages."""
    block_m = max(16, min(64, triton.next_power_of_2(rows)))
    if outputs > 8192:
        return block_m, 128, 64, 4
    return block_m, 16, 256 if block_m <= 32 else 128, 3


# --- attention ---


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    scale: float,
    *,
    last: Tensor | None = None,
    columns: int = 1,
    new: tuple[Tensor, Tensor] | None = None,
    angles: tuple[Tensor, Tensor] | None = None,
    settled: bool = False,
) -> Tensor:
    """Softmax attention over a KV cache: q [B, H, T, K], k and v [B, G, S, K] → [B, T, H, K].

    `mask` [B or 1, H or 1, T or 1, S]: True for keys that may be attended to, or a bias.
    `last` [1], or [B, 1] of each row: the last position that is attended to, each position being
      `columns` keys.
    `new`: the keys and values [B, G, 1, K] of that position, which are written into the cache.
    `angles`: cosines and sines of rotary positions, for the queries and the new keys.
    `settled`: whether all other keys and values were in the cache before this step, so that the
    kernel may begin before the one before it has ended.
    """
    batch, heads, length, width = q.shape
    groups, keys = k.shape[1:3]
    out = q.new_empty(batch, length, heads, width)
    new_k, new_v = new or (q, q)
    cos, sin = angles or (q, q)
    mask_kind, mask, mask_strides = _expanded_mask(q, mask, keys)
    pdl = settled and supports_pdl(q.device)
    options: dict[str, Any] = {
        "K": width,
        "MASK": mask_kind,
        "NEW": new is not None,
        "LAST": last is not None,
        "EACH": int(last is not None and last.ndim == 2),
        "ROPE": angles is not None,
        "PDL": pdl,
        "launch_pdl": pdl,
    }
    tensors = (q, k, v, new_k, new_v, mask, _pointer(last, q), cos, sin, out)
    cache_strides = (*k.stride()[:3], *v.stride()[:3], *new_k.stride()[:2], *new_v.stride()[:2])
    out_b, out_t, out_h, _ = out.stride()
    many = batch * groups > _MANY_PROGRAMS
    if length == 1 and heads == groups:
        mask_b, mask_h, _, mask_s = mask_strides
        block_bytes = 8192 if many else 16384
        single_query_attention[(batch * heads,)](
            *tensors,
            *q.stride()[:2],
            *cache_strides,
            mask_b,
            mask_h,
            mask_s,
            out_b,
            out_h,
            heads,
            keys,
            columns,
            scale,
            BS=max(16, block_bytes // (width * q.element_size())),
            num_warps=4,
            **options,
        )
        return out
    grouped_query_attention[(batch * groups,)](
        *tensors,
        *q.stride()[:3],
        *cache_strides,
        *mask_strides,
        out_b,
        out_h,
        out_t,
        groups,
        length,
        heads // groups,
        keys,
        columns,
        scale,
        BQ=max(16, triton.next_power_of_2(length * heads // groups)),
        BS=32 if many else 128,
        PRECISION=_precision(q),
        num_warps=1 if many else 4,
        num_stages=3 if many else 2,
        **options,
    )
    return out


def _expanded_mask(
    q: Tensor, mask: Tensor | None, keys: int
) -> tuple[int, Tensor, tuple[int, ...]]:
    """A mask's kind (0 none, 1 boolean, 2 bias), its tensor, and its strides over [B, H, T, S]."""
    if mask is None:
        return 0, q, (0, 0, 0, 0)
    batch, heads, length, _ = q.shape
    mask = mask.expand(batch, heads, length, keys)
    if mask.dtype == torch.bool:
        mask = mask.view(torch.uint8)
    kind = 1 if mask.dtype == torch.uint8 else 2
    return kind, mask, mask.stride()
