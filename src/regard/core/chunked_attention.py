"""Attention inside chunks of a sequence, and between neighbouring ones."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.core.cache import Cache
from regard.core.mask import AttentionMask

NEVER = float("-inf")


class ChunkRing(NamedTuple):
    """Inputs of more than `beyond` places are filled up to a multiple of `places`."""

    places: int
    beyond: int


class ChunkedAttention(nn.Module):
    """Places are put into an order and cut into chunks; each sees its own chunk and some `before` and `after` it, as far as
    the pattern allows. Inputs no longer than a chunk are seen whole. Here the order is that of the places.

    On a `ring`, the last chunk stands before the first, and one that is met twice counts twice. Without one the chunks stand
    in a line, which padding behind them does not change.
    """

    alone: ClassVar[float | None] = (
        None  # the score of a place with itself, where that is not what it looks for
    )
    rounds = 1

    def __init__(
        self,
        scale: float,
        *,
        chunk: int,
        around: tuple[int, int],
        ring: ChunkRing | None,
        dropout: float,
    ) -> None:
        super().__init__()
        self.scale, self.dropout = scale, dropout
        self.chunk, self.ring = chunk, ring
        self.before, self.after = around

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        attention_mask: AttentionMask,
        past: Cache | None = None,
    ) -> Tensor:
        causal, padding_mask = attention_mask.factors()
        padding_mask = padding_mask.expand(len(q), -1)
        if self._filled(q.shape[2]) <= self.chunk:
            places = attention_mask.keys.expand(len(q), q.shape[1], 1, -1)
            whole, _ = self._chunks(
                (q[:, :, None], k[:, :, None], v[:, :, None]),
                places,
                padding_mask[:, None, None],
                causal,
            )
            return whole[:, :, 0]
        order = self._order(q, padding_mask)  # [B, H, R, N]
        given = (
            self._sorted(q, order),
            self._sorted(k, order),
            self._sorted(v, order),
        )  # [B, H, R, chunks, size, ·]
        places, seen = (
            x[:, None, None].expand(order.shape).gather(-1, order).unflatten(-1, (-1, self.chunk))
            for x in (
                self._whole(torch.arange(q.shape[2], device=q.device).expand(len(q), -1)),
                self._whole(padding_mask),
            )
        )
        out, total = self._chunks(given, places, seen, causal)
        back = order.argsort(dim=-1)[..., : q.shape[2], None]
        out = out.flatten(3, 4).gather(
            3, back.expand(*back.shape[:-1], v.shape[-1])
        )  # [B, H, R, T, E]
        total = total.flatten(3, 4).gather(3, back)
        fully_masked = (total == NEVER).all(dim=2, keepdim=True)
        total = total.masked_fill(fully_masked, 0.0)
        if self.ring is None:
            return (out * torch.softmax(total, dim=2)).sum(dim=2)
        # As the checkpoints of rings are computed: where a place saw itself alone, the sum of its shares is rounded.
        return (out * (total - total.logsumexp(dim=2, keepdim=True)).exp()).sum(dim=2)

    def _order(self, q: Tensor, padding_mask: Tensor) -> Tensor:
        """[B, H, R, N]: which place comes when, in each of several rounds; those that fill up come last."""
        return torch.arange(self._filled(q.shape[2]), device=q.device).expand(
            *q.shape[:2], self.rounds, -1
        )

    def _filled(self, length: int) -> int:
        """The number of places that are cut into chunks."""
        whole, beyond = self.ring or (self.chunk, self.chunk)
        return length + -length % whole if length > beyond else length

    def _whole(self, x: Tensor) -> Tensor:
        """[.., T] filled up with zeros."""
        return functional.pad(x, (0, self._filled(x.shape[-1]) - x.shape[-1]))

    def _sorted(self, x: Tensor, order: Tensor) -> Tensor:
        """[B, H, T, K] → [B, H, R, chunks, size, K]"""
        x = functional.pad(x, (0, 0, 0, order.shape[-1] - x.shape[2]))[:, :, None].expand(
            -1, -1, order.shape[2], -1, -1
        )
        return x.gather(3, order[..., None].expand(*order.shape, x.shape[-1])).unflatten(
            3, (-1, self.chunk)
        )

    def _chunks(
        self, given: tuple[Tensor, Tensor, Tensor], places: Tensor, seen: Tensor, causal: bool
    ) -> tuple[Tensor, Tensor]:
        """What each chunk [.., size, ·] makes of itself and its neighbours, and the logarithm of the sum of its weights."""
        q, k, v = given
        k, v, key_places, key_seen = (
            self._around(x) for x in (k, v, places[..., None], seen[..., None])
        )
        key_places, key_seen = key_places.mT, key_seen.mT  # [.., 1, M]
        scores = q * self.scale @ k.mT
        if self.alone is not None:
            scores = scores.masked_fill(places[..., None] == key_places, self.alone)
        hidden = ~key_seen | (key_places > places[..., None]) if causal else ~key_seen
        scores = scores.masked_fill(hidden, NEVER)
        fully_masked = hidden.all(dim=-1, keepdim=True)
        total = scores.masked_fill(fully_masked, 0.0).logsumexp(dim=-1, keepdim=True)
        weights = (scores - total).exp().masked_fill(fully_masked, 0.0)
        weights = (
            functional.dropout(weights, self.dropout) if self.training and self.dropout else weights
        )
        return weights @ v, total.masked_fill(fully_masked, NEVER)

    def _around(self, x: Tensor) -> Tensor:
        """[.., R, chunks, size, ·] → [.., R, chunks, M, ·]: each chunk behind those before it, and those after. On a ring
        stand the chunks of all rounds; at the ends of a line are zeros."""
        if x.ndim < 6:
            return x
        if self.ring is not None:
            return torch.cat([_turned(x, by) for by in self._neighbours()], dim=-2)
        count = x.shape[3]
        wide = functional.pad(x, (0, 0, 0, 0, self.before, self.after))
        return torch.cat(
            [wide[:, :, :, i : i + count] for i in range(self.before + 1 + self.after)], dim=-2
        )

    def _neighbours(self) -> range:
        return range(-self.before, self.after + 1)

    def weights(
        self,
        q: Tensor,
        k: Tensor,
        attention_mask: AttentionMask,
        rows: Tensor,
        heads: Tensor | None = None,
    ) -> Tensor:
        """What each place's value counts: what comes out when values are places."""
        one = torch.eye(k.shape[2], dtype=q.dtype, device=q.device)
        found = self(q, k, one.expand(*k.shape[:2], -1, -1), attention_mask)[:, :, rows]
        return found if heads is None else found[:, heads]

    def visible(self, q: Tensor, k: Tensor, attention_mask: AttentionMask, rows: Tensor) -> Tensor:
        """[B, H, rows, S]: the keys that stand, in any round, in a query's own chunk or in those that it sees too."""
        if self._filled(q.shape[2]) <= self.chunk:
            return attention_mask.asked(rows)
        order = self._order(q, attention_mask.factors()[1].expand(len(q), -1))
        chunks = order.argsort(dim=-1)[..., : k.shape[2]] // self.chunk  # [B, H, R, T]
        if self.ring is None:
            ahead = chunks[..., None, :] - chunks[..., rows, None]
            near = ((ahead >= -self.before) & (ahead <= self.after)).any(dim=2)
            return near & attention_mask.asked(rows)
        each = order.shape[-1] // self.chunk
        count = each * self.rounds
        chunks = chunks + each * torch.arange(self.rounds, device=q.device)[:, None]
        ahead = (
            chunks[:, :, None, :, None, :] - chunks[:, :, :, None, rows, None]
        ) % count  # [B, H, R, R, rows, S]
        seen = torch.tensor([_turn(by, count) for by in self._neighbours()], device=q.device)
        return torch.isin(ahead, seen).flatten(2, 3).any(dim=2) & attention_mask.asked(rows)

    def start(
        self,
        like: Tensor,
        rows: int,
        capacity: int,
        shape: tuple[int, int, int],
        max_lookback: int | None,
    ) -> Cache:
        raise AssertionError(
            "chunks change when the text grows: there is no past to keep"
        )  # who decodes writes anew


def _turn(by: int, count: int) -> int:
    """How far a ring of `count` chunks is turned to meet the one `by` places on: none is met by going farther than round."""
    return by % count if abs(by) < count else 0


def _turned(x: Tensor, by: int) -> Tensor:
    """[B, H, R, chunks, ..]: in each one's place the chunk that follows `by` chunks later."""
    line = x.flatten(2, 3)
    return line.roll(-_turn(by, line.shape[2]), dims=2).unflatten(2, x.shape[2:4])
