"""What a search asks of the scores of all tokens: the best few, and what makes probabilities of them."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.core.softmax_attention import HAS_TRITON

MANY = 32  # more than that are not looked for one by one
_BLOCK = 128


def at_once(scores: Tensor) -> bool:
    """Whether a kernel can take the best of them and write it down (`top_kernel.take_best`)."""
    return scores.is_cuda and HAS_TRITON


def top(scores: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """scores [rows, V] → the best of each row, highest first, and their places [rows, count], and log Σ exp [rows]."""
    if scores.is_cuda and HAS_TRITON and count <= MANY:
        from regard.core.kernels import topk

        return topk.top(scores, count)
    scores = scores.float()
    values, places = _best(scores, count)
    first = scores.log_softmax(dim=-1).gather(
        1, places[:, :1]
    )  # two readings; torch.logsumexp makes four of it
    return values, places, (values[:, :1] - first)[:, 0]


def _best(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """On a CPU, PyTorch compares one number at a time where it must say which is the largest, and sixteen where it need not:
    so the maxima of blocks say first in which few of them to look. What is searched is in the `count` blocks with the largest
    maxima, or in the rest behind the last block."""
    rows, length = scores.shape
    blocks = length // _BLOCK
    if rows == 1 or blocks < 4 * count:
        return _largest(scores, count)
    split = scores[:, : blocks * _BLOCK].unflatten(1, (blocks, _BLOCK))
    chosen = (
        _largest(split.amax(dim=2), count)[1].sort(dim=1).values
    )  # in order: of equals, the first is found
    row = torch.arange(rows, device=scores.device)[:, None]
    candidates = torch.cat([split[row, chosen].flatten(1), scores[:, blocks * _BLOCK :]], dim=1)
    values, which = _largest(candidates, count)
    block, inside = which // _BLOCK, which % _BLOCK
    rest = block - count + blocks  # the number of its block, for what is behind the chosen ones
    block = torch.where(block < count, chosen.gather(1, block.clamp_max(count - 1)), rest)
    return values, block * _BLOCK + inside


def _largest(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    values, places = scores.max(dim=1, keepdim=True) if count == 1 else scores.topk(count, dim=1)
    return values, places
