"""The loss of `loss.py` on a GPU: each row of logits is read from memory once and replaced by its gradient.

One program takes one row, or two rows that are passes over the same token. It walks over the row up to three times (the
normaliser; what the two passes expect of each other; the gradient), but after the first time the row is in the cache.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 4096


@triton.jit
def _normaliser(row, size, BLOCK: tl.constexpr):
    """log Σ exp(x) and Σ x."""
    places = tl.arange(0, BLOCK)
    highest = tl.full((BLOCK,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    plain = tl.zeros((BLOCK,), tl.float32)
    for begin in range(0, size, BLOCK):
        seen = begin + places < size
        x = tl.load(row + begin + places, mask=seen, other=float("-inf")).to(tl.float32)
        higher = tl.maximum(highest, x)
        known = higher > float("-inf")
        total = tl.where(known, total * tl.exp(highest - higher) + tl.exp(x - higher), 0.0)
        plain += tl.where(seen, x, 0.0)
        highest = higher
    top = tl.max(highest, axis=0)
    total = tl.where(highest > float("-inf"), total * tl.exp(highest - top), 0.0)
    return top + tl.log(tl.sum(total, axis=0)), tl.sum(plain, axis=0)


@triton.jit
def _single(logits, labels, losses, surprises, size, smoothing, rest, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64)
    row = logits + place * size
    label = tl.load(labels + place)
    real = label >= 0
    label = tl.maximum(label, 0)
    normaliser, plain = _normaliser(row, size, BLOCK)
    surprise = normaliser - tl.load(row + label).to(tl.float32)
    loss = (1 - smoothing - rest) * surprise + rest * (size * normaliser - plain)
    tl.store(surprises + place, tl.where(real, surprise, 0.0))
    tl.store(losses + place, tl.where(real, loss, 0.0))
    places = tl.arange(0, BLOCK)
    for begin in range(0, size, BLOCK):
        seen = begin + places < size
        x = tl.load(row + begin + places, mask=seen, other=0.0).to(tl.float32)
        gradient = tl.exp(x - normaliser) - rest - tl.where(begin + places == label, 1 - smoothing - rest, 0.0)
        tl.store(row + begin + places, tl.where(real, gradient, 0.0), mask=seen)


@triton.jit
def _twins(
    logits, labels, losses, surprises, rows, size, smoothing, rest,
    agreement, BLOCK: tl.constexpr,
):  # fmt: skip
    """Half of both rows' loss, and `agreement` times half of KL(p‖q) + KL(q‖p)."""
    place = tl.program_id(0).to(tl.int64)
    one, other = logits + place * size, logits + (place + rows) * size
    label = tl.load(labels + place)
    real = label >= 0
    label = tl.maximum(label, 0)
    first, first_plain = _normaliser(one, size, BLOCK)
    second, second_plain = _normaliser(other, size, BLOCK)
    surprise = (first + second - tl.load(one + label).to(tl.float32) - tl.load(other + label).to(tl.float32)) / 2
    everyone = (size * (first + second) - first_plain - second_plain) / 2
    places = tl.arange(0, BLOCK)
    ahead = tl.zeros((BLOCK,), tl.float32)
    back = tl.zeros((BLOCK,), tl.float32)
    for begin in range(0, size, BLOCK):
        seen = begin + places < size
        a = tl.load(one + begin + places, mask=seen, other=float("-inf")).to(tl.float32) - first
        b = tl.load(other + begin + places, mask=seen, other=float("-inf")).to(tl.float32) - second
        apart = tl.where(seen, a - b, 0.0)
        ahead += tl.exp(a) * apart  # KL(p‖q)
        back -= tl.exp(b) * apart  # KL(q‖p)
    there, here = tl.sum(ahead, axis=0), tl.sum(back, axis=0)
    loss = (1 - smoothing - rest) * surprise + rest * everyone + agreement * (there + here) / 2
    tl.store(surprises + place, tl.where(real, surprise, 0.0))
    tl.store(losses + place, tl.where(real, loss, 0.0))
    for begin in range(0, size, BLOCK):
        seen = begin + places < size
        a = tl.load(one + begin + places, mask=seen, other=0.0).to(tl.float32) - first
        b = tl.load(other + begin + places, mask=seen, other=0.0).to(tl.float32) - second
        p, q = tl.exp(a), tl.exp(b)
        wanted = rest + tl.where(begin + places == label, 1 - smoothing - rest, 0.0)
        to_one = (p - wanted + agreement * (p * (a - b - there) + p - q)) / 2
        to_other = (q - wanted + agreement * (q * (b - a - here) + q - p)) / 2
        tl.store(one + begin + places, tl.where(real, to_one, 0.0), mask=seen)
        tl.store(other + begin + places, tl.where(real, to_other, 0.0), mask=seen)


class Replaced(torch.autograd.Function):
    """(loss, −log p) summed over the real tokens. The logits are overwritten with their gradient: nobody may read them
    afterwards, and what made them (a linear map) does not."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, smoothing: float, agreement: float) -> tuple[Tensor, Tensor]:
        rows, size = logits.shape
        rest = smoothing / (size - 1)
        twins = agreement > 0
        count = rows // 2 if twins else rows
        losses, surprises = (torch.empty(count, device=logits.device) for _ in range(2))
        if twins:
            _twins[(count,)](
                logits, labels, losses, surprises, count, size, smoothing, rest, agreement, BLOCK=_BLOCK, num_warps=8
            )
        else:
            _single[(count,)](logits, labels, losses, surprises, size, smoothing, rest, BLOCK=_BLOCK, num_warps=8)
        ctx.save_for_backward(logits)
        surprise = surprises.sum()
        ctx.mark_non_differentiable(surprise)
        return losses.sum(), surprise

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient.mul_(grads[0]), None, None, None
