"""Position terms: what a stack's positions contribute to one forward pass, computed once for all
layers. Rotary angles turn queries and keys, a score bias is added to the scores, DeBERTa's distance
vectors give each layer a bias of its own."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor

from regard.core.attention_mask import AttentionMask, ScoreBias
from regard.core.relative_position import (
    Alibi,
    Disentangled,
    DistanceVectors,
    RepeatedBlockBias,
    ShortestPathBias,
    T5Bias,
)
from regard.core.rotary import Angles, Rope
from regard.errors import ModelError


class PositionTerms(NamedTuple):
    """Rotary `angles`, a `bias` on the scores, or `relative` vectors; none of them where positions
    are added at the input. `ids` are the positions of the queries [T], or [B, T] where rows begin
    at different ones."""

    ids: Tensor
    angles: Angles | None = None
    bias: ScoreBias | None = None
    relative: DistanceVectors | None = None


class Position(Protocol):
    """A position from outside the package, as a module that computes its own terms."""

    def terms(self, mask: AttentionMask, ids: Tensor, length: int) -> PositionTerms:
        """Rotary angles or a score bias for the query and key positions of `mask`."""
        ...


StackPosition = (
    Rope | T5Bias | Alibi | Disentangled | RepeatedBlockBias | ShortestPathBias | Position
)


def position_terms(
    position: StackPosition | None,
    mask: AttentionMask,
    ids: Tensor,
    length: int,
    distances: Tensor | None = None,
) -> PositionTerms:
    """The terms of a stack's position for the positions of one mask; `length` counts all positions
    of the sequence so far, and `distances` [B, N, N] are the paths between the nodes of graphs."""
    match position:
        case None:
            return PositionTerms(ids)
        case Rope():
            # Of the new positions only: cached keys have been rotated already.
            return PositionTerms(ids, angles=position.angles(mask.queries))
        case Disentangled():
            return PositionTerms(ids, relative=position(mask.queries, mask.keys))
        case ShortestPathBias():
            assert distances is not None, "the caller of a graph model gives them"
            return PositionTerms(ids, bias=ScoreBias(position(distances)))
        case RepeatedBlockBias():
            term = position.over(length)
            if term is None:
                return PositionTerms(ids)
        case T5Bias() | Alibi():
            term = position
        case _:
            return _own_terms(position, mask, ids, length)
    # Sparse kernels ask for the pairs they see: no [1, H, T, S] is made.
    if mask.is_sparse:
        return PositionTerms(ids, bias=ScoreBias(term=term))
    # Made here and not in a layer, because a layer may run twice (activation checkpointing).
    return PositionTerms(ids, bias=ScoreBias(term(mask.queries, mask.keys), term))


def _own_terms(position: Position, mask: AttentionMask, ids: Tensor, length: int) -> PositionTerms:
    """The terms of a position from outside, which may return anything."""
    terms = position.terms(mask, ids, length)
    name = type(position).__name__
    if not isinstance(terms, PositionTerms):
        raise ModelError(
            f"{name}.terms returned a {type(terms).__name__}, not PositionTerms",
            "return core.position_terms.PositionTerms(ids, …) from `terms`",
        )
    if terms.bias is None or not terms.bias.is_dense:
        return terms
    shape = terms.bias.tensor(mask).shape
    pairs = (len(mask.queries), len(mask.keys))
    if len(shape) != 4 or shape[2:] != pairs:
        raise ModelError(
            f"{name}.terms returned a bias of {tuple(shape)} for {pairs[0]} queries and "
            f"{pairs[1]} keys",
            "return a bias of the shape [1, heads, queries, keys]",
        )
    return terms
