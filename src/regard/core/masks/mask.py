"""Mask patterns: which query positions may attend to which key positions; True = may attend.

A pattern is a predicate on (batch row, head, query position, key position), made of tensors that
broadcast against each other; patterns combine with & | ~. `attention_mask.AttentionMask` lays one
over the actual positions of a call. Here are what all patterns have in common, how they are
combined, and the causal, padding and document masks; windows, blocks and global tokens are in
`sparse_masks`, graphs in `edge_attention`.

Besides the predicate, a pattern has what sparse kernels and KV caches need: which keys a
run of queries could `reach` at all, how far back a query looks (`max_lookback`), and at which
`stride`. These may promise too much, never too little: the predicate decides.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

Ranges = list[tuple[int, int]]  # of positions: first, and one past the last
FAR = 1 << 60  # beyond every position
EVERYWHERE: Ranges = [(-FAR, FAR)]


class MaskPattern:
    """Abstract. `allows` gets index tensors that broadcast to [B, H, T, S] and returns booleans."""

    # Positions whose distance is no multiple of the stride never attend to each other.
    stride = 1
    # How many positions before its own a query may attend to; None: no limit.
    max_lookback: int | None = None
    # Whether the pattern depends on absolute positions, and not only on distances.
    anchored = False
    # Whether no position attends to what follows it.
    causal = False
    # Whether the pattern depends on the batch row.
    per_row = False
    # Whether `allows` is arithmetic on each pair, as compiled kernels need it.
    pointwise = True
    # Whether it says which tokens are global, so that those a caller names are among them.
    names_global_tokens = False
    # Whether `bind` waits for the device.
    waits_for_device = False

    def allows(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        raise NotImplementedError

    def reach(self, low: int, high: int) -> Ranges:
        """The ranges of keys that queries from `low` to `high`, both included, may attend to."""
        return EVERYWHERE

    def bind(self, call: Call) -> MaskPattern:
        """The pattern of one call: what depends on its length or its inputs is settled here."""
        return self

    def outline(self) -> MaskPattern:
        """A pattern that reaches as far, without what belongs to one batch."""
        return self

    def __and__(self, other: MaskPattern) -> MaskPattern:
        if isinstance(self, FullMask):
            return other
        if isinstance(other, FullMask):
            return self
        return And(self, other)

    def __or__(self, other: MaskPattern) -> MaskPattern:
        if isinstance(self, FullMask):
            return self
        return Or(self, other)

    def __invert__(self) -> MaskPattern:
        return Not(self)


class Call(NamedTuple):
    """What one call says of its positions, for patterns that depend on it."""

    length: int  # of the sequence so far
    device: torch.device | None = None
    rows: int = 1
    # [B, S] of the keys, True at tokens.
    padding_mask: Tensor | None = None
    documents: DocumentMask | None = None
    # [B, S], those that the caller names.
    global_tokens: Tensor | None = None
    # The inputs of the model by name: token ids, edges.
    inputs: Mapping[str, Tensor | None] = {}
    # [B or 1, T, D], what attention adds to its queries and keys (DETR).
    added: Tensor | None = None


# ------------------------------------------------------------------ the basic patterns


@dataclass(frozen=True)
class FullMask(MaskPattern):
    """Full attention: no restriction."""

    def allows(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return torch.ones_like(key, dtype=torch.bool)


NO_MASK = FullMask()


# ------------------------------------------------------------------ combinations


@dataclass(frozen=True)
class _Pair(MaskPattern):
    """Abstract: two patterns, combined pair by pair."""

    combine: ClassVar[Any]  # of two booleans, and of two patterns
    first: MaskPattern
    second: MaskPattern

    @property
    def anchored(self) -> bool:  # type: ignore[override]
        return self.first.anchored or self.second.anchored

    def allows(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        first = self.first.allows(batch, head, query, key)
        return self.combine(first, self.second.allows(batch, head, query, key))

    def bind(self, call: Call) -> MaskPattern:
        return type(self)(self.first.bind(call), self.second.bind(call))

    def outline(self) -> MaskPattern:
        return self.combine(self.first.outline(), self.second.outline())


@dataclass(frozen=True)
class And(_Pair):
    """Intersection: pairs that both patterns allow."""

    combine = staticmethod(operator.and_)

    @property
    def causal(self) -> bool:  # type: ignore[override]
        return self.first.causal or self.second.causal

    @property
    def stride(self) -> int:  # type: ignore[override]
        # Distances must be multiples of both; multiples of the larger one include these.
        return max(self.first.stride, self.second.stride)

    @property
    def max_lookback(self) -> int | None:  # type: ignore[override]
        limits = (self.first.max_lookback, self.second.max_lookback)
        return min((limit for limit in limits if limit is not None), default=None)

    def reach(self, low: int, high: int) -> Ranges:
        overlaps = [
            (max(begin, other_begin), min(end, other_end))
            for begin, end in self.first.reach(low, high)
            for other_begin, other_end in self.second.reach(low, high)
        ]
        return merge_ranges([(begin, end) for begin, end in overlaps if begin < end])


@dataclass(frozen=True)
class Or(_Pair):
    """Union: pairs that either pattern allows."""

    combine = staticmethod(operator.or_)

    @property
    def causal(self) -> bool:  # type: ignore[override]
        return self.first.causal and self.second.causal

    @property
    def stride(self) -> int:  # type: ignore[override]
        # Either may allow what is no multiple of the other's stride.
        if self.first.stride == self.second.stride:
            return self.first.stride
        return 1

    @property
    def max_lookback(self) -> int | None:  # type: ignore[override]
        one = self.first.max_lookback
        other = self.second.max_lookback
        if one is None or other is None:
            return None
        return max(one, other)

    def reach(self, low: int, high: int) -> Ranges:
        return merge_ranges(self.first.reach(low, high) + self.second.reach(low, high))


@dataclass(frozen=True)
class Not(MaskPattern):
    """Complement: pairs that a pattern does not allow."""

    inner: MaskPattern

    @property
    def anchored(self) -> bool:  # type: ignore[override]
        return self.inner.anchored

    def allows(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return ~self.inner.allows(batch, head, query, key)

    def bind(self, call: Call) -> MaskPattern:
        return Not(self.inner.bind(call))

    def outline(self) -> MaskPattern:
        # `reach` may promise too much, so its complement would promise too little.
        return FullMask()


def merge_ranges(ranges: Ranges) -> Ranges:
    """The same positions, in order, none twice."""
    merged: Ranges = []
    for begin, end in sorted(ranges):
        if merged and begin <= merged[-1][1]:  # they overlap, or one ends where the other begins
            previous_begin, previous_end = merged[-1]
            merged[-1] = (previous_begin, max(end, previous_end))
        else:
            merged.append((begin, end))
    return merged


@dataclass(frozen=True)
class CausalMask(MaskPattern):
    """The causal mask: a query attends to its own position and those before it."""

    causal = True

    def allows(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return key <= query

    def reach(self, low: int, high: int) -> Ranges:
        return [(-FAR, high + 1)]


@dataclass(frozen=True, eq=False)
class PaddingMask(MaskPattern):
    """The padding mask: `padding_mask[b, s]` is True where row b holds a token at position s.

    True at tokens, unlike `nn.MultiheadAttention`'s `key_padding_mask`, which is True at padding.
    """

    per_row = True
    padding_mask: Tensor  # [B, S] bool

    def allows(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return self.padding_mask[batch, key]

    def outline(self) -> MaskPattern:
        # Padding belongs to a batch; without it more can be reached, never less.
        return FullMask()


@dataclass(frozen=True, eq=False)
class PairMask(MaskPattern):
    """Which key each query sees, written out: of the images of a text, those before a word."""

    per_row = True
    allowed: Tensor  # [B, T, S] bool

    def allows(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return self.allowed[batch, query, key]

    def outline(self) -> MaskPattern:
        return FullMask()


def padding_pattern(padding_mask: Tensor | None) -> MaskPattern:
    """The pattern of a padding mask [B, S]; None: nothing is padded."""
    return FullMask() if padding_mask is None else PaddingMask(padding_mask)


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
        query_ids = self.document_ids
        if self.query_document_ids is not None:
            query_ids = self.query_document_ids
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
