"""Softmax attention along the edges of a graph: the same numbers as under its adjacency mask.

The work grows with the edges, not with the pairs of nodes. Weights are normalised over the edges
that leave a node (a segment softmax).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional

from regard.core.masks.attention_mask import AttentionMask, ScoreBias
from regard.core.masks.mask import FAR, And, Call, MaskPattern, Ranges, merge_ranges
from regard.core.projection import per_query_head

# Dense kernels are faster where more than one pair in so many is an edge.
SPARSITY = 16
# A GPU adds along edges in no fixed order, so that runs would not repeat bit for bit: only graphs
# whose pairs would not fit are computed so there.
LARGEST_DENSE = 16_384


def edges_of(mask: AttentionMask) -> Tensor | None:
    """The edges [E, 3] to which a mask restricts attention, where they are few; else None."""
    graph = _graph(mask.pattern)
    if graph is None or len(mask.queries) != graph.length or len(mask.keys) != graph.length:
        return None
    if len(graph.edges) * SPARSITY > mask.batch * graph.length**2:
        return None
    if mask.queries.is_cuda and graph.length <= LARGEST_DENSE:
        return None
    edges = graph.edges.long()
    if graph is mask.pattern:
        return edges
    rows, starts, ends = edges.unbind(1)
    # What else the mask says, such as padding, of these pairs alone.
    return edges[mask.pattern.allows(rows, torch.zeros_like(rows), starts, ends)]


def _graph(pattern: MaskPattern) -> GraphMask | None:
    """The graph that a pattern is, or that it is restricted to."""
    match pattern:
        case GraphMask():
            return pattern
        case And(first, second):
            return _graph(first) or _graph(second)
        case _:
            return None


def attend(
    q: Tensor,  # [B, H, T, K]
    k: Tensor,  # [B, G, S, K]
    v: Tensor,  # [B, G, S, E]
    edges: Tensor,  # [E, 3]
    mask: AttentionMask,
    scale: float,
    dropout: float,
    bias: ScoreBias | None = None,
) -> Tensor:
    """[B, H, T, E]; a node without edges gets zeros."""
    heads = q.shape[1]
    rows, starts, ends = edges.unbind(1)
    query = rows * q.shape[2] + starts  # [E], of all nodes of the batch
    key = rows * k.shape[2] + ends
    # index_select and not q[query]: its gradient is summed in a fixed order on a CPU.
    scores = (_nodes(q, heads).index_select(0, query) * scale) * _nodes(k, heads).index_select(
        0, key
    )
    scores = scores.sum(dim=-1)  # [E, H]
    if bias is not None:
        tensor = bias.tensor(mask)  # [B or 1, H, T, S]
        row = rows if tensor.shape[0] > 1 else torch.zeros_like(rows)
        scores = scores + tensor[row, :, starts, ends]
    # Segment softmax: the segments are the edges that leave one node.
    nodes = q.shape[0] * q.shape[2]
    # The largest score of each node is taken off, as in every softmax: exp() must not overflow.
    largest = scores.detach().new_full((nodes, heads), float("-inf"))
    index = query[:, None].expand(-1, heads)
    largest = largest.scatter_reduce(0, index, scores.detach(), "amax")
    weights = (scores - largest.index_select(0, query)).exp()
    total = weights.new_zeros(nodes, heads).index_add(0, query, weights)
    weights = weights / total.index_select(0, query)
    weights = functional.dropout(weights, dropout, dropout > 0)
    values = weights[..., None] * _nodes(v, heads).index_select(0, key)  # [E, H, E]
    out = values.new_zeros(nodes, heads, v.shape[-1]).index_add(0, query, values)
    return out.view(q.shape[0], q.shape[2], heads, -1).transpose(1, 2)


def _nodes(x: Tensor, heads: int) -> Tensor:
    """[B, G, S, K] → [B·S, H, K], each key head for the query heads of its group."""
    return per_query_head(x, heads).transpose(1, 2).flatten(0, 1)


@dataclass(frozen=True)
class NeighbourMask(MaskPattern):
    """Adjacency mask whose edges are an input of the call."""

    def bind(self, call: Call) -> GraphMask:
        edges = call.inputs["edges"]
        assert edges is not None, "the caller of a graph model gives them"
        return GraphMask(edges, call.length)


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
