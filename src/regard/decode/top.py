"""The largest of many scores. On a CPU, PyTorch compares one number at a time where it must say which is the largest, and
sixteen where it need not: so the maxima of blocks say first in which few of them to look."""

from __future__ import annotations

import torch
from torch import Tensor

_BLOCK = 128


def top(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest of each row [B, V], largest first, and where they are: [B, count] each. All of them are in the
    `count` blocks with the largest maxima, or in the rest behind the last block."""
    rows, length = scores.shape
    blocks = length // _BLOCK
    if rows == 1 or blocks < 4 * count:
        return _largest(scores, count)
    split = scores[:, : blocks * _BLOCK].view(rows, blocks, _BLOCK)
    chosen = _largest(split.amax(dim=2), count)[1].sort(dim=1).values  # in order: of equals, the first is found
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
