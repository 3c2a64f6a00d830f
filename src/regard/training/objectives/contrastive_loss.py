"""Contrastive losses: InfoNCE (van den Oord et al. 2018; CLIP), and SigLIP's sigmoid loss."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def info_nce(logits: Tensor, transposed: Tensor, first_row: int = 0) -> Tensor:
    """Symmetric InfoNCE, summed over pairs: the mean of both directions.

    `logits` [b, B] are of the first things of some pairs with the second ones of all pairs of the
    batch, which begin with pair `first_row`; `transposed` [b, B] of the second with all first ones.
    """
    pairs = first_row + torch.arange(len(logits), device=logits.device)
    to_second = functional.cross_entropy(logits, pairs, reduction="sum")
    to_first = functional.cross_entropy(transposed, pairs, reduction="sum")
    return (to_second + to_first) / 2


def sigmoid_loss(logits: Tensor, first_row: int = 0) -> Tensor:
    """The pairwise sigmoid loss of logits [b, B] (Zhai et al. 2023, equation 1), not divided by B.

    Row i belongs to column `first_row` + i: with all rows of a batch, the diagonal.
    """
    rows, columns = logits.shape
    matches = torch.eye(columns, device=logits.device)[first_row : first_row + rows]
    signs = 2 * matches - 1  # 1 for pairs, -1 for others
    return -functional.logsigmoid(signs * logits).sum()
