"""Block plans for block-sparse kernels: the blocks of keys that a block of queries may attend to.

A plan is made on the host from the ranges that a mask pattern can reach, in time proportional to
the number of blocks that are not empty. It may promise too much, never too little: the pattern's
predicate decides about each pair.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.core.masks.mask import MaskPattern

BLOCK_SIZES = (64, 128, 256)  # that sparse kernels may take
_COPY_COST = 256  # copying a key to its block costs as much as this many pairs


Structure = tuple[Any, ...]  # the class of a pattern, and the structures of its parts
Sizes = tuple[Any, ...]  # numbers and shapes of a pattern, and the sizes of its parts


class Blocks(NamedTuple):
    """Blocks of queries that may attend to equally many blocks of keys."""

    queries: Tensor  # [N]
    keys: Tensor  # [N, M]


class BlockGrid(NamedTuple):
    """The positions that a plan covers: queries and keys from their first position on, `step`
    apart."""

    first_query: int
    queries: int
    first_key: int
    keys: int
    step: int


def structure(pattern: MaskPattern) -> Structure:
    """The kinds of patterns that a pattern is composed of, without their sizes and tensors."""
    return (type(pattern), *(structure(part) for part in _parts(pattern)))


def sizes(pattern: MaskPattern) -> Sizes:
    """The numbers and the shapes of tensors in a pattern and its parts."""
    numbers: list[Any] = []
    for value in vars(pattern).values():
        if value is None or isinstance(value, int):
            numbers.append(value)
        elif isinstance(value, Tensor):
            numbers.append(value.shape)
    return (*numbers, *(sizes(part) for part in _parts(pattern)))


def differs_by_row(pattern: MaskPattern) -> bool:
    """Whether a pattern or one of its parts is another one in each row of a batch."""
    return pattern.per_row or any(differs_by_row(part) for part in _parts(pattern))


def is_pointwise(pattern: MaskPattern) -> bool:
    """Whether a pattern and its parts are arithmetic on each pair."""
    return pattern.pointwise and all(is_pointwise(part) for part in _parts(pattern))


def _parts(pattern: MaskPattern) -> list[MaskPattern]:
    return [part for part in vars(pattern).values() if isinstance(part, MaskPattern)]


def plan_cost(size: int, plan: tuple[Blocks, ...]) -> int:
    """Large blocks compute many masked pairs; small ones copy keys more often."""
    blocks = sum(part.keys.numel() for part in plan)
    return blocks * size * (size + _COPY_COST)


@lru_cache(maxsize=64)
def block_plan(
    pattern: MaskPattern, size: int, grid: BlockGrid, device: torch.device
) -> tuple[Blocks, ...] | None:
    """The non-empty blocks, grouped by their number in each row of blocks; None if most blocks are
    non-empty.

    Made once for each pattern and length, on the host; a captured CUDA graph must find it on its
    device.
    """
    rows_by_count: dict[int, list[tuple[int, list[int]]]] = {}
    total = 0
    most = -(-grid.queries // size) * -(-grid.keys // size) // 2  # half of all blocks
    for block, first in enumerate(range(0, grid.queries, size)):
        last = min(first + size, grid.queries) - 1
        low = grid.first_query + grid.step * first
        high = grid.first_query + grid.step * last
        columns = _visible_blocks(pattern, size, grid, low, high)
        total += len(columns)
        if total > most:
            return None
        rows_by_count.setdefault(len(columns), []).append((block, columns))
    return tuple(
        Blocks(
            torch.tensor([block for block, _ in rows], device=device),
            torch.tensor([columns for _, columns in rows], dtype=torch.long, device=device),
        )
        for _, rows in sorted(rows_by_count.items())
    )


def _visible_blocks(
    pattern: MaskPattern, size: int, grid: BlockGrid, low: int, high: int
) -> list[int]:
    """The blocks of keys that queries from position `low` to `high` may attend to."""
    columns: set[int] = set()
    for begin, end in pattern.reach(low, high):
        first = _key_index(grid, begin)
        past = _key_index(grid, end)
        if first < past:
            columns.update(range(first // size, -(-past // size)))
    return sorted(columns)


def _key_index(grid: BlockGrid, position: int) -> int:
    """The index of the first key at or after a position, clamped to the keys there are."""
    index = -(-(position - grid.first_key) // grid.step)  # rounded up
    return min(max(index, 0), grid.keys)
