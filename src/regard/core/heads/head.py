"""Heads on top of a stack: logits over the vocabulary, a pooled vector, logits of classes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.core.attention import Attention
from regard.core.context import LayerContext
from regard.core.dropout import Dropout
from regard.core.encoder_output import cross_mask
from regard.core.feedforward import ACTIVATIONS, FeedForward
from regard.core.frontends.embedding import Table
from regard.core.linear import Linear, normal
from regard.core.norm import Norm
from regard.core.output import Inputs, Output, OutputOptions, Outputs
from regard.core.quantized_linear import PackedWeight
from regard.core.side import FrontEnd
from regard.system import disk

if TYPE_CHECKING:
    from regard import spec

_EXCLUDED = 1e6  # what scores of excluded positions lose; transformers' number


@dataclass
class Reading:
    """What heads may ask of the call whose hidden states they read, besides those."""

    main: Any  # the first input; None where no pool looks for a token
    padding_mask: Tensor | None = None  # of it: True at what is no padding, or was observed
    front: Any = field(default_factory=FrontEnd)  # what read it
    pool: Pool | None = None  # that of the model
    inputs: Inputs = field(default_factory=dict)  # all of them, by name
    more: Inputs = field(default_factory=dict)  # what the front end took besides
    options: OutputOptions = field(default_factory=OutputOptions)
    order: Any = None  # the patches that the encoder has seen, where others are hidden (MAE)
    pretrains: bool = False  # whether the head of a language model stands beside one of labels

    @property
    def positions(self) -> Tensor | None:
        """The padding mask of hidden states: convolutions shorten sound."""
        return self.front.joint_mask(self.main, self.padding_mask, self.more)


class Head(nn.Module):
    """Abstract: what stands on hidden states."""

    leads = False  # whether its outputs come before the hidden states

    def named_outputs(self, hidden: Tensor, reading: Reading) -> Outputs:
        """What it says of hidden states [B, T, D], under the names of transformers."""
        raise NotImplementedError

    def prediction(self, hidden: Tensor, reading: Reading) -> Tensor:
        """The one tensor that answers: logits, forecasts, a vector. A head of pre-training alone
        answers nothing, and leaves the hidden states as they are."""
        return hidden


class LMHead(Head):
    """The language-model head: logits for each token of the vocabulary, from a table of its own or
    tied to the embedding. A bias that is only `kept` is there for the files that hold it."""

    def __init__(
        self,
        table: Table,
        bias: bool | str,
        scale: float = 1.0,
        transform: HeadTransform | None = None,
        cap: float | None = None,
    ) -> None:
        super().__init__()
        self.table = table
        zeros = torch.zeros(table.weight.shape[0])
        self.bias = nn.Parameter(zeros) if bias is True else None
        self.kept = nn.Parameter(zeros, requires_grad=False) if bias == "kept" else None
        self.scale = scale
        self.transform = transform
        self.cap = cap
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
            return self.capped(self.packed(x))
        return self.capped(functional.linear(x, self.table.weight, self.bias))

    def capped(self, logits: Tensor) -> Tensor:
        """Logits [..., V], soft-capped where there is a cap."""
        return logits if self.cap is None else self.cap * torch.tanh(logits / self.cap)

    def prediction(self, hidden: Tensor, reading: Reading) -> Tensor:
        return self(hidden)

    def named_outputs(self, hidden: Tensor, reading: Reading) -> Outputs:
        name = "prediction_logits" if reading.pretrains else "logits"
        return {name: Output(self(hidden), reading.positions)}

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


class Pool(Head):
    """Pooling: [B, T, inputs] → [B, D], one position or the mean of the tokens, through a dense
    layer if there is an activation.

    `end` is the token that marks the position of "end", the first such token, and of "last end";
    without one it is the highest token of the row. "attention" is pooled by the part that is given
    as `which`.
    """

    def __init__(
        self,
        part: spec.Pool,
        which: str | nn.Module,
        inputs: int,
        d_model: int,
        *,
        end: int | None,
        norm: Norm | None,
    ) -> None:
        super().__init__()
        self.which = which if isinstance(which, str) else "attention"
        self.attention = None if isinstance(which, str) else which
        self.end = end
        self.norm = norm
        self.dropout = Dropout(part.dropout)
        self.dense = Linear(inputs, d_model) if part.activation else None
        self.activation = ACTIVATIONS[part.activation] if part.activation else None
        pooled_width = d_model if part.activation else inputs
        self.project = Linear(pooled_width, part.width, bias=part.bias) if part.width else None

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

    @property
    def leads(self) -> bool:  # type: ignore[override]
        # A projection to the shared space, which has no bias, makes it one tower of CLIP.
        return self.project is not None and self.project.bias is None

    def prediction(self, hidden: Tensor, reading: Reading) -> Tensor:
        mask = reading.positions
        if self.which == "last" and reading.options.pad is not None:
            # As transformers finds the last token of a text, whatever its mask.
            mask = reading.options.unpadded(reading.main)
        tokens = reading.inputs.get("mc_token_ids") if self.which == "named" else reading.main
        return self(hidden, mask, tokens)

    def named_outputs(self, hidden: Tensor, reading: Reading) -> Outputs:
        embeds = "image_embeds" if reading.main.is_floating_point() else "text_embeds"
        name = embeds if self.leads else "pooler_output"
        return {name: Output(reading.front.vector(self.prediction(hidden, reading)))}

    def _select(self, x: Tensor, padding_mask: Tensor | None, tokens: Tensor | None) -> Tensor:
        """One position of each row, or the mean of its tokens: [B, D]."""
        batch = torch.arange(x.shape[0], device=x.device)
        if self.attention is not None:
            return self.attention(x, padding_mask)
        if self.which == "first":
            return x[:, 0]
        if self.which == "first_and_mean":
            return torch.cat([x[:, 0], x[:, 1:].mean(dim=1)], dim=-1)  # [B, 2 D]
        if self.which == "named" and tokens is not None:
            return x[batch, tokens]
        if self.which in ("final", "named"):
            return x[:, -1]
        if self.which == "end":
            assert tokens is not None, "where the end is can only be seen in the tokens"
            # Older CLIP files name a wrong end token (2): the right one has the highest id.
            marks = tokens if self.end is None else (tokens == self.end).long()
            return x[batch, marks.argmax(dim=1)]
        if self.which == "last end":
            assert tokens is not None, "where the end is can only be seen in the tokens"
            padding_mask = tokens.eq(self.end or 0)
        if self.which in ("last", "last end"):
            positions = torch.arange(x.shape[1], device=x.device)
            last = positions[-1:]
            if padding_mask is not None:
                # The last token of each row, whichever side is padded: [B]
                last = torch.where(padding_mask, positions, 0).amax(dim=1)
            return x[batch, last]
        if padding_mask is None:
            return x.mean(dim=1)
        weight = padding_mask.to(x.dtype)[..., None]  # [B, T, 1]
        return (x * weight).sum(dim=1) / weight.sum(dim=1).clamp_min(1)


class AttentionPool(nn.Module):
    """Pooling by multi-head attention (Lee et al. 2019): [B, T, D] → [B, D]."""

    def __init__(
        self, d_model: int, attention: Attention, norm: Norm, feedforward: FeedForward
    ) -> None:
        super().__init__()
        self.query = nn.Parameter(normal(1, d_model)[0])
        self.attention = attention
        self.norm = norm
        self.feedforward = feedforward

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        query = self.query.to(x.dtype).expand(x.shape[0], 1, -1)  # [B, 1, D]
        mask = cross_mask(padding_mask, torch.arange(x.shape[1], device=x.device), x.shape[0])
        # The query itself is not added: there is no residual around the attention.
        pooled = self.attention(query, mask, None, LayerContext(), x)[:, 0]  # [B, D]
        return pooled + self.feedforward(self.norm(pooled))


class HeadFeedForward(nn.Module):
    """A feed-forward sublayer with residual and post-norm, before the scores: [..., D] → same."""

    def __init__(self, feedforward: FeedForward, norm: Norm, dropout: float) -> None:
        super().__init__()
        self.feedforward = feedforward
        self.norm = norm
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + self.dropout(self.feedforward(self.dropout(x))))


class LabelHead(Head):
    """Abstract: logits of labels, of each position, or of one vector for the whole input."""

    task: str = "classify"  # its outputs are named by it
    separator: int | None = None  # the token after a question that cannot be the answer
    per_token = True  # it reads the hidden states of several positions itself

    def by_name(self, logits: Tensor, hidden: Tensor) -> dict[str, Tensor]:
        """The logits under the names of transformers."""
        return {"logits": logits}

    def prediction(self, hidden: Tensor, reading: Reading) -> Tensor:
        """[B, T, count] if each token has a label, else [B, count]."""
        return without_question(self(hidden), reading.main, self.separator)

    def named_outputs(self, hidden: Tensor, reading: Reading) -> Outputs:
        logits = self.prediction(hidden, reading)
        if self.task == "segment":
            return {"logits": Output(reading.front.as_maps(logits, reading.main))}
        named = self.by_name(logits, hidden)
        if reading.pretrains:
            # ALBERT predicts the order of two sentences, and its output has a name of its own.
            is_order = (reading.options.architecture or "").startswith("Albert")
            named = {"sop_logits" if is_order else "seq_relationship_logits": logits}
        mask = reading.positions if logits.ndim == 3 else None
        return {name: Output(value, mask) for name, value in named.items()}


class ClassifierHead(LabelHead):
    """Logits of classes: [..., D] → [..., count], of each position, or of a pooled vector.

    The pool is that of the model, or one of its own. `separator` is the token after a question
    whose scores are taken out of the competition.
    """

    def __init__(
        self,
        part: spec.ClassifierHead,
        inputs: int,
        pool: Pool | None,
        feedforward: HeadFeedForward | None,
        norm: Norm | None = None,
    ) -> None:
        super().__init__()
        self.task = part.task
        self.per_token = part.each
        self.feedforward = feedforward
        self.separator = part.excludes.separator if part.excludes else None
        width = part.width or inputs
        self.dense = Linear(inputs, width) if part.hidden else None
        self.norm = norm
        self.activation = ACTIVATIONS[part.hidden] if part.hidden else None
        self.dropout = Dropout(part.dropout)
        self.output = Linear(width, part.count, bias=part.bias)
        self.pool = pool

    def forward(self, x: Tensor) -> Tensor:
        if self.feedforward is not None:
            x = self.feedforward(x)
        if self.dense is not None and self.activation is not None:
            x = self.dense(x)
            x = self.activation(x if self.norm is None else self.norm(x))
        return self.output(self.dropout(x))

    def prediction(self, hidden: Tensor, reading: Reading) -> Tensor:
        pool = None if self.per_token else self.pool or reading.pool
        return super().prediction(pool.prediction(hidden, reading) if pool else hidden, reading)

    def by_name(self, logits: Tensor, hidden: Tensor) -> dict[str, Tensor]:
        if self.task == "answer":  # [B, T, 2]: two scores for each token
            return {"start_logits": logits[..., 0], "end_logits": logits[..., 1]}
        if self.pool is not None and self.pool.which == "named":  # beside a language model (GPT)
            return {"mc_logits": logits[..., 0]}
        if self.task in ("detect", "choice"):  # [B, T]: one score a token (ELECTRA); [B]: a choice
            return {"logits": logits[..., 0]}
        return {"logits": logits}


class DistilledHead(LabelHead):
    """DeiT's head: the mean of the logits that the first positions give, each through its own map:
    [B, T, D] → [B, count]."""

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
        named = {"cls_logits": each[:, 0], "distillation_logits": each[:, 1]}
        return {"logits": logits} | named


def without_question(logits: Tensor, tokens: Tensor | None, separator: int | None) -> Tensor:
    """Logits [B, T, 2] that no token of the question wins, where a separator is set."""
    if separator is None:
        return logits
    assert tokens is not None, "where the question is can only be seen in the tokens"
    positions = torch.arange(tokens.shape[1], device=tokens.device)
    # The first token stays: as start and end it says that there is no answer.
    excluded = (positions <= question_ends(tokens, separator)) & (positions > 0)  # [B, T]
    return logits - _EXCLUDED * excluded[..., None]


def question_ends(tokens: Tensor, separator: int) -> Tensor:
    """The position of the first separator in each row, 0 where there is none: [B, T] → [B, 1]."""
    return (tokens == separator).int().argmax(dim=1, keepdim=True)


def before_separator(tokens: Tensor, separator: int) -> Tensor:
    """True from the first token to the last one of the question: [B, T]."""
    positions = torch.arange(tokens.shape[1], device=tokens.device)
    return positions < question_ends(tokens, separator)
