"""Relative positions on the attention scores: T5, ALiBi, DeBERTa, Shaw, Transformer-XL, paths in
graphs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard import spec
from regard.core.dropout import Dropout
from regard.core.linear import Linear, dimensions, keep_rows, normal
from regard.core.masks.attention_mask import AttentionMask, ScoreBias, distances
from regard.core.masks.mask import Call
from regard.core.norm import Norm
from regard.core.positions.position_terms import (
    LayerPosition,
    PositionTerms,
    StackPosition,
    bias_terms,
)
from regard.core.positions.positional_encoding import sinusoids
from regard.core.projection import split_heads
from regard.system.errors import ModelError

# ------------------------------------------------------------------ one bias for all layers


class ShortestPathBias(StackPosition):
    """Graphormer's spatial encoding: a scalar of each head for each length of a shortest path."""

    def __init__(self, heads: int, distance: int) -> None:
        super().__init__()
        # Rows 0 to `distance`, then one for farther nodes, and one for those without a path.
        self.table = nn.Parameter(torch.zeros(distance + 3, heads))
        self.distance = distance

    def extra_repr(self) -> str:
        return f"heads={self.table.shape[1]}, max_distance={self.distance}"

    def terms(self, mask: AttentionMask, ids: Tensor, call: Call) -> PositionTerms:
        distances = call.inputs["distances"]  # [B, N, N], −1 without a path
        assert distances is not None, "the caller of a graph model gives them"
        rows = distances.long().clamp_max(self.distance + 1)
        rows = torch.where(distances < 0, self.distance + 2, rows)
        return PositionTerms(ids, bias=ScoreBias(self.table[rows].permute(0, 3, 1, 2)))


class RepeatedBlockBias(StackPosition):
    """A score bias for keys that count several times: log(1 + `times`).

    For queries of all but the first and the last block, the keys of the first block of `size`
    count `times` more. Sequences of at most `most` positions have no such bias.
    """

    def __init__(self, size: int, times: int, most: int) -> None:
        super().__init__()
        self.size = size
        self.times = times
        self.most = most

    def terms(self, mask: AttentionMask, ids: Tensor, call: Call) -> PositionTerms:
        if call.length <= self.most:
            return PositionTerms(ids)
        last = (call.length - 1) // self.size * self.size

        def term(queries: Tensor, keys: Tensor) -> Tensor:
            inner = (queries >= self.size) & (queries < last)
            repeated = inner[:, None] & (keys < self.size)[None, :]  # [T, S]
            return repeated[None, None] * math.log(1 + self.times)

        return bias_terms(term, mask, ids)


# ------------------------------------------------------------------ one table, scores of each layer


class Disentangled(StackPosition):
    """Disentangled attention (DeBERTa, He et al. 2021): one table of distance vectors for all
    layers, which each layer projects as it does its input."""

    def __init__(self, part: spec.Disentangled, d_model: int, norm: Norm | None) -> None:
        super().__init__()
        self.distance = part.distance
        self.buckets = part.buckets
        self.scored = ("c2p", "p2c") if part.terms == "both" else (part.terms,)
        self.side = part.buckets or part.distance
        # Row r is the vector of distance r − side.
        self.table = nn.Parameter(normal(2 * self.side, d_model))
        self.norm = norm
        self.dropout = Dropout(part.dropout)

    def extra_repr(self) -> str:
        return f"distances={2 * self.side}, terms={self.scored}"

    def terms(self, mask: AttentionMask, ids: Tensor, call: Call) -> PositionTerms:
        return PositionTerms(ids, relative=self(mask.queries, mask.keys))

    def forward(self, queries: Tensor, keys: Tensor) -> DistanceVectors:
        vectors = self.table if self.norm is None else self.norm(self.table)
        rows = self._bucket(distances(queries, keys)) + self.side
        return DistanceVectors(self, vectors, rows.clamp(0, 2 * self.side - 1))

    def _bucket(self, distance: Tensor) -> Tensor:
        """Up to half of the buckets are exact distances; farther ones are logarithmic, rounded
        up."""
        if self.buckets is None:
            return distance
        exact = self.buckets // 2
        # In float32, as the checkpoints were trained with: rounding up makes the last bit matter.
        log_range = torch.tensor((self.distance - 1) / exact, device="cpu").log().item()
        ratio = (distance.abs().clamp_min(exact) / exact).log() / log_range
        logarithmic = (ratio * (exact - 1)).ceil().long() + exact
        return torch.where(distance.abs() < exact, distance, distance.sign() * logarithmic)


class DisentangledScores(nn.Module, LayerPosition):
    """The scores of one layer from its stack's distance vectors: by projections of their own, or by
    those of the content."""

    def __init__(self, project: PositionProjection | None, scale: float) -> None:
        super().__init__()
        self.project = project
        self.scale = scale

    def scores(
        self,
        q: Tensor,
        k: Tensor,
        mask: AttentionMask,
        positions: PositionTerms | None,
        project: nn.Module,
    ) -> tuple[Tensor, ScoreBias | None]:
        if positions is None or positions.relative is None:
            return q, None
        # Kernels scale q·k and then add the bias as it is: so it is scaled here.
        return q, ScoreBias(positions.relative.scores(q, k, self.project or project) * self.scale)

    def keep(self, heads: Tensor) -> None:
        if self.project is not None:
            self.project.keep(heads)


class PositionProjection(nn.Module):
    """A layer's own projections of distance vectors: W_{q,r}, with a bias, and W_{k,r} (He et al.
    2021, equation 3); a term that is not used has none."""

    def __init__(self, d_model: int, heads: int, d_k: int, terms: tuple[str, ...]) -> None:
        super().__init__()
        self.heads = heads
        self.d_k = d_k
        self.q = Linear(d_model, heads * d_k) if "p2c" in terms else None
        self.k = Linear(d_model, heads * d_k, bias=False) if "c2p" in terms else None

    def forward(
        self, vectors: Tensor, memory: None = None
    ) -> tuple[Tensor | None, Tensor | None, None]:
        """vectors [1, R, D] → queries and keys [1, H, R, K], and no values."""
        q = split_heads(self.q(vectors), self.heads) if self.q is not None else None
        k = split_heads(self.k(vectors), self.heads) if self.k is not None else None
        return q, k, None

    def keep(self, heads: Tensor) -> None:
        """Head pruning."""
        for part in (self.q, self.k):
            if part is not None:
                part.keep_outputs([dimensions(heads, self.d_k)])
        self.heads = len(heads)


class DistanceVectors(NamedTuple):
    """The distance vectors of one call of `Disentangled`, from which each layer computes scores of
    its own."""

    part: Disentangled
    vectors: Tensor  # [R, D]
    rows: Tensor  # [B or 1, 1, T, S], which of the vectors stands between a query and a key

    def scores(self, q: Tensor, k: Tensor, project: nn.Module) -> Tensor:
        """Content-to-position plus position-to-content scores, unscaled: [B, H, T, S]."""
        vectors = self.part.dropout(self.vectors)[None]  # [1, R, D]
        position_q, position_k, _ = project(vectors, None)  # [1, H, R, K], [1, G, R, K]
        groups = k.shape[1]
        terms = []
        if "c2p" in self.part.scored:
            grouped_q = q.unflatten(1, (groups, -1))
            scores = (grouped_q @ position_k[:, :, None].mT).flatten(1, 2)  # [B, H, T, R]
            terms.append(scores.take_along_dim(self.rows, dim=-1))
        if "p2c" in self.part.scored:
            grouped_q = position_q.unflatten(1, (groups, -1))
            scores = (k[:, :, None] @ grouped_q.mT).flatten(1, 2)  # [B, H, S, R]
            # Seen from the keys, [B, H, S, T]; transposed, from the queries.
            terms.append(scores.take_along_dim(self.rows.mT, dim=-1).mT)
        return sum(terms[1:], start=terms[0])


# ------------------------------------------------------------------ another one for each layer


class RelativeScores(nn.Module, LayerPosition):
    """Abstract: part(q, queries, keys) gives the queries to attend with, and what is added to their
    scores before these are scaled."""

    scale: float

    def scores(
        self,
        q: Tensor,
        k: Tensor,
        mask: AttentionMask,
        positions: PositionTerms | None,
        project: nn.Module,
    ) -> tuple[Tensor, ScoreBias]:
        q, scores = self(q, mask.queries, mask.keys)  # [B, H, T, S]
        # Kernels scale q·k and then add the bias as it is: so it is scaled here.
        return q, ScoreBias(scores * self.scale)


class RelativeKeys(RelativeScores):
    """Relative position representations (Shaw et al. 2018): q_i · a of the distance i − j, up to
    `distance` on each side; the same vectors for all heads."""

    def __init__(self, part: spec.RelativeKeys, d_k: int, d_v: int, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.distance = part.distance
        self.windowed = part.windowed
        vectors = 2 * part.distance + 1
        self.table = nn.Parameter(normal(vectors, d_k))
        self.values = nn.Parameter(normal(vectors, d_v)) if part.values else None

    def extra_repr(self) -> str:
        return f"max_distance={self.distance}, d_k={self.table.shape[1]}"

    def forward(self, q: Tensor, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """The queries, and what is added to their scores before these are scaled: [B, H, T, S]."""
        scores = functional.pad(q @ self.table.mT, (0, 1))  # [B, H, T, R + 1], the last 0
        return q, scores.take_along_dim(self.rows(queries, keys), dim=-1)

    def rows(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Whose vector stands between a query and a key [B or 1, 1, T, S]; R, if none does."""
        distance = distances(queries, keys)
        rows = distance.clamp(-self.distance, self.distance) + self.distance
        if not self.windowed:
            return rows
        return rows.masked_fill(distance.abs() > self.distance, len(self.table))

    def add_to_values(
        self, out: Tensor, weigh: Callable[[Tensor], Tensor], mask: AttentionMask
    ) -> Tensor:
        if self.values is None:
            return out
        weights = weigh(torch.arange(out.shape[2], device=out.device))  # [B, H, T, S]
        rows = self.rows(mask.queries, mask.keys).expand_as(weights)
        of_rows = weights.new_zeros(*weights.shape[:3], len(self.values) + 1)
        of_rows = of_rows.scatter_add(-1, rows, weights)  # [B, H, T, R + 1]
        return out + of_rows[..., :-1] @ self.values


class RelativeSinusoids(RelativeScores):
    """Transformer-XL's relative positions: (q + u) · k + (q + v) · W r of the distance, r a
    sinusoid (Dai et al. 2019)."""

    def __init__(self, d_model: int, heads: int, d_k: int, scale: float, order: str) -> None:
        super().__init__()
        self.scale = scale
        self.d_model = d_model
        self.order = order
        self.content = nn.Parameter(torch.zeros(heads, 1, d_k))  # u
        self.position = nn.Parameter(torch.zeros(heads, 1, d_k))  # v
        self.project = Linear(d_model, heads * d_k, bias=False)

    def forward(self, q: Tensor, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """The queries, and what is added to their scores before these are scaled: [B, H, T, S]."""
        distance = distances(queries, keys)  # [B or 1, 1, T, S]
        first = distance.min()
        # Every distance once, however many pairs have it: R = T + S − 1. Queries of rows that are
        # at different positions may be any of S apart.
        apart = queries if queries.ndim == 1 else keys
        count = len(apart) + len(keys) - 1
        every = torch.arange(count, device=q.device) + first
        waves = sinusoids(every, self.d_model, self.order, 10_000.0).to(q.dtype)  # [R, D]
        position_k = (
            self.project(waves).unflatten(-1, (q.shape[1], -1)).transpose(0, 1)
        )  # [H, R, K]
        scores = (q + self.position) @ position_k.mT  # [B, H, T, R]
        # Dai et al. 2019, Section 3.3: terms (a) + (c) are (q + u)·k, (b) + (d) are these scores.
        return q + self.content, scores.take_along_dim(distance - first, dim=-1)

    def keep(self, heads: Tensor) -> None:
        """Prunes all but these heads."""
        width = self.content.shape[-1]
        keep_rows(self, "content", heads)
        keep_rows(self, "position", heads)
        self.project.keep_outputs([dimensions(heads, width)])


class BiasPosition(StackPosition):
    """Abstract: part(queries, keys) gives the bias of their positions [1, H, T, S]."""

    def terms(self, mask: AttentionMask, ids: Tensor, call: Call) -> PositionTerms:
        return bias_terms(self, mask, ids)


class Alibi(BiasPosition):
    """ALiBi: −slope · distance, slopes a geometric series over the heads (Press et al. 2022)."""

    slopes: Tensor

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.register_buffer("slopes", alibi_slopes(heads), persistent=False)

    def extra_repr(self) -> str:
        return f"heads={len(self.slopes)}"

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        return -(self.slopes[:, None, None] * distances(queries, keys).abs())  # [B or 1, H, T, S]


def alibi_slopes(heads: int) -> Tensor:
    """2^(-8i/n) for n a power of two; otherwise those of the power below, and every second of the
    one above."""
    power = 2 ** math.floor(math.log2(heads))
    series = [2.0 ** (-8.0 * (i + 1) / power) for i in range(power)]
    # 2^(-8j/2n) for odd j: the series of 2n heads without those of n.
    between = [2.0 ** (-4.0 * (2 * i + 1) / power) for i in range(heads - power)]
    return torch.tensor(series + between, device="cpu")


class T5Bias(BiasPosition):
    """T5's relative position bias: [1, H, T, S] from the bucket of each distance."""

    def __init__(self, heads: int, count: int, distance: int, both_ways: bool) -> None:
        super().__init__()
        exact = (count // 2 if both_ways else count) // 2
        if exact < 1 or distance <= exact:
            raise ModelError(
                f"a T5 bias cannot have {count} buckets of distances up to {distance}: {exact} of "
                "each direction are exact, and the others need larger distances",
                "set at least 4 buckets, and a distance larger than the number of exact ones",
            )
        self.table = nn.Parameter(normal(count, heads))
        self.count = count
        self.distance = distance
        self.both_ways = both_ways

    def extra_repr(self) -> str:
        return f"heads={self.table.shape[1]}, buckets={self.count}, max_distance={self.distance}"

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        bucket = self._bucket(-distances(queries, keys))  # [B or 1, 1, T, S]
        return self.table[bucket[:, 0]].permute(0, 3, 1, 2)  # [B or 1, H, T, S]

    def _bucket(self, ahead: Tensor) -> Tensor:
        """Half of the buckets are exact distances, the other half logarithmic up to `distance`;
        one side each if both_ways."""
        count = self.count
        first = torch.zeros_like(ahead)
        if self.both_ways:
            count //= 2
            first = (ahead > 0).long() * count
            far = ahead.abs()
        else:
            far = (-ahead).clamp_min(0)  # what is ahead, a causal mask hides
        exact = count // 2
        # As T5's `_relative_position_bucket`. Where 0 is clamped to 1, the exact bucket is taken.
        ratio = torch.log(far.float().clamp_min(1) / exact) / math.log(self.distance / exact)
        logarithmic = (exact + (ratio * (count - exact)).long()).clamp_max(count - 1)
        return first + torch.where(far < exact, far, logarithmic)
