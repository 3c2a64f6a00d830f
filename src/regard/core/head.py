"""What stands on top of a stack: scores over the vocabulary, one vector for a whole input, scores of labels."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from regard import disk
from regard.core import fused_step
from regard.core.dropout import Dropout
from regard.core.embedding import Table
from regard.core.feedforward import ACTIVATIONS
from regard.core.linear import Linear
from regard.core.norm import Norm
from regard.core.quantized_linear import PackedWeight


class LMHead(nn.Module):
    """Scores for each token of the vocabulary, from a table of its own or a shared one. A bias that is only `kept` is there
    for the files that hold it."""

    def __init__(
        self,
        table: Table,
        bias: bool | str,
        scale: float = 1.0,
        transform: HeadTransform | None = None,
    ) -> None:
        super().__init__()
        self.table = table
        zeros = torch.zeros(table.weight.shape[0])
        self.bias = nn.Parameter(zeros) if bias is True else None
        self.kept = nn.Parameter(zeros, requires_grad=False) if bias == "kept" else None
        self.scale = scale
        self.transform = transform
        self.frozen: PackedWeight | None = None

    def ready(self, x: Tensor) -> Tensor:
        """What is multiplied with the table."""
        x = x if self.transform is None else self.transform(x)
        return x * self.scale if self.scale != 1.0 else x

    def forward(self, x: Tensor) -> Tensor:
        x = self.ready(x)
        if self.frozen is not None:
            return self.frozen(x)
        return fused_step.scores(x, self.table.weight, self.bias)  # [..., V]

    def freeze(self, kind: Callable[[Tensor, Tensor | None], PackedWeight]) -> None:
        """As `Linear.freeze`; the table stays for those that look tokens up in it: few of its rows, if it is in a file."""
        self.frozen = kind(self.table.weight, self.bias)
        disk.drop_pages(self.table.weight)
        del self.table, self.bias


class HeadTransform(nn.Module):
    """Dense, activation, norm: what BERT puts before the vocabulary."""

    def __init__(self, d_model: int, width: int, activation: str, norm: Norm) -> None:
        super().__init__()
        self.dense = Linear(d_model, width)
        self.activation = ACTIVATIONS[activation]
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.activation(self.dense(x)))


class Pool(nn.Module):
    """[B, T, D] → [B, D]: one position or the mean of the real ones, through a dense layer if there is an activation.

    `end` is the token that marks the position of "end"; without one it is the highest token of the row. `wide` is the width
    of what comes in, where it is not D.
    """

    def __init__(
        self,
        d_model: int,
        which: str,
        activation: str | None,
        dropout: float,
        *,
        end: int | None = None,
        norm: Norm | None = None,
        width: int | None = None,
        wide: int | None = None,
    ) -> None:
        super().__init__()
        given = wide or d_model
        self.which, self.end = which, end
        self.norm = norm
        self.dropout = Dropout(dropout)
        self.dense = Linear(given, d_model) if activation else None
        self.activation = ACTIVATIONS[activation] if activation else None
        self.project = (
            Linear(d_model if activation else given, width, bias=False) if width else None
        )

    def forward(
        self, x: Tensor, padding_mask: Tensor | None = None, tokens: Tensor | None = None
    ) -> Tensor:
        pooled = self._one(x, padding_mask, tokens)
        pooled = self.dropout(pooled if self.norm is None else self.norm(pooled))
        if self.dense is not None and self.activation is not None:
            pooled = self.activation(self.dense(pooled))
        return pooled if self.project is None else self.project(pooled)

    def _one(self, x: Tensor, padding_mask: Tensor | None, tokens: Tensor | None) -> Tensor:
        if self.which == "first":
            return x[:, 0]
        if self.which == "end":
            assert tokens is not None, "where the end is can only be seen in the tokens"
            ends = (tokens if self.end is None else (tokens == self.end).long()).argmax(dim=1)
            return x[torch.arange(x.shape[0], device=x.device), ends]
        if self.which == "last":
            places = torch.arange(x.shape[1], device=x.device)
            last = (
                places[-1:]
                if padding_mask is None
                else torch.where(padding_mask, places, 0).amax(dim=1)
            )
            return x[torch.arange(x.shape[0], device=x.device), last]
        if padding_mask is None:
            return x.mean(dim=1)
        weight = padding_mask.to(x.dtype)[..., None]
        return (x * weight).sum(dim=1) / weight.sum(dim=1).clamp_min(1)


class ClassifierHead(nn.Module):
    """Scores of classes: [..., D] → [..., count]."""

    def __init__(
        self,
        d_model: int,
        count: int,
        *,
        each: bool,
        hidden: str | None,
        bias: bool,
        dropout: float,
    ) -> None:
        super().__init__()
        self.each = each
        self.dense = Linear(d_model, d_model) if hidden else None
        self.activation = ACTIVATIONS[hidden] if hidden else None
        self.dropout = Dropout(dropout)
        self.output = Linear(d_model, count, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        if self.dense is not None and self.activation is not None:
            x = self.activation(self.dense(x))
        return self.output(self.dropout(x))


class DistilledHead(nn.Module):
    """The mean of the scores that the first positions give, each through its own map: [B, T, D] → [B, count]."""

    def __init__(self, d_model: int, count: int, voters: int) -> None:
        super().__init__()
        self.outputs = nn.ModuleList(Linear(d_model, count) for _ in range(voters))

    def each(self, x: Tensor) -> Tensor:
        """[B, voters, count]: a teacher's scores and the labels are learnt by different voters."""
        return torch.stack([output(x[:, i]) for i, output in enumerate(self.outputs)], dim=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.each(x).mean(dim=1)
