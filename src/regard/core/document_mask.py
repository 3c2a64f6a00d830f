"""The document mask: texts that are packed into one row do not see each other."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from regard.core.mask import MaskPattern, Ranges


@dataclass(frozen=True, eq=False)
class DocumentMask(MaskPattern):
    """Packing: several documents in one row, each of which attends to itself only.

    `of[b, s]` numbers the document of each position. Where queries belong to other rows, as in
    cross-attention, their documents are `by[b, t]`.
    """

    per_row = True
    of: Tensor  # [B, S] int, from 0
    by: Tensor | None = None  # [B, T]

    def allows(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        query_documents = self.of if self.by is None else self.by
        return query_documents[batch, query] == self.of[batch, key]

    @property
    def positions(self) -> Tensor:
        """[B, S]: the position inside its document; each document begins at 0."""
        first, _ = self._bounds
        return torch.arange(first.shape[1], device=first.device) - first

    def reach(self, low: int, high: int) -> Ranges:
        first, last = self._bounds
        begin = int(first[:, low : high + 1].min())
        end = int(last[:, low : high + 1].max()) + 1
        return [(begin, end)]

    @cached_property
    def _bounds(self) -> tuple[Tensor, Tensor]:
        """[B, S] each: first and last position of the document that each position belongs to."""
        of = self.of.long()
        positions = torch.arange(of.shape[1], device=of.device).expand_as(of)
        count = int(of.max()) + 1
        first = positions.new_full((len(of), count), of.shape[1])  # [B, documents]
        first = first.scatter_reduce(1, of, positions, "amin")
        last = positions.new_zeros(len(of), count).scatter_reduce(1, of, positions, "amax")
        return first.gather(1, of), last.gather(1, of)
