"""Positions at their three seams: added at the input, on q and k, on the score."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.core.dropout import Dropout
from regard.core.linear import Linear, dimensions, keep_rows, normal
from regard.core.norm import Norm
from regard.errors import DataError

# ------------------------------------------------------------------ added at the input


def sinusoids(positions: Tensor, d_model: int, order: str, base: float) -> Tensor:
    """PE(pos, 2i) = sin(pos / base^(2i/d)), PE(pos, 2i+1) = cos(same): [T, D], computed in float64 as tables are."""
    exponents = torch.arange(0, d_model, 2, dtype=torch.float64, device=positions.device) / d_model
    angles = positions.to(torch.float64)[:, None] / base**exponents  # [T, ⌈D/2⌉]
    sines, cosines = angles.sin(), angles.cos()[:, : d_model // 2]
    if order == "halves":
        return torch.cat([sines, cosines], dim=1)
    table = torch.empty(len(positions), d_model, dtype=torch.float64, device=positions.device)
    table[:, 0::2], table[:, 1::2] = sines, cosines
    return table


class Sinusoidal(nn.Module):
    """The table is kept as long as the longest input so far; it is no parameter and is not saved."""

    table: Tensor

    def __init__(self, d_model: int, order: str, base: float) -> None:
        super().__init__()
        self.d_model, self.order, self.base = d_model, order, base
        self.register_buffer("table", self._compute(512), persistent=False)

    def _compute(self, length: int) -> Tensor:
        positions = torch.arange(length, device="cpu")
        return sinusoids(positions, self.d_model, self.order, self.base).to(torch.float32)

    def rows(self, length: int) -> Tensor:
        """The table of the first `length` positions at least."""
        table = self.table  # held on to: another thread may make another one
        if length > len(table):
            self.table = table = self._compute(max(length, 2 * len(table))).to(table)
        return table

    known = rows  # as far as there are rows, which there are for all positions


class Sinusoidal2D(nn.Module):
    """Sinusoids of a square of `side` × `side` places: half of the dimensions tell the row, half the column. The `extras`
    before them stand nowhere."""

    table: Tensor

    def __init__(self, d_model: int, side: int, extras: int) -> None:
        super().__init__()
        line, half = torch.arange(side, device="cpu"), d_model // 2
        down = sinusoids(line, half, "halves", 10_000.0)[:, None].expand(-1, side, -1)
        along = sinusoids(line, d_model - half, "halves", 10_000.0)[None].expand(side, -1, -1)
        table = torch.cat([down, along], dim=-1).flatten(0, 1)
        table = torch.cat([torch.zeros(extras, d_model, device="cpu"), table]).float()
        self.register_buffer("table", table, persistent=False)

    def rows(self, length: int) -> Tensor:
        return self.table


class LearnedPosition(nn.Module):
    """Trained rows; the first `offset` of them belong to no position."""

    def __init__(self, d_model: int, length: int, offset: int = 0) -> None:
        super().__init__()
        self.table = nn.Parameter(normal(length + offset, d_model))
        self.offset = offset

    def rows(self, length: int) -> Tensor:
        known = len(self.table) - self.offset
        if length > known:
            raise DataError(
                f"the input has {length} positions, but this model has learnt {known}",
                "split the text into shorter lines, or train with sinusoidal positions or a larger `length`",
            )
        return self.table[self.offset :]

    def known(self, length: int) -> Tensor:
        """The rows there are of the first `length` positions, for those who ask for a place before the last."""
        return self.table[self.offset :]


class FixedPosition(nn.Module):
    """Rows that are stored but not trained; sinusoids unless a file brings others."""

    def __init__(self, d_model: int, length: int) -> None:
        super().__init__()
        rows = sinusoids(torch.arange(length), d_model, "halves", 10_000.0).float()
        self.table = nn.Parameter(rows, requires_grad=False)

    def rows(self, length: int) -> Tensor:
        if length > len(self.table):
            raise DataError(
                f"the input has {length} positions, but this model has {len(self.table)}",
                "split it into shorter parts",
            )
        return self.table

    def known(self, length: int) -> Tensor:
        return self.table


class AxialPosition(nn.Module):
    """Rows for each axis of a grid over which the positions run, set beside each other (Kitaev et al. 2020)."""

    def __init__(self, shape: tuple[int, ...], widths: tuple[int, ...], length: int) -> None:
        super().__init__()
        self.tables = nn.ParameterList(normal(*axis) for axis in zip(shape, widths, strict=True))
        self.shape, self.length = shape, length

    def rows(self, length: int) -> Tensor:
        """Of the first `length` positions at least, and of no more of the first axis than they need."""
        if length > self.length:
            raise DataError(
                f"the input has {length} positions, but this model has {self.length}",
                "split it into shorter parts",
            )
        inner = math.prod(self.shape[1:])
        shape = (-(-length // inner), *self.shape[1:])
        spread = []
        for axis, table in enumerate(self.tables):
            ones = [1] * len(shape)
            ones[axis] = shape[axis]
            spread.append(table[: shape[axis]].view(*ones, -1).expand(*shape, -1))
        return torch.cat(spread, dim=-1).flatten(0, -2)

    known = rows


# ------------------------------------------------------------------ on q and k


class Rope(nn.Module):
    """Rotary positions: a rotation of each pair of dimensions, so that q·k depends on the distance (Su et al. 2021)."""

    frequencies: Tensor

    def __init__(self, frequencies: Tensor, pairs: str) -> None:
        super().__init__()
        self.register_buffer(
            "frequencies", frequencies, persistent=False
        )  # [R/2], R rotated dimensions
        self.pairs = pairs

    def angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin for each position, [T, R/2] or [B, 1, T, R/2]: computed once for all layers."""
        angles = positions.float()[..., None] * self.frequencies
        angles = angles if positions.ndim == 1 else angles[:, None]
        return angles.cos(), angles.sin()

    def rotate(self, x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
        """x [B, H, T, K]; dimensions beyond the rotated ones stay."""
        cos, sin = (part.to(x.dtype) for part in angles)
        turned, rest = x.split([2 * cos.shape[-1], x.shape[-1] - 2 * cos.shape[-1]], dim=-1)
        if self.pairs == "halves":
            first, second = turned.chunk(2, dim=-1)
            turned = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
        else:
            first, second = turned.unflatten(-1, (-1, 2)).unbind(-1)
            turned = torch.stack(
                [first * cos - second * sin, second * cos + first * sin], dim=-1
            ).flatten(-2)
        return torch.cat([turned, rest], dim=-1) if rest.shape[-1] else turned


def rope_frequencies(dimensions: int, base: float) -> Tensor:
    """base^(-2i/R): [R/2], in float32 as the checkpoints were trained with."""
    return 1.0 / base ** (
        torch.arange(0, dimensions, 2, dtype=torch.float32, device="cpu") / dimensions
    )


def banded(frequencies: Tensor, factor: float, low: float, high: float, length: int) -> Tensor:
    """LLaMA 3's scaling: by wavelength, stretched above length/low, left below length/high, blended between."""
    wavelengths = 2 * math.pi / frequencies
    blend = ((length / wavelengths - low) / (high - low)).clamp(0.0, 1.0)
    return frequencies * (blend + (1 - blend) / factor)


# ------------------------------------------------------------------ on the score


class T5Bias(nn.Module):
    """T5's relative bias: [1, H, T, S] from the bucket of each distance."""

    def __init__(self, heads: int, count: int, distance: int, both_ways: bool) -> None:
        super().__init__()
        self.table = nn.Parameter(normal(count, heads))
        self.count, self.distance, self.both_ways = count, distance, both_ways

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        bucket = self._bucket(keys[None, :] - queries[:, None])  # [T, S]
        return self.table[bucket].permute(2, 0, 1)[None]

    def _bucket(self, ahead: Tensor) -> Tensor:
        """Half of the buckets are exact distances, the other half logarithmic up to `distance`; one side each if both_ways."""
        count, first = self.count, torch.zeros_like(ahead)
        if self.both_ways:
            count //= 2
            first = (ahead > 0).long() * count
            far = ahead.abs()
        else:
            far = (-ahead).clamp_min(0)
        exact = count // 2
        ratio = torch.log(far.float().clamp_min(1) / exact) / math.log(self.distance / exact)
        logarithmic = (exact + (ratio * (count - exact)).long()).clamp_max(count - 1)
        return first + torch.where(far < exact, far, logarithmic)


class Disentangled(nn.Module):
    """DeBERTa's vectors of distances: one table for all layers, and the row of it that belongs to each query and key."""

    def __init__(
        self,
        d_model: int,
        distance: int,
        buckets: int | None,
        terms: tuple[str, ...],
        norm: Norm | None,
        dropout: float,
    ) -> None:
        super().__init__()
        self.buckets, self.distance, self.terms = buckets, distance, terms
        self.side = buckets or distance
        self.table = nn.Parameter(normal(2 * self.side, d_model))
        self.norm = norm
        self.dropout = Dropout(dropout)

    def forward(self, queries: Tensor, keys: Tensor) -> Relative:
        vectors = self.table if self.norm is None else self.norm(self.table)
        rows = self._bucket(queries[:, None] - keys[None, :]) + self.side
        return Relative(self, vectors, rows.clamp(0, 2 * self.side - 1))

    def _bucket(self, max_lookback: Tensor) -> Tensor:
        """Distances up to half of the buckets are exact; farther ones are logarithmic up to `distance`, rounded up."""
        if self.buckets is None:
            return max_lookback
        exact = self.buckets // 2
        # In float32, as the checkpoints were trained with: rounding up makes the last bit matter.
        whole = torch.tensor((self.distance - 1) / exact, device="cpu").log().item()
        ratio = (max_lookback.abs().clamp_min(exact) / exact).log() / whole
        logarithmic = (ratio * (exact - 1)).ceil().long() + exact
        return torch.where(
            max_lookback.abs() < exact, max_lookback, max_lookback.sign() * logarithmic
        )


class Relative(NamedTuple):
    """What `Disentangled` says of the places of one call. Each layer makes its own scores from it."""

    part: Disentangled
    vectors: Tensor  # [R, D]
    rows: Tensor  # [T, S], which of the vectors stands between a query and a key

    def scores(
        self, q: Tensor, k: Tensor, project: Callable[[Tensor, None], tuple[Tensor, Tensor, Tensor]]
    ) -> Tensor:
        """q · key of the distance + query of the distance · k, unscaled: [B, H, T, S]."""
        far_q, far_k, _ = project(
            self.part.dropout(self.vectors)[None], None
        )  # [1, H, R, K], [1, G, R, K]
        groups, (queries, keys) = k.shape[1], self.rows.shape
        terms = []
        if "c2p" in self.part.terms:
            each = (q.unflatten(1, (groups, -1)) @ far_k[:, :, None].mT).flatten(
                1, 2
            )  # [B, H, T, R]
            terms.append(each.gather(-1, self.rows.expand(*each.shape[:2], queries, keys)))
        if "p2c" in self.part.terms:
            each = (k[:, :, None] @ far_q.unflatten(1, (groups, -1)).mT).flatten(
                1, 2
            )  # [B, H, S, R]
            terms.append(each.gather(-1, self.rows.T.expand(*each.shape[:2], keys, queries)).mT)
        return sum(terms[1:], start=terms[0])


class RepeatedBlockBias(nn.Module):
    """The logarithm of how often a key counts: the first block of `size` `times` more for all but the outer blocks."""

    def __init__(self, size: int, times: int, most: int) -> None:
        super().__init__()
        self.size, self.times, self.most = size, times, most

    def over(self, length: int) -> Callable[[Tensor, Tensor], Tensor] | None:
        """What is added to the scores of a sequence of `length` places; None: nothing."""
        if length <= self.most:
            return None
        last = (length - 1) // self.size * self.size

        def term(queries: Tensor, keys: Tensor) -> Tensor:
            inner = (queries >= self.size) & (queries < last)
            return (inner[:, None] & (keys < self.size)[None, :])[None, None] * math.log(
                1 + self.times
            )

        return term


class Alibi(nn.Module):
    """−slope · distance, slopes a geometric series over the heads (Press et al. 2022)."""

    slopes: Tensor

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.register_buffer("slopes", alibi_slopes(heads), persistent=False)

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        distance = (queries[:, None] - keys[None, :]).abs()
        return -(self.slopes[:, None, None] * distance)[None]


def alibi_slopes(heads: int) -> Tensor:
    """2^(-8i/n) for n a power of two; otherwise those of the power below, and every second of the one above."""
    power = 2 ** math.floor(math.log2(heads))
    series = [2.0 ** (-8.0 * (i + 1) / power) for i in range(power)]
    between = [2.0 ** (-4.0 * (2 * i + 1) / power) for i in range(heads - power)]
    return torch.tensor(series + between, device="cpu")


StackPosition = Rope | T5Bias | Alibi | Disentangled | RepeatedBlockBias

# ------------------------------------------------------------------ on the score, another for each layer


class RelativeKeys(nn.Module):
    """q_i · a of the distance i − j, up to `distance` on each side; the same vectors for all heads (Shaw et al. 2018)."""

    def __init__(self, d_k: int, distance: int) -> None:
        super().__init__()
        self.distance = distance
        self.table = nn.Parameter(normal(2 * distance + 1, d_k))

    def forward(self, q: Tensor, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """The queries to look with, and what is added to their scores before these are scaled: [B, H, T, S]."""
        rows = (queries[:, None] - keys[None, :]).clamp(
            -self.distance, self.distance
        ) + self.distance
        each = q @ self.table.mT  # [B, H, T, R]
        return q, each.gather(-1, rows.expand(*each.shape[:2], -1, -1))


class RelativeSinusoids(nn.Module):
    """(q + u) · k + (q + v) · W r of the distance, r a sinusoid (Dai et al. 2019, Transformer-XL)."""

    def __init__(self, d_model: int, heads: int, d_k: int) -> None:
        super().__init__()
        self.d_model = d_model
        self.content = nn.Parameter(torch.zeros(heads, 1, d_k))
        self.position = nn.Parameter(torch.zeros(heads, 1, d_k))
        self.project = Linear(d_model, heads * d_k, bias=False)

    def forward(self, q: Tensor, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """The queries to look with, and what is added to their scores before these are scaled: [B, H, T, S]."""
        max_lookback = queries[:, None] - keys[None, :]
        first = max_lookback.min()
        distances = torch.arange(queries.shape[0] + keys.shape[0] - 1, device=q.device) + first
        waves = sinusoids(distances, self.d_model, "halves", 10_000.0).to(q.dtype)
        far = self.project(waves).unflatten(-1, (q.shape[1], -1)).transpose(0, 1)  # [H, R, K]
        each = (q + self.position) @ far.mT  # [B, H, T, R]
        return q + self.content, each.gather(
            -1, (max_lookback - first).expand(*each.shape[:2], -1, -1)
        )

    def keep(self, heads: Tensor) -> None:
        """Only these heads."""
        width = self.content.shape[-1]
        keep_rows(self, "content", heads)
        keep_rows(self, "position", heads)
        self.project.keep_outputs([dimensions(heads, width)])


LayerPosition = RelativeKeys | RelativeSinusoids
