"""Position terms: what a stack's positions contribute to one forward pass, computed once for all
layers. Rotary angles turn queries and keys, a score bias is added to the scores, DeBERTa's distance
vectors give each layer a bias of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from torch import Tensor, nn

from regard.core.masks.attention_mask import AttentionMask, ScoreBias, Term
from regard.core.masks.mask import Call

Angles = tuple[Tensor, Tensor]  # cos and sin


class DistanceScores(Protocol):
    """Distance vectors of one call, from which each layer computes scores of its own."""

    def scores(self, q: Tensor, k: Tensor, project: nn.Module) -> Tensor:
        """[B, H, T, S]"""
        ...


class PositionTerms(NamedTuple):
    """Rotary `angles`, a `bias` on the scores, `relative` vectors, or vectors that are `added` to
    what queries and keys are made of; none of them where positions are added at the input. `ids`
    are the positions of the queries [T], or [B, T] where rows begin at different ones."""

    ids: Tensor
    angles: Angles | None = None
    bias: ScoreBias | None = None
    relative: DistanceScores | None = None
    added: tuple[Tensor, Tensor] | None = None  # [B or 1, T, D] and [B or 1, S, D]

    def across(self, memory: Tensor | None) -> PositionTerms | None:
        """Those of cross-attention to a memory whose positions have these vectors; positions of two
        sequences are not comparable otherwise."""
        if self.added is None or memory is None:
            return None
        return PositionTerms(self.ids, added=(self.added[0], memory))


# ------------------------------------------------------------------ of a stack


class StackPosition(nn.Module):
    """Abstract: positions that act inside attention, alike in all layers of a stack."""

    def terms(self, mask: AttentionMask, ids: Tensor, call: Call) -> PositionTerms:
        """Its terms for the query and key positions of `mask`: rotary angles or a score bias. `ids`
        are the positions of the queries, counted in each document or from each row's first token;
        `call.length` counts all positions of the sequence so far."""
        raise NotImplementedError


def bias_terms(term: Term, mask: AttentionMask, ids: Tensor) -> PositionTerms:
    """A score bias that follows from positions alone."""
    # Made here and not in a layer, because a layer may run twice (activation checkpointing). Sparse
    # kernels ask for the pairs they see: no [1, H, T, S] is made.
    tensor = None if mask.is_sparse else term(mask.queries, mask.keys)
    return PositionTerms(ids, bias=ScoreBias(tensor, term))


class AddedPosition(StackPosition):
    """Vectors of the front end, which attention adds to its queries and keys (DETR)."""

    def terms(self, mask: AttentionMask, ids: Tensor, call: Call) -> PositionTerms:
        assert call.added is not None, "the front end has vectors of its positions"
        return PositionTerms(ids, added=(call.added, call.added))


# ------------------------------------------------------------------ of a layer


class Projects(Protocol):
    """A projection, asked for what an addition to its input changes."""

    def shift(self, x: Tensor, letter: str) -> Tensor: ...


class LayerPosition:
    """How positions act in one attention: by the bias that its stack computes for all layers, if
    there is one. Rotary positions, and those with scores of their own in each layer, do more."""

    def turn(
        self, q: Tensor, k: Tensor, positions: PositionTerms | None, project: Projects
    ) -> tuple[Tensor, Tensor]:
        """Queries and keys, turned or moved by their positions."""
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

    def add_to_values(
        self, out: Tensor, weigh: Callable[[Tensor], Tensor], mask: AttentionMask
    ) -> Tensor:
        """What each head finds [B, H, T, E], with what positions add to the values; `weigh` gives
        the attention weights of some queries."""
        return out

    def keep(self, heads: Tensor) -> None:
        """Prunes all but these heads."""


class MovedByPosition(LayerPosition):
    """Positions that are added to what queries and keys are projected from, and not to values."""

    def turn(
        self, q: Tensor, k: Tensor, positions: PositionTerms | None, project: Projects
    ) -> tuple[Tensor, Tensor]:
        added = None if positions is None else positions.added
        assert added is not None, "made by the stack"
        of_queries, of_keys = added
        # W (x + p) = W x + W p: the positions of a batch without padding are projected once.
        return q + project.shift(of_queries, "q"), k + project.shift(of_keys, "k")


NO_POSITION = LayerPosition()
