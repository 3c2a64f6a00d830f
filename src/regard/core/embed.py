"""From token ids to vectors."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.core.dropout import Dropout
from regard.core.linear import normal
from regard.core.position import Learned, Sinusoidal


class Table(nn.Module):
    """One vector for each token. The same table may serve source, target and output (Section 3.4)."""

    def __init__(self, vocabulary: int, d_model: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(normal(vocabulary, d_model))


class Embedding(nn.Module):
    """Looks tokens up, scales by √d_model, adds positions, drops."""

    def __init__(self, table: Table, position: Sinusoidal | Learned | None, scale: bool, dropout: float) -> None:
        super().__init__()
        self.table = table
        self.position = position
        self.scale = math.sqrt(table.weight.shape[1]) if scale else 1.0
        self.dropout = Dropout(dropout)

    def forward(self, tokens: Tensor, start: int = 0) -> Tensor:
        x = functional.embedding(tokens, self.table.weight) * self.scale  # [B, T, D]
        if self.position is not None:
            x = x + self.position(start, tokens.shape[1])
        return self.dropout(x)


class LanguageHead(nn.Module):
    """Scores for each token of the vocabulary, from a table of its own or a shared one."""

    def __init__(self, table: Table, bias: bool) -> None:
        super().__init__()
        self.table = table
        self.bias = nn.Parameter(torch.zeros(table.weight.shape[0])) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.table.weight, self.bias)  # [..., V]
