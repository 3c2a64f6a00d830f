"""The loss over a vocabulary on a GPU: each row of logits is read from memory once and replaced by its gradient. (The
kernels walk over a row two or three times, but after the first it is in the cache; rows held in registers were slower.)

The product with the table, the loss and both products of the backward pass are one function, so that the logits are gone
when it returns, and what is kept is as small as the hidden states and the table. The table is widened to a multiple of 64
rows: matrix units are twice as fast on such sizes.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK, _WARPS = 2048, 8
_ALIGNED = 64
_WIDE = tl.constexpr(8)  # numbers that a lane reads at once
_LOW = tl.constexpr(-3.0e38)
_NUMBERS = 1 << 31  # of logits that exist at once


@triton.jit
def _normaliser(row, size, PLAIN: tl.constexpr, BLOCK: tl.constexpr):
    """log Σ exp(x), and Σ x if it is asked for. Each lane keeps its own maximum and sums, which it changes once for all that
    it reads at a time; they meet at the end."""
    places = tl.arange(0, BLOCK // _WIDE)[:, None] * _WIDE + tl.arange(0, _WIDE)[None, :]
    top = tl.full([BLOCK // _WIDE], _LOW, dtype=tl.float32)
    total, plain = tl.zeros_like(top), tl.zeros_like(top)
    for begin in range(0, size, BLOCK):
        seen = begin + places < size
        x = tl.load(row + begin + places, mask=seen, other=float("-inf")).to(tl.float32)
        higher = tl.maximum(top, tl.max(x, axis=1))
        total = total * tl.exp(top - higher) + tl.sum(tl.exp(x - higher[:, None]), axis=1)
        top = higher
        if PLAIN:
            plain += tl.sum(tl.where(seen, x, 0.0), axis=1)
    highest = tl.max(top, axis=0)
    return highest + tl.log(tl.sum(total * tl.exp(top - highest), axis=0)), tl.sum(plain, axis=0)


@triton.jit
def _single(
    logits,
    labels,
    losses,
    surprises,
    width,
    size,
    smoothing,
    rest,
    PLAIN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    place = tl.program_id(0).to(tl.int64)
    row = logits + place * width
    label = tl.load(labels + place)
    padding_mask = label >= 0
    label = tl.maximum(label, 0)
    normaliser, plain = _normaliser(row, size, PLAIN, BLOCK)
    nll = normaliser - tl.load(row + label).to(tl.float32)
    loss = (1 - smoothing - rest) * nll + rest * (size * normaliser - plain)
    tl.store(surprises + place, tl.where(padding_mask, nll, 0.0))
    tl.store(losses + place, tl.where(padding_mask, loss, 0.0))
    places = tl.arange(0, BLOCK)
    rest = tl.where(padding_mask, rest, 0.0)
    normaliser = tl.where(padding_mask, normaliser, float("inf"))  # of padding all is zero
    for begin in range(0, width, BLOCK):
        columns = begin + places
        inside = columns < size
        x = tl.load(row + columns, mask=inside, other=float("-inf")).to(tl.float32)
        tl.store(
            row + columns,
            tl.exp(x - normaliser) - tl.where(inside, rest, 0.0),
            mask=columns < width,
        )
    tl.debug_barrier()  # one number of what was just written is another
    tl.store(row + label, tl.exp(-nll) - (1 - smoothing), mask=padding_mask)


@triton.jit
def _twins(
    logits, labels, losses, surprises, pairs, width, size, smoothing, rest, agreement, PLAIN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Half of both rows' loss, and `agreement` times half of KL(p‖q) + KL(q‖p)."""
    place = tl.program_id(0).to(tl.int64)
    one, other = logits + place * width, logits + (place + pairs) * width
    label = tl.load(labels + place)
    padding_mask = label >= 0
    label = tl.maximum(label, 0)
    first, first_plain = _normaliser(one, size, PLAIN, BLOCK)
    second, second_plain = _normaliser(other, size, PLAIN, BLOCK)
    nll = (
        first + second - tl.load(one + label).to(tl.float32) - tl.load(other + label).to(tl.float32)
    ) / 2
    everyone = (size * (first + second) - first_plain - second_plain) / 2
    places = tl.arange(0, BLOCK)
    there, here = 0.0, 0.0
    for begin in range(0, size, BLOCK):
        seen = begin + places < size
        a = tl.load(one + begin + places, mask=seen, other=float("-inf")).to(tl.float32) - first
        b = tl.load(other + begin + places, mask=seen, other=float("-inf")).to(tl.float32) - second
        apart = tl.where(seen, a - b, 0.0)
        there += tl.sum(tl.exp(a) * apart, axis=0)  # KL(p‖q)
        here -= tl.sum(tl.exp(b) * apart, axis=0)  # KL(q‖p)
    loss = (1 - smoothing - rest) * nll + rest * everyone + agreement * (there + here) / 2
    tl.store(surprises + place, tl.where(padding_mask, nll, 0.0))
    tl.store(losses + place, tl.where(padding_mask, loss, 0.0))
    for begin in range(0, width, BLOCK):
        columns = begin + places
        seen = columns < size
        a = tl.load(one + columns, mask=seen, other=0.0).to(tl.float32) - first
        b = tl.load(other + columns, mask=seen, other=0.0).to(tl.float32) - second
        p, q = tl.exp(a), tl.exp(b)
        wanted = tl.where(columns == label, 1 - smoothing, rest)
        to_one = (p - wanted + agreement * (p * (a - b - there) + p - q)) / 2
        to_other = (q - wanted + agreement * (q * (b - a - here) + q - p)) / 2
        tl.store(one + columns, tl.where(padding_mask & seen, to_one, 0.0), mask=columns < width)
        tl.store(
            other + columns, tl.where(padding_mask & seen, to_other, 0.0), mask=columns < width
        )


class OverVocabulary(torch.autograd.Function):
    """(loss, −log p) summed over the real tokens, of hidden states [N, D] and a table [V, D]."""

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
        kind = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype
        with torch.autocast(x.device.type, enabled=False):
            rows = len(x) // 2 if agreement else len(x)
            weights = _widened(table, kind)
            most = max(1, _NUMBERS // len(weights) // (2 if agreement else 1))
            to_x, to_table = torch.empty_like(x, dtype=kind), None
            to_bias = None if bias is None else torch.zeros_like(bias, dtype=torch.float32)
            sums = torch.zeros(2, device=x.device)
            for first in range(0, rows, most):
                parts = [slice(first, min(first + most, rows))]
                parts += [slice(rows + part.start, rows + part.stop) for part in parts if agreement]
                here = (x if most >= rows else torch.cat([x[part] for part in parts])).to(kind)
                logits = here @ weights.mT
                if bias is not None:
                    logits[:, : len(bias)] += bias
                sums += _replace(logits, labels[parts[0]], len(table), smoothing, agreement)
                for part, gradient in zip(
                    parts, (logits @ weights).split([p.stop - p.start for p in parts]), strict=True
                ):
                    to_x[part] = gradient
                found = _product(logits.mT, here)[: len(table)]
                to_table = found if to_table is None else to_table.add_(found)
                if to_bias is not None:
                    to_bias += logits[:, : len(table)].sum(dim=0, dtype=torch.float32)
        ctx.save_for_backward(to_x, to_table, to_bias)
        ctx.kinds = (x.dtype, table.dtype, None if bias is None else bias.dtype)
        loss, nll = sums.unbind()
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        pairs = zip(ctx.saved_tensors, ctx.kinds, strict=True)
        return (
            *(None if saved is None else (saved * grads[0]).to(kind) for saved, kind in pairs),
            None,
            None,
            None,
        )


def _replace(
    logits: Tensor, labels: Tensor, size: int, smoothing: float, agreement: float
) -> Tensor:
    """Puts the gradient in the place of the logits; the sums of loss and −log p."""
    found = torch.empty(2, len(labels), device=logits.device)
    rest = smoothing / (size - 1)
    common, grid = (logits, labels, found[0], found[1]), (len(labels),)
    told: dict[str, Any] = {"PLAIN": smoothing > 0, "BLOCK": _BLOCK, "num_warps": _WARPS}
    if agreement:
        _twins[grid](
            *common, len(labels), logits.shape[1], size, smoothing, rest, agreement, **told
        )
    else:
        _single[grid](*common, logits.shape[1], size, smoothing, rest, **told)
    return found.sum(dim=1)


def _widened(table: Tensor, kind: torch.dtype) -> Tensor:
    size = -(-len(table) // _ALIGNED) * _ALIGNED
    if size == len(table):
        return table.to(kind)
    wide = table.new_zeros(size, table.shape[1], dtype=kind)
    wide[: len(table)] = table
    return wide


def _product(a: Tensor, b: Tensor) -> Tensor:
    """In float32 whatever the factors are."""
    return a @ b if a.dtype == torch.float32 else torch.mm(a, b, out_dtype=torch.float32)
