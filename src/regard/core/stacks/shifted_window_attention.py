"""Shifted-window attention over images (Liu et al. 2021, Swin): windows are rows of the batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.core.attention import Attention
from regard.core.block import LayerInputs
from regard.core.caches.kv_cache import NO_CACHE, Cache
from regard.core.context import LayerContext
from regard.core.linear import Linear
from regard.core.masks.attention_mask import AttentionMask, ScoreBias
from regard.core.masks.mask import DocumentMask, FullMask, MaskPattern
from regard.core.norm import Norm
from regard.core.positions.position_terms import PositionTerms
from regard.core.projection import Memory, Projection
from regard.core.stack import Stack, StackParts


class Windows(NamedTuple):
    """A grid of `side` × `side` patches in windows of `size` × `size`, moved by `shift` patches."""

    side: int
    size: int
    shift: int

    @property
    def padded(self) -> int:
        """The side of the grid with the zeros that fill up its last windows."""
        return -(-self.side // self.size) * self.size

    def partition(self, x: Tensor) -> Tensor:
        """Patches [B, side², D] → windows as rows: [B·windows, size², D]."""
        missing = self.padded - self.side
        grid = x.unflatten(1, (self.side, self.side))
        grid = functional.pad(grid, (0, 0, 0, missing, 0, missing))  # [B, padded, padded, D]
        if self.shift:
            grid = grid.roll((-self.shift, -self.shift), dims=(1, 2))
        count = self.padded // self.size
        # [B, rows, size, columns, size, D]
        windows = grid.unflatten(2, (count, self.size)).unflatten(1, (count, self.size))
        return windows.transpose(2, 3).flatten(3, 4).flatten(0, 2)

    def merge(self, windows: Tensor) -> Tensor:
        """The inverse of `partition`: [B·windows, size², D] → [B, side², D]."""
        count = self.padded // self.size
        grid = windows.unflatten(0, (-1, count, count)).unflatten(3, (self.size, self.size))
        grid = grid.transpose(2, 3).flatten(3, 4).flatten(1, 2)  # [B, padded, padded, D]
        if self.shift:
            grid = grid.roll((self.shift, self.shift), dims=(1, 2))
        return grid[:, : self.side, : self.side].flatten(1, 2)

    def regions(self) -> Tensor:
        """Which part of the image each patch of a window is from: [windows, size²].

        After the shift, the last windows hold patches from opposite edges, which are no neighbours.
        """
        line = torch.arange(self.padded, device="cpu")
        region = (line >= self.padded - self.size).long() + (line >= self.padded - self.shift)
        grid = region[:, None] * 3 + region[None, :]  # [padded, padded]
        count = self.padded // self.size
        windows = grid.unflatten(1, (count, self.size)).unflatten(0, (count, self.size))
        return windows.transpose(1, 2).flatten(2, 3).flatten(0, 1)


class WindowBias(nn.Module):
    """Relative position bias inside a window: a scalar of each head for each (row, column)
    distance."""

    index: Tensor

    def __init__(self, heads: int, size: int) -> None:
        super().__init__()
        distances = 2 * size - 1  # along one axis
        self.table = nn.Parameter(torch.zeros(distances**2, heads))
        line = torch.arange(size, device="cpu")
        distance = line[:, None] - line + size - 1  # [size, size]
        # [size², size²] each, of rows and of columns.
        rows = distance.repeat_interleave(size, 0).repeat_interleave(size, 1)
        columns = distance.repeat(size, size)
        self.register_buffer("index", rows * distances + columns, persistent=False)

    def extra_repr(self) -> str:
        return f"heads={self.table.shape[1]}, positions={self.index.shape[0]}"

    def forward(self) -> Tensor:
        """[1, H, size², size²]"""
        return self.table[self.index].permute(2, 0, 1)[None]


class WindowAttention(Attention):
    """Multi-head attention inside each window; patches from opposite edges hide from each other."""

    regions: Tensor

    def __init__(
        self, project: Projection, mixer: nn.Module, output: Linear, windows: Windows, heads: int
    ) -> None:
        super().__init__(project, mixer, output)
        self.windows = windows
        self.bias = WindowBias(heads, windows.size)
        self.register_buffer("regions", windows.regions(), persistent=False)

    def forward(
        self,
        x: Tensor,
        mask: AttentionMask,
        positions: PositionTerms | None,
        context: LayerContext,
        memory: Memory = None,
        cache: Cache = NO_CACHE,
    ) -> Tensor:
        """x [B, side², D] → same; the mask and the positions of the stack are of whole images."""
        rows = self.windows.partition(x)  # [B·windows, size², D]
        places = torch.arange(rows.shape[1], device=x.device)
        pattern: MaskPattern = FullMask()
        if self.windows.shift:
            pattern = DocumentMask(self.regions.repeat(x.shape[0], 1))
        inside = AttentionMask(pattern, places, places, rows.shape[0])
        bias = ScoreBias(self.bias().to(x.dtype))
        out = super().forward(rows, inside, PositionTerms(places, bias=bias), context)
        return self.windows.merge(out)


class PatchMerging(nn.Module):
    """Patch merging between stages: 2 × 2 neighbours become one position, twice as wide."""

    def __init__(self, side: int, norm: Norm, reduce: Linear) -> None:
        super().__init__()
        self.side = side  # before merging
        self.norm = norm
        self.reduce = reduce

    def forward(self, x: Tensor) -> Tensor:
        """[B, side², D] → [B, ⌈side / 2⌉², 2 D]"""
        odd = self.side % 2
        grid = x.unflatten(1, (self.side, self.side))
        grid = functional.pad(grid, (0, 0, 0, odd, 0, odd))
        # Column after column: the order of the authors' weights.
        parts = [grid[:, row::2, column::2] for column in range(2) for row in range(2)]
        return self.reduce(self.norm(torch.cat(parts, dim=-1).flatten(1, 2)))


class StagedStack(Stack):
    """Blocks in stages of `depths`, with patch merging after each stage but the last."""

    def __init__(
        self, parts: StackParts, depths: Sequence[int], merges: Sequence[PatchMerging]
    ) -> None:
        super().__init__(parts)
        self.merges = nn.ModuleList(merges)
        self.ends = [sum(depths[: i + 1]) - 1 for i in range(len(depths))]  # layers

    @property
    def output_layers(self) -> list[int]:
        return self.ends

    def apply_block(
        self, number: int, x: Tensor, inputs: LayerInputs, context: LayerContext
    ) -> Tensor:
        x = super().apply_block(number, x, inputs, context)
        if number not in self.ends[:-1]:
            return x
        return self.merges[self.ends.index(number)](x)
