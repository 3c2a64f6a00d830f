"""Position terms: what a stack's positions contribute to one forward pass, computed once for all
layers. Rotary angles turn queries and keys, a score bias is added to the scores, DeBERTa's distance
vectors give each layer a bias of its own."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor, nn

from regard.core.masks.attention_mask import AttentionMask, ScoreBias, Term
from regard.core.masks.mask import Call
from regard.system.errors import ModelError

Angles = tuple[Tensor, Tensor]  # cos and sin


class DistanceScores(Protocol):
    """Distance vectors of one call, from which each layer computes scores of its own."""

    def scores(self, q: Tensor, k: Tensor, project: nn.Module) -> Tensor:
        """[B, H, T, S]"""
        ...


class PositionTerms(NamedTuple):
    """Rotary `angles`, a `bias` on the scores, or `relative` vectors; none of them where positions
    are added at the input. `ids` are the positions of the queries [T], or [B, T] where rows begin
    at different ones."""

    ids: Tensor
    angles: Angles | None = None
    bias: ScoreBias | None = None
    relative: DistanceScores | None = None


# ------------------------------------------------------------------ of a stack


class StackPosition(nn.Module):
    """Abstract: positions that act inside attention, alike in all layers of a stack."""

    def terms(self, mask: AttentionMask, ids: Tensor, call: Call) -> PositionTerms:
        """Its terms for the query and key positions of `mask`."""
        raise NotImplementedError


class Position(Protocol):
    """A position from outside the package, as a module that computes its own terms."""

    def terms(self, mask: AttentionMask, ids: Tensor, length: int) -> PositionTerms:
        """Rotary angles or a score bias for the query and key positions of `mask`; `length` counts
        all positions of the sequence so far."""
        ...


AnyPosition = StackPosition | Position


def position_terms(
    position: AnyPosition | None, mask: AttentionMask, ids: Tensor, call: Call
) -> PositionTerms:
    """The terms of a stack's position for the positions of one mask."""
    if position is None:
        return PositionTerms(ids)
    if isinstance(position, StackPosition):
        return position.terms(mask, ids, call)
    return _own_terms(position, mask, ids, call.length)


def bias_terms(term: Term, mask: AttentionMask, ids: Tensor) -> PositionTerms:
    """A score bias that follows from positions alone."""
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


# ------------------------------------------------------------------ of a layer


class LayerPosition:
    """How positions act in one attention: by the bias that its stack computes for all layers, if
    there is one. Rotary positions, and those with scores of their own in each layer, do more."""

    def turn(self, q: Tensor, k: Tensor, positions: PositionTerms | None) -> tuple[Tensor, Tensor]:
        """Queries and keys, turned by their positions."""
        return q, k

    def scores(
        self,
        q: Tensor,
        k: Tensor,
        mask: AttentionMask,
        positions: PositionTerms | None,
        project: nn.Module,
    ) -> tuple[Tensor, ScoreBias | None]:
        """The queries to attend with, and what positions add to the scores of this layer."""
        return q, None if positions is None else positions.bias

    def keep(self, heads: Tensor) -> None:
        """Prunes all but these heads."""


NO_POSITION = LayerPosition()
