"""Sparse masks: sliding windows, strides, blocks, global tokens, random blocks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from regard.core.masks.mask import (
    EVERYWHERE,
    FAR,
    Call,
    DocumentMask,
    FullMask,
    MaskPattern,
    Ranges,
    merge_ranges,
)
from regard.core.seeding import generator
from regard.system.errors import ModelError

# ------------------------------------------------------------------ by distance


@dataclass(frozen=True)
class StridedMask(MaskPattern):
    """The Sparse Transformer: neighbours nearer than `distance`, and all at multiples of it.

    Child et al. 2019.
    """

    distance: int

    def allows(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        # No `reach`: keys at multiples of the distance are everywhere.
        apart = query - key
        return (apart.abs() < self.distance) | (apart % self.distance == 0)


# ------------------------------------------------------------------ by blocks


@dataclass(frozen=True)
class BlockLocalMask(MaskPattern):
    """Block-local attention: positions of one block of `size`, and of `neighbours` on each side."""

    anchored = True
    size: int
    neighbours: int = 0

    @property
    def max_lookback(self) -> int:  # type: ignore[override]
        return self.size * (self.neighbours + 1) - 1

    def allows(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query // self.size - key // self.size).abs() <= self.neighbours

    def reach(self, low: int, high: int) -> Ranges:
        first = low // self.size - self.neighbours
        last = high // self.size + self.neighbours
        return [(first * self.size, (last + 1) * self.size)]


@dataclass(frozen=True)
class GlobalMask(MaskPattern):
    """Global blocks: the `first` blocks of `size` positions and the `last` ones of `length` attend
    to all and are attended to by all."""

    anchored = True
    first: int
    last: int = 0
    size: int = 1
    length: int | None = None

    def bind(self, call: Call) -> MaskPattern:
        if not self.last:
            return self
        return GlobalMask(self.first, self.last, self.size, call.length)

    @property
    def _bounds(self) -> tuple[int, int]:
        """The end of the first global tokens, and the beginning of the last."""
        assert self.length is not None or not self.last, "`bind` gives the length"
        begin = self.first * self.size
        if self.length is None:
            return begin, FAR
        # Rounded up, the last one may be shorter. No −length: the compiler of FlexAttention takes
        # sizes as arguments, but not their negatives.
        blocks = (self.length + self.size - 1) // self.size
        return begin, (blocks - self.last) * self.size

    def allows(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        begin, end = self._bounds
        allowed = (query < begin) | (key < begin)
        if not self.last:
            return allowed
        return allowed | (query >= end) | (key >= end)

    def reach(self, low: int, high: int) -> Ranges:
        begin, end = self._bounds
        if low < begin or high >= end:
            return EVERYWHERE
        return [(0, begin), (end, FAR)]


@dataclass(frozen=True)
class RandomBlockMask(MaskPattern):
    """BigBird's random blocks: each block of `size` attends to `count` blocks drawn from `seed`.

    Drawn from those "before" it, as decoders need; otherwise from all blocks of `length` positions,
    of which a shorter sequence has only the first, or, without a length, from all of the sequence.
    """

    anchored = True
    size: int
    count: int
    seed: int
    of: str = "all"
    length: int | None = None

    def bind(self, call: Call) -> MaskPattern:
        return _draw_blocks(self, -(-call.length // self.size), call.device)


@dataclass(frozen=True, eq=False)
class BlockTableMask(MaskPattern):
    """Each block of `size` positions attends to the blocks in its row of a table; −1 is none."""

    anchored = True
    size: int
    table: Tensor  # [blocks, count], on the device of the attention
    host_table: Tensor  # the same on the host, for block plans

    def allows(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        key_block = key // self.size
        query_block = query // self.size
        first, *others = self.table.unbind(1)
        allowed = first[query_block] == key_block
        for column in others:
            allowed = allowed | (column[query_block] == key_block)
        return allowed

    def reach(self, low: int, high: int) -> Ranges:
        rows = self.host_table[low // self.size : high // self.size + 1]
        blocks = [block for block in rows.flatten().tolist() if block >= 0]
        return merge_ranges([(block * self.size, (block + 1) * self.size) for block in blocks])


@lru_cache(maxsize=64)
@torch.inference_mode(False)  # one that is drawn while decoding may be trained with later
def _draw_blocks(part: RandomBlockMask, blocks: int, device: torch.device | None) -> BlockTableMask:
    """Each block's draws are its own, so that a longer sequence changes nothing for causal ones."""
    table = torch.full((blocks, part.count), -1, device="cpu")
    all_blocks = -(-part.length // part.size) if part.length else blocks
    for block in range(blocks):
        pool = block if part.of == "before" else all_blocks
        order = torch.randperm(pool, generator=generator(part.seed, block), device="cpu")
        chosen = order[: part.count]
        chosen = chosen[chosen < blocks]  # the others lie beyond the end of this sequence
        table[block, : len(chosen)] = chosen
    return BlockTableMask(part.size, table.to(device), table)


# ------------------------------------------------------------------ by the length or start of a row


@dataclass(frozen=True)
class LongerThan(MaskPattern):
    """A pattern for sequences of more than `most` positions; shorter ones have full attention."""

    most: int
    inner: MaskPattern

    def bind(self, call: Call) -> MaskPattern:
        return FullMask() if call.length <= self.most else self.inner.bind(call)


@dataclass(frozen=True, eq=False)
class ShiftedMask(MaskPattern):
    """A pattern that begins where each row does: `by[b]` positions of left padding precede it."""

    per_row = True
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
        # Rows are shifted by `least` to `most` positions: the union of what any of them reaches.
        inner = self.inner.reach(low - most, high - least)
        return merge_ranges([(begin + least, end + most) for begin, end in inner])

    @cached_property
    def _bounds(self) -> tuple[int, int]:
        return int(self.by.min()), int(self.by.max())


# ------------------------------------------------------------------ by what the batch says


@dataclass(frozen=True, eq=False)
class GlobalTokenMask(MaskPattern):
    """Longformer's global tokens, named by the caller: `which[b, s]` attend to all positions and
    are attended to by all. With `keys_only`, they are attended to by all, but attend to no more
    than others do."""

    per_row = True
    which: Tensor  # [B, S] bool
    keys_only: bool = False

    def allows(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        key_is_global = self.which[batch, key]
        if self.keys_only:
            return key_is_global
        return key_is_global | self.which[batch, query]

    def reach(self, low: int, high: int) -> Ranges:
        if not self.keys_only:
            for begin, end in self._ranges:
                if begin <= high and low < end:
                    return EVERYWHERE
        return self._ranges

    @cached_property
    def _ranges(self) -> Ranges:
        # Of all rows of the batch together: a plan is for all of them.
        positions = self.which.any(dim=0).nonzero().flatten().tolist()
        return merge_ranges([(position, position + 1) for position in positions])


@dataclass(frozen=True)
class SentenceMask(MaskPattern):
    """Sentences as the token ids of the call cut them: each ends with a `token`. With `ends`, the
    last tokens of all sentences are seen by all."""

    per_row = True
    token: int
    ends: bool = False

    def bind(self, call: Call) -> MaskPattern:
        ids = call.inputs.get("inputs")
        if ids is None or ids.is_floating_point():
            raise ModelError(
                "sentence masks need the token ids of an encoder", "use one that reads tokens alone"
            )
        is_end = ids == self.token  # [B, S]
        pattern = DocumentMask(is_end.cumsum(dim=1) - is_end.long())
        if not self.ends:
            return pattern
        return pattern | GlobalTokenMask(is_end, keys_only=True)


@dataclass(frozen=True)
class SlidingWindowMask(MaskPattern):
    """A (dilated) window: `size` neighbours on each side, each `step` apart from the next.

    A plain window where the step is 1.
    """

    size: int
    step: int = 1

    @property
    def stride(self) -> int:  # type: ignore[override]
        return self.step

    @property
    def max_lookback(self) -> int:  # type: ignore[override]
        return self.size * self.step

    def allows(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        distance = query - key
        near = distance.abs() <= self.size * self.step
        if self.step == 1:
            return near
        return near & (distance % self.step == 0)

    def reach(self, low: int, high: int) -> Ranges:
        return [(low - self.size * self.step, high + self.size * self.step + 1)]


@dataclass(frozen=True)
class CausalSlidingWindowMask(MaskPattern):
    """A causal window (Mistral): a query attends to the last `window` positions, with its own."""

    causal = True
    window: int

    @property
    def max_lookback(self) -> int:  # type: ignore[override]
        return self.window - 1

    def allows(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (key > query - self.window)

    def reach(self, low: int, high: int) -> Ranges:
        return [(low - self.window + 1, high + 1)]
