"""Sharded checkpoints: each rank writes its part of the tensors, and any number of ranks reads.

The tensors that all ranks have alike are in GROUP.safetensors as ever; the parts of rank K of N are
in GROUP.K-of-N.safetensors, and layout.safetensors says where they belong.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Tensors = dict[str, Tensor]
Ranges = tuple[tuple[int, int], ...]  # (start, length) of each piece

LAYOUT = "layout"  # the group of all layouts


@dataclass(frozen=True)
class Layout:
    """Which part of a tensor each rank holds: ranges of one of its dimensions."""

    shape: tuple[int, ...]  # of the full tensor
    dimension: int
    ranges: tuple[Ranges, ...]  # of each rank

    @classmethod
    def even(cls, shape: Sequence[int], ranks: int) -> Layout:
        """Rows in blocks, as `torch.chunk` cuts them: the last ranks may have fewer, or none."""
        block = -(-shape[0] // ranks)
        starts = [min(rank * block, shape[0]) for rank in range(ranks + 1)]
        pairs = itertools.pairwise(starts)
        return cls(tuple(shape), 0, tuple(((first, end - first),) for first, end in pairs))

    def part_shape(self, rank: int) -> tuple[int, ...]:
        size = sum(length for _, length in self.ranges[rank])
        return (*self.shape[: self.dimension], size, *self.shape[self.dimension + 1 :])

    def part(self, full: Tensor, rank: int) -> Tensor:
        """What a rank holds of the full tensor."""
        pieces = [full.narrow(self.dimension, start, length) for start, length in self.ranges[rank]]
        return torch.cat(pieces, dim=self.dimension)

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """The full tensor, of the parts of all ranks."""
        full = parts[0].new_empty(self.shape)
        for ranges, part in zip(self.ranges, parts, strict=True):
            offset = 0
            for start, length in ranges:
                piece = part.narrow(self.dimension, offset, length)
                full.narrow(self.dimension, start, length).copy_(piece)
                offset += length
        return full

    # --- as a tensor, for a file ---

    def to_tensor(self) -> Tensor:
        """The bytes of its fields as JSON."""
        fields = (self.shape, self.dimension, self.ranges)
        return torch.tensor(list(json.dumps(fields).encode()), dtype=torch.uint8)

    @classmethod
    def from_tensor(cls, tensor: Tensor) -> Layout:
        shape, dimension, ranges = json.loads(bytes(tensor.tolist()))
        return cls(tuple(shape), dimension, tuple(tuple(map(tuple, each)) for each in ranges))


def parameter_of(name: str) -> str:
    """The parameter that a tensor of a checkpoint belongs to: optimizers have KEY/PARAMETER."""
    return name.rpartition("/")[2]


def shard_name(group: str, rank: int, ranks: int) -> str:
    """The group of one rank's parts, counted from 1."""
    return f"{group}.{rank + 1}-of-{ranks}"


def split(
    groups: Mapping[str, Mapping[str, Tensor]], layouts: Mapping[str, Layout], rank: int, ranks: int
) -> dict[str, Tensors]:
    """The groups that a rank writes: its parts, and on the first rank also what all have alike."""
    result: dict[str, Tensors] = {}
    for group, tensors in groups.items():
        parts: Tensors = {}
        common: Tensors = {}
        for name, tensor in tensors.items():
            layout = layouts.get(parameter_of(name))
            is_part = layout is not None and layout.part_shape(rank) == tuple(tensor.shape)
            (parts if is_part else common)[name] = tensor
        if rank == 0:
            result[group] = common
        result[shard_name(group, rank, ranks)] = parts
    if rank == 0:
        result[LAYOUT] = {name: layout.to_tensor() for name, layout in layouts.items()}
    return result


def merge(groups: Mapping[str, Tensors]) -> dict[str, Tensors]:
    """The groups of a sharded checkpoint as one process would have written them."""
    layouts = {name: Layout.from_tensor(each) for name, each in groups.get(LAYOUT, {}).items()}
    if not layouts:
        return dict(groups)
    ranks = len(next(iter(layouts.values())).ranges)
    merged: dict[str, Tensors] = {}
    for group, common in groups.items():
        if shard_name(group, 0, ranks) in groups:
            parts = [groups[shard_name(group, rank, ranks)] for rank in range(ranks)]
            merged[group] = common | {
                name: layouts[parameter_of(name)].join([part[name] for part in parts])
                for name in parts[0]
            }
    return merged
