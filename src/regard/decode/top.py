"""What a search asks of the scores of all tokens: the best few, and what makes probabilities of them."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.core.mix import HAS_TRITON

MANY = 32  # more than that are not looked for one by one


def top(scores: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """scores [rows, V] → the best of each row, highest first, and their places [rows, count], and log Σ exp [rows]."""
    if scores.is_cuda and HAS_TRITON and count <= MANY:
        from regard.decode import top_kernel

        return top_kernel.top(scores, count)
    scores = scores.float()
    if count == 1:
        best = scores.argmax(dim=-1, keepdim=True)
        return scores.gather(1, best), best, scores.logsumexp(dim=-1)
    values, places = scores.topk(count, dim=-1)
    return values, places, torch.logsumexp(scores, dim=-1)
