"""Masks of graphs: a node attends to its neighbours."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from regard.core.mask import FAR, MaskPattern, Ranges, merge_ranges
from regard.errors import ModelError


@dataclass(frozen=True)
class NeighbourMask(MaskPattern):
    """Adjacency mask whose edges are an argument of the call: the stack makes a `GraphMask`."""

    def allows(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        raise ModelError(
            "NeighbourMask cannot be combined with other masks", "use NeighbourMask alone"
        )


@dataclass(frozen=True, eq=False)
class GraphMask(MaskPattern):
    """Adjacency: a node attends to those to which an edge leads. Self-loops are edges too.

    `edges` are (batch row, from, to) among `length` nodes.
    """

    per_row = True
    pointwise = False  # it searches
    edges: Tensor  # [edges, 3] int
    length: int
    codes: Tensor = field(init=False)  # [edges + 1], one sorted number an edge, the last is none

    def __post_init__(self) -> None:
        rows, starts, ends = self.edges.long().unbind(1)
        # One number an edge: membership is a binary search, and no [B, S, S] is made.
        codes = ((rows * self.length + starts) * self.length + ends).sort().values
        # The dataclass is frozen. FAR is what a search beyond all edges finds.
        object.__setattr__(self, "codes", torch.cat([codes, codes.new_tensor([FAR])]))

    def allows(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        wanted = (batch * self.length + query) * self.length + key
        return self.codes[torch.searchsorted(self.codes, wanted)] == wanted

    def reach(self, low: int, high: int) -> Ranges:
        starts, ends = self._edges_by_start
        first = torch.searchsorted(starts, low)
        past = torch.searchsorted(starts, high + 1)
        neighbours = sorted(set(ends[first:past].tolist()))
        return merge_ranges([(position, position + 1) for position in neighbours])

    @cached_property
    def _edges_by_start(self) -> tuple[Tensor, Tensor]:
        """Edges sorted by where they start: their starts and their ends, [edges] each."""
        starts, order = self.edges[:, 1].long().sort()
        return starts, self.edges[order, 2]
