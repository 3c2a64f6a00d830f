"""The top-k tokens of each row of logits, and the log-sum-exp that makes probabilities of them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from regard.core.kernels import cpu_step
from regard.core.mixers.scaled_dot_product_attention import HAS_TRITON

MAX_KERNEL_COUNT = 32  # the kernel takes the maximum again and again: slow for more than this
_BLOCK = 128
_FRESH = 1 << 19  # numbers of a result that a CPU keeps in memory that it has used before


def greedy_kernel(logits: Tensor) -> Callable[..., None] | None:
    """The kernel that takes the argmax and does the bookkeeping (`kernels.topk.take_best`), if
    there is one."""
    if logits.is_cuda and HAS_TRITON:
        from regard.core.kernels import topk

        return topk.take_best
    return cpu_step.take_best if cpu_step.reads(logits) else None


def top_tokens(logits: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The top-k of logits [rows, V]: values and tokens [rows, count], and log Σ exp [rows].

    Values are in descending order. A value minus the log-sum-exp is a log-probability.
    """
    if logits.is_cuda and HAS_TRITON and count <= MAX_KERNEL_COUNT:
        from regard.core.kernels import topk

        return topk.top(logits, count)
    if count <= MAX_KERNEL_COUNT and cpu_step.reads(logits):
        return cpu_step.top(logits, count)
    logits = logits.float()
    values, tokens = _topk(logits, count)
    # log_softmax reads the logits twice; torch.logsumexp would read them four times. A few rows at
    # a time: large results are fresh memory, which takes ten times as long to write.
    few = max(1, _FRESH // logits.shape[1])
    parts = zip(logits.split(few), tokens[:, :1].split(few), strict=True)
    first_log_probability = torch.cat([x.log_softmax(dim=-1).gather(1, i) for x, i in parts])
    normalizer = (values[:, :1] - first_log_probability)[:, 0]
    return values, tokens, normalizer


def _topk(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """torch.topk in two stages, which is faster on a CPU.

    There, PyTorch finds the index of a maximum one number at a time, but a maximum alone with
    vector instructions. So the maxima of blocks are taken first: the top-k are in the `count`
    blocks with the largest maxima, or in the remainder after the last whole block.
    """
    rows, length = scores.shape
    blocks = length // _BLOCK
    if rows == 1 or blocks < 4 * count:
        return _torch_topk(scores, count)
    split = scores[:, : blocks * _BLOCK].unflatten(1, (blocks, _BLOCK))  # [rows, blocks, _BLOCK]
    remainder = scores[:, blocks * _BLOCK :]
    _, best_blocks = _torch_topk(split.amax(dim=2), count)
    best_blocks = best_blocks.sort(dim=1).values  # in order, so that the first of equals wins
    row = torch.arange(rows, device=scores.device)[:, None]
    candidates = torch.cat([split[row, best_blocks].flatten(1), remainder], dim=1)
    values, indices = _torch_topk(candidates, count)
    # Back from an index among the candidates to one in the row.
    block = indices // _BLOCK
    inside = indices % _BLOCK
    remainder_block = block - count + blocks
    chosen_block = best_blocks.gather(1, block.clamp_max(count - 1))
    block = torch.where(block < count, chosen_block, remainder_block)
    return values, block * _BLOCK + inside


def _torch_topk(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    if count == 1:
        values, indices = scores.max(dim=1, keepdim=True)  # faster than topk(1)
    else:
        values, indices = scores.topk(count, dim=1)
    return values, indices
