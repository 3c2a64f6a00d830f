"""Token embeddings: from token ids to vectors (Section 3.4)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.core.context import Context
from regard.core.dropout import Dropout
from regard.core.linear import Linear, normal
from regard.core.masks.attention_mask import first_token
from regard.core.norm import Norm
from regard.core.positions.positional_encoding import (
    InputPosition,
    LearnedPosition,
    Sinusoidal,
)
from regard.core.side import FrontEnd
from regard.system.errors import ModelError

if TYPE_CHECKING:
    from regard import spec


class Table(nn.Module):
    """An embedding table: one vector for each token. The same table may serve source, target and
    output (weight tying, Section 3.4)."""

    def __init__(self, vocabulary: int, d_model: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(normal(vocabulary, d_model))

    def extra_repr(self) -> str:
        return f"vocabulary={self.weight.shape[0]}, d_model={self.weight.shape[1]}"


_MASKED = 0.15 * 0.8  # of the tokens that ESM was trained with


def _without(is_masked: Tensor, x: Tensor, padding_mask: Tensor | None) -> Tensor:
    """x [B, T, D] with 0 for masked tokens, scaled so that its size is that of ESM's training."""
    if padding_mask is None:
        padding_mask = torch.ones_like(is_masked)
    share = is_masked.sum(dim=-1) / padding_mask.sum(dim=-1)  # [B]
    scale = (1 - _MASKED) / (1 - share)
    return (x.masked_fill(is_masked[..., None], 0.0) * scale[:, None, None]).to(x.dtype)


class Embedding(FrontEnd):
    """Looks tokens up, scales, adds positions and segments (token types), normalises, drops,
    widens; each if the spec has it. Positions may also be concatenated instead of added."""

    def __init__(
        self,
        part: spec.Tokens,
        table: Table,
        position: InputPosition | None,
        *,
        segments: Table | None = None,
        norm: Norm | None = None,
        project: Linear | None = None,
        concatenated: Sinusoidal | None = None,
    ) -> None:
        super().__init__()
        self.table = table
        self.position = position
        self.segments = segments
        self.norm = norm
        self.project = project
        self.concatenated = concatenated
        self.zeroed = part.zeroed
        self.columns = part.columns
        # "In the embedding layers, we multiply those weights by √d_model" (Section 3.4).
        self.scale = math.sqrt(table.weight.shape[1]) if part.scale else 1.0
        self.dropout = Dropout(part.dropout)

    @property
    def meets_padding(self) -> bool:  # type: ignore[override]
        # Encoders count positions from the start of a row, whatever stands there.
        return self.zeroed is not None

    def grid(self, inputs: Tensor) -> tuple[int, int] | None:
        """The sequences and the columns of alignments [B, S·R]."""
        if self.columns is None:
            return None
        rows, rest = divmod(inputs.shape[1], self.columns)
        if rest:
            raise ModelError(
                f"{inputs.shape[1]} positions are no rows of {self.columns} columns",
                "give alignments row after row, all of one width",
            )
        return rows, self.columns

    def forward(
        self,
        tokens: Tensor,
        padding_mask: Tensor | None = None,
        context: Context | None = None,
        *,
        segments: Tensor | None = None,
    ) -> Tensor:
        """tokens [B, T] → [B, T, D]. Positions count from each row's first token, or in each of the
        documents that share a row, or go on from the context's caches."""
        context = context or Context()
        x = functional.embedding(tokens, self.table.weight)  # [B, T, D]
        if self.scale != 1.0:
            x = x * self.scale
        if self.zeroed is not None and self.zeroed.mask is not None:
            x = _without(tokens == self.zeroed.mask, x, padding_mask)
        if segments is not None:
            # GPT's segments are tokens.
            x = x + functional.embedding(segments, (self.segments or self.table).weight)
        elif self.segments is not None:
            # BERT's default: all tokens are of sentence A (token type 0).
            x = x + self.segments.weight[0]
        if self.position is not None:
            x = x + self._position_vectors(self.position, tokens, padding_mask, context)
        if self.concatenated is not None:
            waves = self._position_vectors(self.concatenated, tokens, padding_mask, context)
            x = torch.cat([x, waves.to(x.dtype).expand(len(x), -1, -1)], dim=-1)
        if self.norm is not None:
            x = self.norm(x)
        if self.zeroed is not None and padding_mask is not None:
            x = x * padding_mask[..., None]
        x = self.dropout(x)
        if self.project is not None:
            x = self.project(x)
        return x

    def _position_vectors(
        self,
        position: InputPosition,
        tokens: Tensor,
        padding_mask: Tensor | None,
        context: Context,
    ) -> Tensor:
        """[T, D], or [B, T, D] where rows count for themselves."""
        start, length, end = context.positions(tokens.shape[1])
        if context.documents is not None:
            rows = position.available_rows(length)
            return functional.embedding(context.documents.positions, rows)
        learned = position if isinstance(position, LearnedPosition) else None
        if learned is not None and learned.padding is not None and not context.state:
            return learned.of_tokens(tokens)
        # Inside a CUDA graph only the device knows the position: gathered, never sliced.
        if isinstance(start, Tensor):
            rows = position.available_rows(end)
            ids = start
        else:
            rows = position.rows(start + length)
            if padding_mask is None:
                return rows[start : start + length]
            ids = torch.arange(start, start + length, device=tokens.device)
        if padding_mask is not None:
            ids = (ids - first_token(padding_mask)).clamp_min(0)  # [B, T]
        return functional.embedding(ids, rows)
