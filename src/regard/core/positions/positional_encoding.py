"""Positional encodings that are added at the input: sinusoidal, learned, fixed, axial, 2-D."""

from __future__ import annotations

import math
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.core.linear import normal
from regard.system.errors import DataError

_FIRST_LENGTH = 512  # rows that a sinusoidal table has when it is first used


def sinusoids(positions: Tensor, d_model: int, order: str, base: float) -> Tensor:
    """Section 3.5: PE(pos, 2i) = sin(pos / base^(2i/d)), PE(pos, 2i+1) = cos(same): [T, D].

    Computed in float64, as tables are. `halves` puts all sines before all cosines.
    """
    exponents = torch.arange(0, d_model, 2, dtype=torch.float64, device=positions.device) / d_model
    angles = positions.to(torch.float64)[:, None] / base**exponents  # [T, ⌈D/2⌉]
    sines = angles.sin()
    # An odd width has one sine more than cosines.
    cosines = angles.cos()[:, : d_model // 2]
    if order == "halves":
        return torch.cat([sines, cosines], dim=1)
    table = torch.empty(len(positions), d_model, dtype=torch.float64, device=positions.device)
    table[:, 0::2] = sines
    table[:, 1::2] = cosines
    return table


class Sinusoidal(nn.Module):
    """Sinusoidal positional encoding. The table grows with the longest input; it is not saved."""

    table: Tensor

    def __init__(self, d_model: int, order: str, base: float) -> None:
        super().__init__()
        self.d_model = d_model
        self.order = order
        self.base = base
        # Empty until it is used, so that the outline of a model on the meta device costs nothing.
        empty = torch.zeros(0, d_model, device="cpu")
        self.register_buffer("table", empty, persistent=False)

    def extra_repr(self) -> str:
        return f"d_model={self.d_model}, order={self.order!r}, base={self.base:g}"

    def rows(self, length: int) -> Tensor:
        """The table of the first `length` positions at least."""
        table = self.table  # a local name: another thread may replace the buffer
        if length > len(table):
            positions = torch.arange(max(length, 2 * len(table), _FIRST_LENGTH), device="cpu")
            table = sinusoids(positions, self.d_model, self.order, self.base).float().to(table)
            self.table = table
        return table

    # A device-side position is looked up without knowing its value: every position has a row.
    available_rows = rows


def grid_sinusoids(
    line: Tensor, d_model: int, extras: int, *, columns_first: bool, base: float = 10_000.0
) -> Tensor:
    """2-D sinusoids over a square grid: half of the dimensions encode the row, half the column.

    `line` are the coordinates of one side. The `extras` before the grid (class token) have no
    position: [extras + side², D].
    """
    side = len(line)
    half = d_model // 2
    first = sinusoids(line, half, "halves", base)
    second = sinusoids(line, d_model - half, "halves", base)
    # [side, side, …]: patches follow each other row by row.
    if columns_first:
        parts = [first[None].expand(side, -1, -1), second[:, None].expand(-1, side, -1)]
    else:
        parts = [first[:, None].expand(-1, side, -1), second[None].expand(side, -1, -1)]
    grid = torch.cat(parts, dim=-1).flatten(0, 1)  # [side², D]
    none = torch.zeros(extras, d_model, dtype=grid.dtype, device=grid.device)
    return torch.cat([none, grid]).float()


def _require_positions(length: int, most: int, repair: str) -> None:
    """Refuses an input of more positions than a model has vectors for."""
    if length > most:
        raise DataError(f"the input has {length} positions, but this model has {most}", repair)


class _Rows(nn.Module):
    """Abstract: a vector for each of so many positions, behind `offset` rows of no position."""

    table: Tensor  # [offset + positions, D]
    offset = 0
    repair = "split the input into shorter parts"

    def extra_repr(self) -> str:
        return f"positions={self.length}, d_model={self.table.shape[1]}"

    @property
    def length(self) -> int:
        """The number of positions that have a vector."""
        return len(self.table) - self.offset

    def rows(self, length: int) -> Tensor:
        """The vectors of the first `length` positions at least."""
        _require_positions(length, self.length, self.repair)
        return self.table[self.offset :]

    def available_rows(self, length: int) -> Tensor:
        """The rows there are, for positions that only the device knows."""
        return self.table[self.offset :]


class Sinusoidal2D(_Rows):
    """2-D sinusoids over a grid of `side` × `side` patches, computed and not saved."""

    def __init__(self, d_model: int, side: int, extras: int) -> None:
        super().__init__()
        line = torch.arange(side, device="cpu")
        table = grid_sinusoids(line, d_model, extras, columns_first=False)
        self.register_buffer("table", table, persistent=False)


class LearnedPosition(_Rows):
    """Learned positional embeddings; the first `offset` rows belong to no position."""

    repair = (
        "split the text into shorter lines, or train with position = sinusoidal, "
        "or with a larger max_length (context, for language models)"
    )

    def __init__(
        self, d_model: int, length: int, offset: int = 0, padding: int | None = None
    ) -> None:
        super().__init__()
        self.table = nn.Parameter(normal(length + offset, d_model))
        self.offset = offset  # RoBERTa counts from the id of padding + 1, BART and OPT from 2
        # Of the tokens that positions do not count, instead of counting all that stand before.
        self.padding = padding

    @classmethod
    def from_sinusoids(cls, d_model: int, side: int, extras: int = 0, axes: int = 2) -> Self:
        """Of the rows and columns of a square grid, or of its side alone (`axes`), behind `extras`:
        they begin as sinusoids, as large as what they are added to and different in neighbours.

        Rows of length 1 are lost next to patches that are several times as long: a model then sees
        a bag of patches until they have grown.
        """
        new = cls(d_model, side**axes + extras)
        if not new.table.is_meta:
            line = torch.arange(side)
            base = float(max(side, 2))
            if axes == 2:
                rows = grid_sinusoids(line, d_model, 0, columns_first=False, base=base)
            else:
                rows = sinusoids(line, d_model, "halves", base)
            new.table.data[extras:] = rows
        return new

    def of_tokens(self, tokens: Tensor) -> Tensor:
        """The vectors [B, T, D] of whole rows [B, T], in which padding tokens do not count."""
        assert self.padding is not None
        counts = tokens.ne(self.padding)
        self.rows(tokens.shape[1])  # refuses too long a row
        ids = counts.cumsum(dim=1) * counts + self.offset - 1
        return functional.embedding(ids, self.table)


class FixedPosition(_Rows):
    """Positional embeddings that are stored but not trained; sinusoids unless a file brings
    others."""

    def __init__(self, rows: Tensor) -> None:
        super().__init__()
        self.table = nn.Parameter(rows, requires_grad=False)  # [positions, D]

    @classmethod
    def sinusoidal(cls, d_model: int, length: int, *, standardized: bool = False) -> FixedPosition:
        """Sinusoids of positions in a row."""
        order = "interleaved" if standardized else "halves"
        rows = sinusoids(torch.arange(length), d_model, order, 10_000.0).float()
        if standardized:  # PatchTST's: of mean 0 and deviation 0.1
            rows = rows - rows.mean()
            rows = rows / (rows.std() * 10)
        return cls(rows)

    @classmethod
    def grid(cls, d_model: int, side: int, extras: int) -> FixedPosition:
        """Sinusoids of the columns, then of the rows of a grid: the order of MAE's files."""
        line = torch.arange(side)
        return cls(grid_sinusoids(line, d_model, extras, columns_first=True))


class AxialPosition(nn.Module):
    """Axial positional embeddings: positions run over a grid, and the rows of its axes are
    concatenated (Kitaev et al. 2020, Reformer)."""

    def __init__(self, shape: tuple[int, ...], widths: tuple[int, ...], length: int) -> None:
        super().__init__()
        self.tables = nn.ParameterList(normal(*axis) for axis in zip(shape, widths, strict=True))
        self.shape = shape
        self.length = length

    def extra_repr(self) -> str:
        return f"shape={self.shape}, positions={self.length}"

    def rows(self, length: int) -> Tensor:
        """The rows of at least the first `length` positions, and of no more of the first axis than
        needed."""
        _require_positions(length, self.length, _Rows.repair)
        inner = math.prod(self.shape[1:])  # positions for each step along the first axis
        shape = (-(-length // inner), *self.shape[1:])
        axes = []
        for axis, table in enumerate(self.tables):
            view = [1] * len(shape)
            view[axis] = shape[axis]
            # Each axis is broadcast over the others: [*shape, width]
            axes.append(table[: shape[axis]].view(*view, -1).expand(*shape, -1))
        return torch.cat(axes, dim=-1).flatten(0, -2)  # [positions, D]

    available_rows = rows


InputPosition = Sinusoidal | LearnedPosition | FixedPosition | AxialPosition
