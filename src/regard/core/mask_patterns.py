"""Patterns by where a place stands: windows, blocks, global places, draws, documents in a row, graphs."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from regard.core.mask import FAR, WHOLE, FullMask, MaskPattern, Ranges, merged
from regard.core.seeding import generator


@dataclass(frozen=True)
class DilatedMask(MaskPattern):
    """Itself and `size` neighbours on each side, each `step` apart from the next; a window where the step is 1."""

    size: int
    step: int = 1

    @property
    def stride(self) -> int:  # type: ignore[override]
        return self.step

    @property
    def max_lookback(self) -> int:  # type: ignore[override]
        return self.size * self.step

    def allows(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        near = (query - key).abs() <= self.size * self.step
        return near if self.step == 1 else near & ((query - key) % self.step == 0)

    def reach(self, low: int, high: int) -> Ranges:
        return [(low - self.size * self.step, high + self.size * self.step + 1)]


@dataclass(frozen=True)
class StridedMask(MaskPattern):
    """Neighbours nearer than `distance`, and all at multiples of it (Child et al. 2019)."""

    distance: int

    def allows(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        apart = query - key
        return (apart.abs() < self.distance) | (apart % self.distance == 0)


@dataclass(frozen=True)
class BlockLocalMask(MaskPattern):
    """Places of one block of `size`, and of `neighbours` blocks on each side."""

    anchored = True
    size: int
    neighbours: int = 0

    @property
    def max_lookback(self) -> int:  # type: ignore[override]
        return self.size * (self.neighbours + 1) - 1

    def allows(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query // self.size - key // self.size).abs() <= self.neighbours

    def reach(self, low: int, high: int) -> Ranges:
        first, last = low // self.size - self.neighbours, high // self.size + self.neighbours
        return [(first * self.size, (last + 1) * self.size)]


@dataclass(frozen=True)
class GlobalMask(MaskPattern):
    """The `first` blocks of `size` places and the `last` ones of `length` see all and are seen by all."""

    anchored = True
    first: int
    last: int = 0
    size: int = 1
    length: int | None = None

    def over(self, length: int, device: torch.device | None = None) -> MaskPattern:
        return GlobalMask(self.first, self.last, self.size, length) if self.last else self

    @property
    def _bounds(self) -> tuple[int, int]:
        """Where the first ones end, and where the last ones begin."""
        assert self.length is not None or not self.last, (
            "a pattern that counts from the end is asked `over` a length"
        )
        end = FAR if self.length is None else (-(-self.length // self.size) - self.last) * self.size
        return self.first * self.size, end

    def allows(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        begin, end = self._bounds
        first = (query < begin) | (key < begin)
        return first | (query >= end) | (key >= end) if self.last else first

    def reach(self, low: int, high: int) -> Ranges:
        begin, end = self._bounds
        if low < begin or high >= end:
            return WHOLE
        return [(0, begin), *([(end, FAR)] if self.last else [])]


@dataclass(frozen=True)
class LongerThan(MaskPattern):
    """A pattern for sequences of more than `most` places."""

    most: int
    inner: MaskPattern

    def over(self, length: int, device: torch.device | None = None) -> MaskPattern:
        return self.inner.over(length, device) if length > self.most else FullMask()


@dataclass(frozen=True, eq=False)
class GlobalTokenMask(MaskPattern):
    """Places that the caller names see all and are seen by all: `which[b, s]`. With `keys`, they are seen by all, but see no
    more than others do."""

    which: Tensor  # [B, S] bool
    keys: bool = False

    def allows(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        seen = self.which[batch, key]
        return seen if self.keys else seen | self.which[batch, query]

    def reach(self, low: int, high: int) -> Ranges:
        if not self.keys and any(start <= high and low < end for start, end in self._ranges):
            return WHOLE
        return self._ranges

    @cached_property
    def _ranges(self) -> Ranges:
        return merged(
            [(place, place + 1) for place in self.which.any(dim=0).nonzero().flatten().tolist()]
        )


@dataclass(frozen=True)
class RandomBlockMask(MaskPattern):
    """Each block of `size` places sees `count` blocks that are drawn from `seed`: from all, or from those `before` it."""

    anchored = True
    size: int
    count: int
    seed: int
    before: bool = False

    def over(self, length: int, device: torch.device | None = None) -> MaskPattern:
        return _drawn(self, -(-length // self.size), device)


@dataclass(frozen=True, eq=False)
class Drawn(MaskPattern):
    """Each block of `size` places sees those of a row of `table`; −1 is none."""

    anchored = True
    size: int
    table: Tensor  # [blocks, count], where it is asked
    host: Tensor  # the same, where blocks are planned

    def allows(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        columns = self.table.unbind(1)
        block, seen = key // self.size, columns[0][query // self.size] == key // self.size
        for column in columns[1:]:
            seen = seen | (column[query // self.size] == block)
        return seen

    def reach(self, low: int, high: int) -> Ranges:
        blocks = self.host[low // self.size : high // self.size + 1].flatten().tolist()
        return merged(
            [(block * self.size, (block + 1) * self.size) for block in blocks if block >= 0]
        )


@lru_cache(maxsize=64)
def _drawn(part: RandomBlockMask, blocks: int, device: torch.device | None) -> Drawn:
    """Each block's draws are its own, so that a longer sequence changes nothing for those that look `before` only."""
    table = torch.full((blocks, part.count), -1, device="cpu")
    for block in range(blocks):
        pool = block if part.before else blocks
        chosen = torch.randperm(pool, generator=generator(part.seed, block), device="cpu")[
            : part.count
        ]
        table[block, : len(chosen)] = chosen
    return Drawn(part.size, table.to(device), table)


@dataclass(frozen=True, eq=False)
class ShiftedMask(MaskPattern):
    """A pattern that begins where each row does: `by[b]` places hold padding in front of it."""

    inner: MaskPattern
    by: Tensor  # [B] int

    @property
    def stride(self) -> int:  # type: ignore[override]
        return self.inner.stride

    @property
    def max_lookback(self) -> int | None:  # type: ignore[override]
        return self.inner.max_lookback

    def allows(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        by = self.by[batch]
        return self.inner.allows(batch, head, query - by, key - by)

    def reach(self, low: int, high: int) -> Ranges:
        least, most = self._bounds
        return merged(
            [(a + least, b + most) for a, b in self.inner.reach(low - most, high - least)]
        )

    @cached_property
    def _bounds(self) -> tuple[int, int]:
        return int(self.by.min()), int(self.by.max())


@dataclass(frozen=True, eq=False)
class DocumentMask(MaskPattern):
    """Several texts in one row: a place sees those of the same document, `of[b, s]`. Where others look, as a decoder does at a
    memory, theirs are `by[b, t]`."""

    of: Tensor  # [B, S] int, from 0
    by: Tensor | None = None  # [B, T]

    def allows(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (self.of if self.by is None else self.by)[batch, query] == self.of[batch, key]

    @property
    def places(self) -> Tensor:
        """[B, S]: where in its document each place is; each begins at 0."""
        first, _ = self._bounds
        return torch.arange(first.shape[1], device=first.device) - first

    def reach(self, low: int, high: int) -> Ranges:
        first, last = self._bounds
        return [(int(first[:, low : high + 1].min()), int(last[:, low : high + 1].max()) + 1)]

    @cached_property
    def _bounds(self) -> tuple[Tensor, Tensor]:
        """[B, S] each: the first and the last place of the document that each place belongs to."""
        of = self.of.long()
        places = torch.arange(of.shape[1], device=of.device).expand_as(of)
        size = int(of.max()) + 1
        first = places.new_full((len(of), size), of.shape[1]).scatter_reduce(1, of, places, "amin")
        last = places.new_zeros(len(of), size).scatter_reduce(1, of, places, "amax")
        return first.gather(1, of), last.gather(1, of)


@dataclass(frozen=True, eq=False)
class GraphMask(MaskPattern):
    """A place sees those to which an edge leads: `edges` are (row, from, to) of `length` places. Self-loops are edges too."""

    edges: Tensor  # [edges, 3] int
    length: int
    codes: Tensor = field(
        init=False
    )  # [edges + 1], one number for each edge, in order; the last is none

    def __post_init__(self) -> None:
        rows, starts, ends = self.edges.long().unbind(1)
        codes = ((rows * self.length + starts) * self.length + ends).sort().values
        object.__setattr__(self, "codes", torch.cat([codes, codes.new_tensor([FAR])]))

    def allows(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        wanted = (batch * self.length + query) * self.length + key
        return self.codes[torch.searchsorted(self.codes, wanted)] == wanted

    def reach(self, low: int, high: int) -> Ranges:
        ends = self._ends[1][
            torch.searchsorted(self._ends[0], low) : torch.searchsorted(self._ends[0], high + 1)
        ]
        return merged([(place, place + 1) for place in sorted({*ends.tolist()})])

    @cached_property
    def _ends(self) -> tuple[Tensor, Tensor]:
        """Edges by where they start: [edges], [edges]."""
        starts, order = self.edges[:, 1].long().sort()
        return starts, self.edges[order, 2]
