"""Fused linear cross-entropy: the LM head's product, the loss, and its gradients in one function.

Each row of logits is read from memory once and replaced by its gradient. (The kernels walk over a
row two or three times, but after the first time it is in the cache; keeping rows in registers was
slower.) The logits are gone when the function returns: what autograd saves is as small as the
hidden states and the embedding table. The table is padded to a multiple of 64 rows, because tensor
cores are twice as fast on such sizes.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr

_BLOCK = 2048
_WARPS = 8
_TABLE_MULTIPLE = 64
_VECTOR = constexpr(8)  # numbers that a lane reads at once
_LOW = constexpr(-3.0e38)
_MAX_LOGITS = 1 << 31  # logits that exist at once; more rows are computed in chunks


# --- kernels ---


@triton.jit
def _load(at, valid):
    """Logits in float32, −∞ where they are not valid."""
    return tl.load(at, mask=valid, other=float("-inf")).to(tl.float32)


@triton.jit
def _store_results(losses, nlls, position, is_token, loss, nll):
    """The loss and −log p of one position: 0 at padding."""
    tl.store(nlls + position, tl.where(is_token, nll, 0.0))
    tl.store(losses + position, tl.where(is_token, loss, 0.0))


@triton.jit
def _logsumexp(row, size, SUM: constexpr, BLOCK: constexpr):
    """log Σ exp(x) of a row, and Σ x if SUM asks for it.

    Each lane has its own running maximum and sums, which it updates once for all the numbers that
    it reads at a time; lanes are combined at the end.
    """
    lanes = tl.arange(0, BLOCK // _VECTOR)[:, None]
    offsets = lanes * _VECTOR + tl.arange(0, _VECTOR)[None, :]
    top = tl.full([BLOCK // _VECTOR], _LOW, dtype=tl.float32)
    total = tl.zeros_like(top)
    plain_sum = tl.zeros_like(top)
    for begin in range(0, size, BLOCK):
        valid = begin + offsets < size
        x = _load(row + begin + offsets, valid)
        new_top = tl.maximum(top, tl.max(x, axis=1))
        total = total * tl.exp(top - new_top) + tl.sum(tl.exp(x - new_top[:, None]), axis=1)
        top = new_top
        if SUM:
            plain_sum += tl.sum(tl.where(valid, x, 0.0), axis=1)
    highest = tl.max(top, axis=0)
    logsumexp = highest + tl.log(tl.sum(total * tl.exp(top - highest), axis=0))
    return logsumexp, tl.sum(plain_sum, axis=0)


@triton.jit
def _loss_kernel(
    logits, labels, losses, nlls, width, size, smoothing, smoothed,
    SUM: constexpr, BLOCK: constexpr,
):  # fmt: skip
    """The loss of one row of logits; its gradient takes the place of the logits.

    With label smoothing, the label has a target probability of 1 − smoothing, and each other token
    one of `smoothed`. A negative label is padding.
    """
    position = tl.program_id(0).to(tl.int64)
    row = logits + position * width
    label = tl.load(labels + position)
    is_token = label >= 0
    label = tl.maximum(label, 0)
    normalizer, plain_sum = _logsumexp(row, size, SUM, BLOCK)
    nll = normalizer - tl.load(row + label).to(tl.float32)
    loss = (1 - smoothing - smoothed) * nll + smoothed * (size * normalizer - plain_sum)
    _store_results(losses, nlls, position, is_token, loss, nll)
    offsets = tl.arange(0, BLOCK)
    smoothed = tl.where(is_token, smoothed, 0.0)
    # exp(x − ∞) = 0: the gradient of padding is zero.
    normalizer = tl.where(is_token, normalizer, float("inf"))
    for begin in range(0, width, BLOCK):
        columns = begin + offsets
        valid = columns < size
        x = _load(row + columns, valid)
        gradient = tl.exp(x - normalizer) - tl.where(valid, smoothed, 0.0)
        tl.store(row + columns, gradient, mask=columns < width)
    tl.debug_barrier()  # the label's number is written again, after all threads have written
    tl.store(row + label, tl.exp(-nll) - (1 - smoothing), mask=is_token)


@triton.jit
def _rdrop_kernel(
    logits, labels, losses, nlls, pairs, width, size, smoothing, smoothed, agreement,
    SUM: constexpr, BLOCK: constexpr,
):  # fmt: skip
    """R-Drop's loss (Liang et al. 2021) of one pair of rows, p and q: two dropouts of one input.

    Half of both rows' loss, plus `agreement` times half of KL(p‖q) + KL(q‖p).
    """
    position = tl.program_id(0).to(tl.int64)
    p_row = logits + position * width
    q_row = logits + (position + pairs) * width
    label = tl.load(labels + position)
    is_token = label >= 0
    label = tl.maximum(label, 0)
    p_normalizer, p_sum = _logsumexp(p_row, size, SUM, BLOCK)
    q_normalizer, q_sum = _logsumexp(q_row, size, SUM, BLOCK)
    p_label = tl.load(p_row + label).to(tl.float32)
    q_label = tl.load(q_row + label).to(tl.float32)
    nll = (p_normalizer + q_normalizer - p_label - q_label) / 2
    nll_of_all = (size * (p_normalizer + q_normalizer) - p_sum - q_sum) / 2
    offsets = tl.arange(0, BLOCK)
    kl_pq = 0.0
    kl_qp = 0.0
    for begin in range(0, size, BLOCK):
        at = begin + offsets
        valid = at < size
        log_p = _load(p_row + at, valid) - p_normalizer
        log_q = _load(q_row + at, valid) - q_normalizer
        difference = tl.where(valid, log_p - log_q, 0.0)
        kl_pq += tl.sum(tl.exp(log_p) * difference, axis=0)
        kl_qp -= tl.sum(tl.exp(log_q) * difference, axis=0)
    loss = (
        (1 - smoothing - smoothed) * nll + smoothed * nll_of_all + agreement * (kl_pq + kl_qp) / 2
    )
    _store_results(losses, nlls, position, is_token, loss, nll)
    for begin in range(0, width, BLOCK):
        columns = begin + offsets
        inside = columns < size
        a = tl.load(p_row + columns, mask=inside, other=0.0).to(tl.float32) - p_normalizer
        b = tl.load(q_row + columns, mask=inside, other=0.0).to(tl.float32) - q_normalizer
        p = tl.exp(a)
        q = tl.exp(b)
        target = tl.where(columns == label, 1 - smoothing, smoothed)
        p_gradient = (p - target + agreement * (p * (a - b - kl_pq) + p - q)) / 2
        q_gradient = (q - target + agreement * (q * (b - a - kl_qp) + q - p)) / 2
        used = is_token & inside
        tl.store(p_row + columns, tl.where(used, p_gradient, 0.0), mask=columns < width)
        tl.store(q_row + columns, tl.where(used, q_gradient, 0.0), mask=columns < width)


# --- autograd ---


class FusedLinearCrossEntropy(torch.autograd.Function):
    """(loss, NLL) summed over the tokens that count, of hidden states [N, D] and a table [V, D].

    With `agreement` (R-Drop), the second half of the hidden states are the same positions with
    another dropout, and labels [N] are those of both halves.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        table: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        smoothing: float,
        agreement: float,
    ) -> tuple[Tensor, Tensor]:
        dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype
        copies = 2 if agreement else 1
        rows = len(x) // copies
        with torch.autocast(x.device.type, enabled=False):
            weight = _padded_table(table, dtype)
            chunk = max(1, _MAX_LOGITS // len(weight) // copies)
            x_gradient = torch.empty_like(x, dtype=dtype)  # [N, D]
            table_gradient: Tensor | None = None  # [V, D] in float32
            bias_gradient = None
            if bias is not None:
                bias_gradient = torch.zeros_like(bias, dtype=torch.float32)
            sums = torch.zeros(2, device=x.device)  # loss, NLL
            for first in range(0, rows, chunk):
                last = min(first + chunk, rows)
                slices = [slice(rows * i + first, rows * i + last) for i in range(copies)]
                hidden = x if chunk >= rows else torch.cat([x[part] for part in slices])
                hidden = hidden.to(dtype)
                logits = hidden @ weight.mT  # [copies · (last − first), padded V]
                if bias is not None:
                    logits[:, : len(bias)] += bias
                sums += _replace_by_gradient(
                    logits, labels[slices[0]], len(table), smoothing, agreement
                )
                # The logits are their own gradient from here on.
                gradients = (logits @ weight).split(last - first)
                for part, gradient in zip(slices, gradients, strict=True):
                    x_gradient[part] = gradient
                chunk_gradient = _float32_product(logits.mT, hidden)[: len(table)]
                if table_gradient is None:
                    table_gradient = chunk_gradient
                else:
                    table_gradient.add_(chunk_gradient)
                if bias_gradient is not None:
                    bias_gradient += logits[:, : len(table)].sum(dim=0, dtype=torch.float32)
        ctx.save_for_backward(x_gradient, table_gradient, bias_gradient)
        ctx.dtypes = (x.dtype, table.dtype, None if bias is None else bias.dtype)
        loss, nll = sums.unbind()
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of the forward pass, times the gradient of the loss."""
        gradients: list[Tensor | None] = []
        for saved, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True):
            gradients.append(None if saved is None else (saved * grads[0]).to(dtype))
        return *gradients, None, None, None


def _replace_by_gradient(
    logits: Tensor, labels: Tensor, size: int, smoothing: float, agreement: float
) -> Tensor:
    """Puts the gradient in the place of the logits; returns the sums of loss and NLL [2]."""
    results = torch.empty(2, len(labels), device=logits.device)  # loss and NLL of each position
    outputs = (logits, labels, *results)
    smoothings = (logits.shape[1], size, smoothing, smoothing / (size - 1))
    grid = (len(labels),)
    options: dict[str, Any] = {"SUM": smoothing > 0, "BLOCK": _BLOCK, "num_warps": _WARPS}
    if agreement:
        _rdrop_kernel[grid](*outputs, len(labels), *smoothings, agreement, **options)
    else:
        _loss_kernel[grid](*outputs, *smoothings, **options)
    return results.sum(dim=1)


def _padded_table(table: Tensor, dtype: torch.dtype) -> Tensor:
    size = -(-len(table) // _TABLE_MULTIPLE) * _TABLE_MULTIPLE
    if size == len(table):
        return table.to(dtype)
    padded = table.new_zeros(size, table.shape[1], dtype=dtype)
    padded[: len(table)] = table
    return padded


def _float32_product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b in float32, whatever the dtype of the factors."""
    if a.dtype == torch.float32:
        return a @ b
    return torch.mm(a, b, out_dtype=torch.float32)
