"""Who may look at whom. True means "may look", everywhere.

A pattern is a predicate on (batch row, head, query position, key position), made of tensors that broadcast against each
other; patterns combine with & | ~. A `Sight` is a pattern laid over the actual positions of one call: it is made once per
batch, outside the layers, and every layer of a stack shares it.

Besides the predicate, a pattern tells what sparse kernels and decoding states need to know: which keys a run of queries
could `reach` at all, how far `behind` itself a query looks, and at which `stride`. These may promise too much, never too
little: the predicate decides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from regard.core.position import Relative
from regard.errors import ModelError

Ranges = list[tuple[int, int]]  # of places, each from its first up to but without its last
FAR = 1 << 60
WHOLE: Ranges = [(-FAR, FAR)]
SIZES = (64, 128, 256)  # of blocks that sparse kernels may take


class MaskPattern:
    """Abstract. `allows` gets index tensors shaped to broadcast to [B, H, T, S] and returns booleans that do."""

    stride = 1  # places whose distance is no multiple of it never look at each other
    max_lookback: int | None = (
        None  # how many places before its own a query may look at; None: no limit
    )
    anchored = False  # whether it matters where a sequence begins, and not only how far apart two places are

    def allows(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        raise NotImplementedError

    def reach(self, low: int, high: int) -> Ranges:
        """Where keys may stand that queries from `low` to `high`, both included, look at."""
        return WHOLE

    def over(self, length: int, device: torch.device | None = None) -> MaskPattern:
        """The pattern for a sequence of `length` places: what counts from its end, or is drawn, is settled, and lies on the
        `device` that will ask."""
        return self

    def outline(self) -> MaskPattern:
        """What reaches as far, without what belongs to one batch."""
        return self

    def __and__(self, other: MaskPattern) -> MaskPattern:
        if isinstance(self, FullMask):
            return other
        return self if isinstance(other, FullMask) else And(self, other)

    def __or__(self, other: MaskPattern) -> MaskPattern:
        return self if isinstance(self, FullMask) else Or(self, other)

    def __invert__(self) -> MaskPattern:
        return Not(self)


@dataclass(frozen=True)
class FullMask(MaskPattern):
    """No restriction."""

    def allows(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return torch.ones_like(key, dtype=torch.bool)


@dataclass(frozen=True)
class CausalMask(MaskPattern):
    """A query sees keys at its own position and before; with a `window`, only the last that many."""

    window: int | None = None

    @property
    def max_lookback(self) -> int | None:  # type: ignore[override]
        return None if self.window is None else self.window - 1

    def allows(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        before = key <= query
        return before if self.window is None else before & (key > query - self.window)

    def reach(self, low: int, high: int) -> Ranges:
        return [(-FAR if self.window is None else low - self.window + 1, high + 1)]


@dataclass(frozen=True, eq=False)
class PaddingMask(MaskPattern):
    """Only real tokens are seen: `real[b, s]` is True where row b holds a token at position s."""

    padding_mask: Tensor  # [B, S] bool

    def allows(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return self.padding_mask[batch, key]

    def outline(self) -> MaskPattern:
        return FullMask()


@dataclass(frozen=True, eq=False)
class BeamMask(MaskPattern):
    """Beams that share a row see what they descend from. Queries are the beams in order, keys are all places, and at each
    place the beams that wrote there, in order; `line[b, w, l]` is the one whose writing at place l beam w continues."""

    line: Tensor  # [B, W, L]

    def allows(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        beams = torch.arange(self.line.shape[1], device=self.line.device)
        return (self.line[..., None] == beams).flatten(2)[:, None]  # [B, 1, W, L · W]


@dataclass(frozen=True)
class And(MaskPattern):
    first: MaskPattern
    second: MaskPattern

    @property
    def stride(self) -> int:  # type: ignore[override]
        return max(self.first.stride, self.second.stride)

    @property
    def max_lookback(self) -> int | None:  # type: ignore[override]
        return min(
            (b for b in (self.first.max_lookback, self.second.max_lookback) if b is not None),
            default=None,
        )

    @property
    def anchored(self) -> bool:  # type: ignore[override]
        return self.first.anchored or self.second.anchored

    def allows(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return self.first.allows(batch, head, query, key) & self.second.allows(
            batch, head, query, key
        )

    def reach(self, low: int, high: int) -> Ranges:
        crossed = [
            (max(a, c), min(b, d))
            for a, b in self.first.reach(low, high)
            for c, d in self.second.reach(low, high)
        ]
        return merged([(start, end) for start, end in crossed if start < end])

    def over(self, length: int, device: torch.device | None = None) -> MaskPattern:
        return And(self.first.over(length, device), self.second.over(length, device))

    def outline(self) -> MaskPattern:
        return self.first.outline() & self.second.outline()


@dataclass(frozen=True)
class Or(MaskPattern):
    first: MaskPattern
    second: MaskPattern

    @property
    def stride(self) -> int:  # type: ignore[override]
        return self.first.stride if self.first.stride == self.second.stride else 1

    @property
    def max_lookback(self) -> int | None:  # type: ignore[override]
        one, other = self.first.max_lookback, self.second.max_lookback
        return None if one is None or other is None else max(one, other)

    @property
    def anchored(self) -> bool:  # type: ignore[override]
        return self.first.anchored or self.second.anchored

    def allows(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return self.first.allows(batch, head, query, key) | self.second.allows(
            batch, head, query, key
        )

    def reach(self, low: int, high: int) -> Ranges:
        return merged(self.first.reach(low, high) + self.second.reach(low, high))

    def over(self, length: int, device: torch.device | None = None) -> MaskPattern:
        return Or(self.first.over(length, device), self.second.over(length, device))

    def outline(self) -> MaskPattern:
        return self.first.outline() | self.second.outline()


@dataclass(frozen=True)
class Not(MaskPattern):
    inner: MaskPattern

    @property
    def anchored(self) -> bool:  # type: ignore[override]
        return self.inner.anchored

    def allows(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return ~self.inner.allows(batch, head, query, key)

    def over(self, length: int, device: torch.device | None = None) -> MaskPattern:
        return Not(self.inner.over(length, device))

    def outline(self) -> MaskPattern:
        return FullMask()


def merged(ranges: Ranges) -> Ranges:
    """The same places, in order, none twice."""
    found: Ranges = []
    for start, end in sorted(ranges):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


class AttentionMask:
    """A pattern over `queries` and `keys`, the place of each row and column of the score matrix. Keys may be given as how many
    there are, from the first place on: a kernel that knows where to stop never asks which.

    With it goes what the stack's positions say of these places, computed once for all layers: `bias` is added to the
    scores, `angles` turn q and k, `relative` gives each layer a bias of its own. Instead of a bias there may be the `term`
    that makes it for any places; a sparse sight asks it for those only that can be seen. `start` is the first query's place
    where places follow each other by `step`; without it, nothing is known of where they are. `everywhere` are tokens [B, T]
    that look at everything but what a pattern hides. `sighted`: each query is known to see something. `places`
    are those of the queries [T], or [B, T] where rows begin at different ones. `last`: the place [1], known to the device only,
    behind which nothing is seen, and how many keys each place has.
    """

    def __init__(
        self,
        pattern: MaskPattern,
        queries: Tensor,
        keys: Tensor | int,
        batch: int = 1,
        bias: Tensor | None = None,
        angles: tuple[Tensor, Tensor] | None = None,
        relative: Relative | None = None,
        *,
        term: Callable[[Tensor, Tensor], Tensor] | None = None,
        start: int | None = None,
        step: int = 1,
        everywhere: tuple[Tensor, MaskPattern] | None = None,
        never_fully_masked: bool = False,
        places: Tensor | None = None,
        last: tuple[Tensor, int] | None = None,
    ) -> None:
        self.last = last
        self.places = queries if places is None else places
        self.never_fully_masked = never_fully_masked
        self.pattern = pattern
        self.queries, self._keys = queries, keys  # [T], [S]
        self.batch = batch
        self.angles = angles
        self.relative = relative
        self.term = term
        self.start, self.step = start, step
        self.everywhere = everywhere
        self._bias = bias
        if term is not None and not self.sparse:
            # Made here and not in a layer, because a layer may be run twice to save memory.
            self._bias = term(queries, self.keys)

    @cached_property
    def keys(self) -> Tensor:
        return listed(self._keys, self.queries.device)

    @property
    def bias(self) -> Tensor | None:
        """[B or 1, H, T, S]"""
        return (
            self._bias
            if self._bias is not None or self.term is None
            else self.term(self.queries, self.keys)
        )

    @cached_property
    def all(self) -> bool:
        """Nothing is hidden and nothing is added: no mask is needed. What comes last sees all that came before."""
        if isinstance(self.pattern, FullMask):
            return self.plain
        # A shape and not len(): exporters take the latter for a number that never changes.
        return (
            self.pattern == CausalMask()
            and self.start is not None
            and self.queries.shape[0] == 1
            and self.plain
        )

    @cached_property
    def causal(self) -> bool:
        """Exactly the triangle that kernels know by name: only when queries and keys are the same places."""
        return self.pattern == CausalMask() and self.plain and self.queries is self._keys

    @property
    def bounded(self) -> bool:
        """Everything up to the `last` place is seen: kernels that stop there need no mask."""
        return self.last is not None and self.pattern == CausalMask() and self.plain

    @property
    def plain(self) -> bool:
        return self._bias is None and self.term is None

    @cached_property
    def additive(self) -> Tensor:
        """What kernels take as a mask: booleans, or the bias with −∞ where nothing may be seen."""
        bias = self.bias
        return self.mask if bias is None else bias.masked_fill(~self.mask, float("-inf"))

    @cached_property
    def mask(self) -> Tensor:
        """[B or 1, H or 1, T or 1, S], True = may look; dimensions on which the pattern does not depend stay 1."""
        return self.rows(self.queries)

    @cached_property
    def fully_masked(self) -> Tensor:
        """[B or 1, H or 1, T or 1, 1], True for queries that may look at nothing."""
        return ~self.mask.any(dim=-1, keepdim=True)

    def biased(self, bias: Tensor) -> AttentionMask:
        """The same sight, with what one layer adds to its scores."""
        return AttentionMask(self.pattern, self.queries, self.keys, self.batch, bias)

    def rows(self, queries: Tensor) -> Tensor:
        """The mask of some query positions only."""
        mask = self.between(queries[None, None, :, None], self.keys[None, None, None, :])
        return mask.expand(*mask.shape[:3], self.keys.shape[0])

    def between(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Who may look at whom, of places shaped [.., 1, 1, T, 1] and [.., 1, 1, 1, S]."""
        device = self.keys.device
        batch = torch.arange(self.batch, device=device)[:, None, None, None]
        return self.pattern.allows(batch, torch.zeros_like(batch[:1]), queries, keys)

    def asked(self, rows: Tensor) -> Tensor:
        """The mask of some rows; over a memory, where there may be more rows than places, no place of a query matters."""
        return self.rows(self.queries[rows.clamp_max(len(self.queries) - 1)])

    def factors(self) -> tuple[bool, Tensor]:
        """Whether queries see nothing behind them, and which keys are real [B or 1, S], for mixers that know no more."""
        parts, causal, padding_mask = [self.pattern], False, None
        while parts:
            match parts.pop():
                case And(first, second):
                    parts += [first, second]
                case CausalMask(None):
                    causal = True
                case PaddingMask(mask):
                    padding_mask = (
                        mask[:, self.keys]
                        if padding_mask is None
                        else padding_mask & mask[:, self.keys]
                    )
                case FullMask():
                    pass
                case other:
                    raise ModelError(
                        f"this attention cannot be restricted to {type(other).__name__}",
                        "use the softmax mixer",
                    )
        return causal, torch.ones_like(self.keys, dtype=torch.bool)[
            None
        ] if padding_mask is None else padding_mask

    def every(self, stride: int, first: int) -> AttentionMask:
        """The queries `first`, `first` + stride, … and the keys at such distances from them."""
        assert self.start is not None
        place = self.start + first
        keys = self.keys[(place - self.first_key) % stride :: stride]
        queries = self.queries[first::stride]
        return AttentionMask(
            self.pattern, queries, keys, self.batch, term=self.term, start=place, step=stride
        )

    @property
    def stride(self) -> int:
        return self.pattern.outline().stride

    @property
    def sparse(self) -> bool:
        """Whether so little can be seen that kernels should look for it; a bias that is made already is as large as all."""
        length = self.queries.shape[0]
        if isinstance(length, torch.SymInt):
            return False  # blocks follow from the length, and a graph that is exported for any has none
        if self.start is None or self._bias is not None or length <= 2 * min(SIZES):
            return False
        return self.stride > self.step or self.block is not None

    @property
    def block(self) -> int | None:
        """How many places a kernel should take together, if any number is better than all."""
        plans = [(size, self.blocks(size)) for size in SIZES if 2 * size < len(self.queries)]
        costs = [(_cost(size, plan), size) for size, plan in plans if plan is not None]
        return min(costs)[1] if costs else None

    def blocks(self, size: int) -> tuple[Blocks, ...] | None:
        """Which blocks of `size` keys each block of queries could see; None where that are most of them."""
        assert self.start is not None
        outline = self.pattern.outline()
        places = (self.start, len(self.queries), self.first_key, len(self.keys), self.step)
        return block_plan(outline, size, places, self.keys.device)

    @property
    def first_key(self) -> int:
        """Keys end where queries end."""
        assert self.start is not None
        return self.start + self.step * (len(self.queries) - len(self.keys))


def listed(keys: Tensor | int, device: torch.device) -> Tensor:
    """Those given, or so many from the first on."""
    return torch.arange(keys, device=device) if isinstance(keys, int) else keys


class Blocks(NamedTuple):
    """Blocks of queries that could see equally many blocks of keys."""

    queries: Tensor  # [N]
    keys: Tensor  # [N, M]


def _cost(size: int, plan: tuple[Blocks, ...]) -> int:
    """Wide blocks compute pairs that nobody looks at, narrow ones copy keys more often; a copy is as dear as 256 pairs."""
    return sum(part.keys.numel() for part in plan) * size * (size + 256)


@lru_cache(maxsize=64)
def block_plan(
    pattern: MaskPattern, size: int, places: tuple[int, int, int, int, int], device: torch.device
) -> tuple[Blocks, ...] | None:
    """Made once for each pattern and length, on the host; a recorded step must find it on its device."""
    start, queries, first_key, keys, step = places
    seen: dict[int, list[tuple[int, list[int]]]] = {}
    total, most = 0, -(-queries // size) * -(-keys // size) // 2
    for block, first in enumerate(range(0, queries, size)):
        low, high = start + step * first, start + step * (min(first + size, queries) - 1)
        found: set[int] = set()
        for begin, end in pattern.reach(low, high):
            one, past = (
                min(max(-(-(place - first_key) // step), 0), keys) for place in (begin, end)
            )
            found.update(range(one // size, -(-past // size)) if one < past else ())
        total += len(found)
        if total > most:
            return None
        seen.setdefault(len(found), []).append((block, sorted(found)))
    return tuple(
        Blocks(
            torch.tensor([block for block, _ in rows], device=device),
            torch.tensor([found for _, found in rows], dtype=torch.long, device=device),
        )
        for _, rows in sorted(seen.items())
    )
