"""Questions in rows of `[CLS] question [SEP] context [SEP]`: where they end."""

from __future__ import annotations

import torch
from torch import Tensor


def question_ends(tokens: Tensor, separator: int) -> Tensor:
    """The position of the first separator in each row, 0 where there is none: [B, T] → [B, 1]."""
    return (tokens == separator).int().argmax(dim=1, keepdim=True)


def before_separator(tokens: Tensor, separator: int) -> Tensor:
    """True from the first token to the last one of the question: [B, T]."""
    positions = torch.arange(tokens.shape[1], device=tokens.device)
    return positions < question_ends(tokens, separator)
