"""From token ids to vectors."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.core import fused_step
from regard.core.dropout import Dropout
from regard.core.linear import Linear, normal
from regard.core.norm import Norm
from regard.core.position import AxialPosition, FixedPosition, LearnedPosition, Sinusoidal


class Table(nn.Module):
    """One vector for each token. The same table may serve source, target and output (Section 3.4)."""

    def __init__(self, vocabulary: int, d_model: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(normal(vocabulary, d_model))


class Embedding(nn.Module):
    """Looks tokens up, scales, adds positions and segments or sets positions `beside`, normalises, drops, widens; each if
    the spec has it."""

    def __init__(
        self,
        table: Table,
        position: Sinusoidal | LearnedPosition | FixedPosition | AxialPosition | None,
        *,
        scale: bool,
        dropout: float,
        segments: Table | None = None,
        norm: Norm | None = None,
        project: Linear | None = None,
        beside: Sinusoidal | None = None,
    ) -> None:
        super().__init__()
        self.table = table
        self.position = position
        self.segments = segments
        self.norm = norm
        self.project = project
        self.beside = beside
        self.scale = math.sqrt(table.weight.shape[1]) if scale else 1.0
        self.dropout = Dropout(dropout)

    def places(self, padding_mask: Tensor | None) -> Tensor | None:
        """Which of the positions are real: those of the real tokens."""
        return padding_mask

    def forward(
        self,
        tokens: Tensor,
        start: int | Tensor = 0,
        *,
        end: int | None = None,
        padding_mask: Tensor | None = None,
        segments: Tensor | None = None,
        places: Tensor | None = None,
    ) -> Tensor:
        """tokens [B, T] from position `start` on; positions count from each row's first `real` token, or are the `places`
        [B, T]. A `start` that only the device knows lies before `end`."""
        if (
            isinstance(start, Tensor)
            and padding_mask is None
            and segments is None
            and places is None
        ):
            assert end is not None
            if (found := fused_step.embedded(self, tokens, start, end)) is not None:
                return found
        x = functional.embedding(tokens, self.table.weight)  # [B, T, D]
        x = x * self.scale if self.scale != 1.0 else x
        if self.segments is not None:
            x = x + (
                self.segments.weight[0]
                if segments is None
                else functional.embedding(segments, self.segments.weight)
            )
        if self.position is not None:
            x = x + self._positions(
                self.position, start, tokens.shape[1], end, padding_mask, places
            )
        if self.beside is not None:
            waves = self._positions(self.beside, start, tokens.shape[1], end, padding_mask, places)
            x = torch.cat([x, waves.to(x.dtype).expand(len(x), -1, -1)], dim=-1)
        x = x if self.norm is None else self.norm(x)
        x = self.dropout(x)
        return x if self.project is None else self.project(x)

    def _positions(
        self,
        position: Sinusoidal | LearnedPosition | FixedPosition | AxialPosition,
        start: int | Tensor,
        length: int,
        end: int | None,
        padding_mask: Tensor | None,
        given: Tensor | None,
    ) -> Tensor:
        if given is not None:
            return functional.embedding(given, position.known(length))
        if isinstance(start, Tensor):
            assert end is not None
            rows, places = position.known(end), start
        else:
            rows = position.rows(start + length)
            if padding_mask is None:
                return rows[start : start + length]
            places = torch.arange(start, start + length, device=padding_mask.device)
        if padding_mask is not None:
            places = (places - padding_mask.long().argmax(dim=1, keepdim=True)).clamp_min(
                0
            )  # [B, T] after the first token
        return functional.embedding(places, rows)
