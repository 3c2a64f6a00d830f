"""Heads on top of a stack: logits over the vocabulary, a pooled vector, logits of classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.core.dropout import Dropout
from regard.core.feedforward import ACTIVATIONS, FeedForward
from regard.core.frontends.embedding import Table
from regard.core.linear import Linear
from regard.core.norm import Norm
from regard.core.output import Output, Outputs
from regard.core.quantized_linear import PackedWeight
from regard.system import disk

_EXCLUDED = 1e6  # what scores of excluded positions lose; transformers' number


class LMHead(nn.Module):
    """The language-model head: logits for each token of the vocabulary, from a table of its own or
    tied to the embedding. A bias that is only `kept` is there for the files that hold it."""

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
        self.packed: PackedWeight | None = None

    def transformed(self, x: Tensor) -> Tensor:
        """The hidden states that are multiplied with the table."""
        if self.transform is not None:
            x = self.transform(x)
        if self.scale != 1.0:
            x = x * self.scale
        return x

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] → logits [..., V]"""
        x = self.transformed(x)
        if self.packed is not None:
            return self.packed(x)
        return functional.linear(x, self.table.weight, self.bias)

    def pack(self, kind: Callable[[Tensor, Tensor | None], PackedWeight]) -> None:
        """As `Linear.pack`; the table stays for those that look tokens up in it: few of its rows,
        if it is in a file."""
        self.packed = kind(self.table.weight, self.bias)
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


class PoolProjection(NamedTuple):
    """The last linear map of a pool: its width, and whether it has a bias."""

    width: int
    bias: bool = False


class Pool(nn.Module):
    """Pooling: [B, T, D] → [B, D], one position or the mean of the tokens, through a dense layer if
    there is an activation.

    `end` is the token that marks the position of "end", the first such token, and of "last end";
    without one it is the highest token of the row. "attention" is pooled by the part that is given
    as `which`. `input_width` is the width of what comes in,
    where it is not D.
    """

    def __init__(
        self,
        d_model: int,
        which: str | nn.Module,
        activation: str | None,
        dropout: float,
        *,
        end: int | None = None,
        norm: Norm | None = None,
        projection: PoolProjection | None = None,
        input_width: int | None = None,
    ) -> None:
        super().__init__()
        inputs = input_width or d_model
        self.which = which if isinstance(which, str) else "attention"
        self.attention = None if isinstance(which, str) else which
        self.end = end
        self.norm = norm
        self.dropout = Dropout(dropout)
        self.dense = Linear(inputs, d_model) if activation else None
        self.activation = ACTIVATIONS[activation] if activation else None
        pooled_width = d_model if activation else inputs
        self.project = None
        if projection is not None:
            self.project = Linear(pooled_width, projection.width, bias=projection.bias)

    def extra_repr(self) -> str:
        return f"which={self.which!r}"

    def forward(
        self, x: Tensor, padding_mask: Tensor | None = None, tokens: Tensor | None = None
    ) -> Tensor:
        pooled = self._select(x, padding_mask, tokens)  # [B, D]
        if self.norm is not None:
            pooled = self.norm(pooled)
        pooled = self.dropout(pooled)
        if self.dense is not None and self.activation is not None:
            pooled = self.activation(self.dense(pooled))
        if self.project is not None:
            pooled = self.project(pooled)
        return pooled

    def named(self, vector: Output, hidden: Outputs, reads: str) -> Outputs:
        """The pooled vector beside the hidden states, as transformers names and orders them."""
        if self.project is None or self.project.bias is not None:
            return {**hidden, "pooler_output": vector}
        # A projection to the shared space, which has no bias, makes it one tower of CLIP.
        return {"image_embeds" if reads == "pixels" else "text_embeds": vector, **hidden}

    def _select(self, x: Tensor, padding_mask: Tensor | None, tokens: Tensor | None) -> Tensor:
        """One position of each row, or the mean of its tokens: [B, D]."""
        batch = torch.arange(x.shape[0], device=x.device)
        if self.attention is not None:
            pooled: Tensor = self.attention(x, padding_mask)
            return pooled
        if self.which == "first":
            return x[:, 0]
        if self.which == "first_and_mean":
            return torch.cat([x[:, 0], x[:, 1:].mean(dim=1)], dim=-1)  # [B, 2 D]
        if self.which == "final":
            return x[:, -1]
        if self.which == "end":
            assert tokens is not None, "where the end is can only be seen in the tokens"
            # Older CLIP files name a wrong end token (2): the right one has the highest id.
            marks = tokens if self.end is None else (tokens == self.end).long()
            return x[batch, marks.argmax(dim=1)]
        if self.which == "last end":
            assert tokens is not None, "where the end is can only be seen in the tokens"
            assert self.end is not None, "the last end token has an id"
            positions = torch.arange(x.shape[1], device=x.device)
            return x[batch, torch.where(tokens == self.end, positions, 0).amax(dim=1)]
        if self.which == "last":
            positions = torch.arange(x.shape[1], device=x.device)
            last = positions[-1:]
            if padding_mask is not None:
                # The last token of each row, whichever side is padded: [B]
                last = torch.where(padding_mask, positions, 0).amax(dim=1)
            return x[batch, last]
        return mean_of_tokens(x, padding_mask)


def mean_of_tokens(x: Tensor, padding_mask: Tensor | None) -> Tensor:
    """The mean of each row's tokens: [B, T, D] → [B, D]."""
    if padding_mask is None:
        return x.mean(dim=1)
    weight = padding_mask.to(x.dtype)[..., None]  # [B, T, 1]
    return (x * weight).sum(dim=1) / weight.sum(dim=1).clamp_min(1)


class HeadFeedForward(nn.Module):
    """A feed-forward sublayer with residual and post-norm, before the scores: [..., D] → same."""

    def __init__(self, feedforward: FeedForward, norm: Norm, dropout: float) -> None:
        super().__init__()
        self.feedforward = feedforward
        self.norm = norm
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + self.dropout(self.feedforward(self.dropout(x))))


class ClassifierHead(nn.Module):
    """Logits of classes: [..., D] → [..., count], of what `scores` names: "positions", each by
    itself, the "pooled" vector, or the "mean" of all positions.

    `separator` is the token after a question whose scores are taken out of the competition.
    """

    def __init__(
        self,
        d_model: int,
        count: int,
        *,
        scores: str,
        hidden: str | None,
        bias: bool,
        dropout: float,
        feedforward: HeadFeedForward | None = None,
        separator: int | None = None,
    ) -> None:
        super().__init__()
        self.task = "classify"  # its outputs are named by it
        self.scores = scores
        self.per_token = scores == "positions"
        self.feedforward = feedforward
        self.separator = separator
        self.dense = Linear(d_model, d_model) if hidden else None
        self.activation = ACTIVATIONS[hidden] if hidden else None
        self.dropout = Dropout(dropout)
        self.output = Linear(d_model, count, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        if self.feedforward is not None:
            x = self.feedforward(x)
        if self.dense is not None and self.activation is not None:
            x = self.activation(self.dense(x))
        return self.output(self.dropout(x))

    def by_name(self, logits: Tensor, hidden: Tensor) -> dict[str, Tensor]:
        """The logits under the names of transformers."""
        match self.task:
            case "answer":  # [B, T, 2]: two scores for each token
                return {"start_logits": logits[..., 0], "end_logits": logits[..., 1]}
            case "detect":  # [B, T]: ELECTRA has one score a token
                return {"logits": logits[..., 0]}
            case _:
                return {"logits": logits}


class DistilledHead(nn.Module):
    """DeiT's head: the mean of the logits that the first positions give, each through its own map:
    [B, T, D] → [B, count]."""

    task = "classify"
    scores = "positions"
    separator = None  # it answers no questions
    per_token = True  # it reads hidden states of several positions itself

    def __init__(self, d_model: int, count: int, voters: int) -> None:
        super().__init__()
        self.outputs = nn.ModuleList(Linear(d_model, count) for _ in range(voters))

    def each(self, x: Tensor) -> Tensor:
        """[B, voters, count]: labels and a teacher's logits are learnt by different tokens."""
        return torch.stack([output(x[:, i]) for i, output in enumerate(self.outputs)], dim=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.each(x).mean(dim=1)

    def by_name(self, logits: Tensor, hidden: Tensor) -> dict[str, Tensor]:
        """The mean, and what the class token and the distillation token say (DeiT)."""
        each = self.each(hidden)  # [B, 2, labels]
        return {
            "logits": logits,
            "cls_logits": each[:, 0],
            "distillation_logits": each[:, 1],
        }


def without_question(logits: Tensor, tokens: Tensor | None, separator: int | None) -> Tensor:
    """Logits [B, T, 2] that no token of the question wins, where a separator is set."""
    if separator is None:
        return logits
    assert tokens is not None, "where the question is can only be seen in the tokens"
    positions = torch.arange(tokens.shape[1], device=tokens.device)
    excluded = positions <= question_ends(tokens, separator)  # [B, T]
    # The first token stays: as start and end it says that there is no answer.
    excluded = excluded & (positions > 0)
    return logits - _EXCLUDED * excluded[..., None]


def question_ends(tokens: Tensor, separator: int) -> Tensor:
    """The position of the first separator in each row, 0 where there is none: [B, T] → [B, 1]."""
    return (tokens == separator).int().argmax(dim=1, keepdim=True)


def before_separator(tokens: Tensor, separator: int) -> Tensor:
    """True from the first token to the last one of the question: [B, T]."""
    positions = torch.arange(tokens.shape[1], device=tokens.device)
    return positions < question_ends(tokens, separator)
