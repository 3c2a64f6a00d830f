"""The document mask: texts that are packed into one row do not attend to each other."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from regard.core.mask import MaskPattern, Ranges


@dataclass(frozen=True, eq=False)
class DocumentMask(MaskPattern):
    """Packing: several documents in one row, each of which attends to itself only.

    `document_ids[b, s]` is the document of each position. Where queries belong to other rows, as
    in cross-attention, their documents are `query_document_ids[b, t]`.
    """

    per_row = True
    document_ids: Tensor  # [B, S] int, from 0
    query_document_ids: Tensor | None = None  # [B, T]

    def allows(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        query_ids = self.query_document_ids
        if query_ids is None:
            query_ids = self.document_ids
        return query_ids[batch, query] == self.document_ids[batch, key]

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
        ids = self.document_ids.long()
        positions = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        count = int(ids.max()) + 1
        first = positions.new_full((len(ids), count), ids.shape[1])  # [B, documents]
        first = first.scatter_reduce(1, ids, positions, "amin")
        last = positions.new_zeros(len(ids), count).scatter_reduce(1, ids, positions, "amax")
        return first.gather(1, ids), last.gather(1, ids)
