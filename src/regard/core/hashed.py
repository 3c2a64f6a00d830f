"""Attention between keys that hash alike (Kitaev et al. 2020, Reformer)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.core.chance import generator
from regard.core.pattern import Sight
from regard.core.state import KeyValues, Past

SELF = -1e5  # the score of a place with itself: it is seen only where nothing else is
NEVER = float("-inf")


class Lsh(nn.Module):
    """Places are sorted by the bucket of their hash and cut into chunks; each sees its own chunk and some `before` and
    `after` it, as far as the pattern allows. Several `rounds` of other hashes are weighed by how much each has seen.

    Training draws hashes anew in every call, evaluation has those of `seed`. Inputs no longer than a chunk are seen whole.
    Unlike in the paper, the first chunk does not see the last, so that padding changes nothing.
    """

    rotations: Tensor

    def __init__(
        self,
        d_k: int,
        heads: int,
        scale: float,
        *,
        buckets: tuple[int, ...],
        chunk: int,
        rounds: int,
        around: tuple[int, int],
        seed: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.scale, self.dropout = scale, dropout
        self.buckets, self.chunk, self.rounds = buckets, chunk, rounds
        self.before, self.after = around
        drawn = torch.randn(heads, d_k, rounds * sum(buckets) // 2, generator=generator(seed), device="cpu")
        self.register_buffer("rotations", drawn, persistent=False)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, sight: Sight, past: Past | None = None) -> Tensor:
        causal, real = sight.factors()
        real = real.expand(len(q), -1)
        if q.shape[2] <= self.chunk:
            places = sight.keys.expand(len(q), q.shape[1], 1, -1)
            whole, _ = self._chunks((q[:, :, None], k[:, :, None], v[:, :, None]), places, real[:, None, None], causal)
            return whole[:, :, 0]
        order = self._order(k, real)  # [B, H, R, N]
        given = self._sorted(q, order), self._sorted(k, order), self._sorted(v, order)  # [B, H, R, chunks, size, ·]
        places, seen = (
            x[:, None, None].expand(order.shape).gather(-1, order).unflatten(-1, (-1, self.chunk))
            for x in (self._whole(torch.arange(q.shape[2], device=q.device).expand(len(q), -1)), self._whole(real))
        )
        out, total = self._chunks(given, places, seen, causal)
        back = order.argsort(dim=-1)[..., : q.shape[2], None]
        out = out.flatten(3, 4).gather(3, back.expand(*back.shape[:-1], v.shape[-1]))  # [B, H, R, T, E]
        total = total.flatten(3, 4).gather(3, back)
        blind = (total == NEVER).all(dim=2, keepdim=True)
        share = torch.softmax(total.masked_fill(blind, 0.0), dim=2)
        return (out * share).sum(dim=2)

    def _order(self, k: Tensor, real: Tensor) -> Tensor:
        """[B, H, R, N]: places sorted by bucket, in a bucket by place; padding comes last."""
        rotations = torch.randn_like(self.rotations) if self.training else self.rotations
        turned = (k.detach() @ rotations.to(k)).unflatten(-1, (self.rounds, -1))  # [B, H, T, R, Σ factors / 2]
        bucket, several = torch.zeros((), dtype=torch.long, device=k.device), 1
        for factor, part in zip(self.buckets, turned.split([f // 2 for f in self.buckets], dim=-1), strict=True):
            bucket = bucket + several * torch.cat([part, -part], dim=-1).argmax(dim=-1)
            several *= factor
        bucket = bucket.transpose(2, 3).masked_fill(~real[:, None, None], several)
        bucket = functional.pad(bucket, (0, -k.shape[2] % self.chunk), value=several)
        return bucket.argsort(dim=-1, stable=True)

    def _whole(self, x: Tensor) -> Tensor:
        """[.., T] filled up to whole chunks with zeros."""
        return functional.pad(x, (0, -x.shape[-1] % self.chunk))

    def _sorted(self, x: Tensor, order: Tensor) -> Tensor:
        """[B, H, T, K] → [B, H, R, chunks, size, K]"""
        x = functional.pad(x, (0, 0, 0, order.shape[-1] - x.shape[2]))[:, :, None].expand(
            -1, -1, order.shape[2], -1, -1
        )
        return x.gather(3, order[..., None].expand(*order.shape, x.shape[-1])).unflatten(3, (-1, self.chunk))

    def _chunks(
        self, given: tuple[Tensor, Tensor, Tensor], places: Tensor, seen: Tensor, causal: bool
    ) -> tuple[Tensor, Tensor]:
        """What each chunk [.., size, ·] makes of itself and its neighbours, and the logarithm of the sum of its weights."""
        q, k, v = given
        k, v, key_places, key_seen = (self._around(x) for x in (k, v, places[..., None], seen[..., None]))
        key_places, key_seen = key_places.mT, key_seen.mT  # [.., 1, M]
        scores = q * self.scale @ k.mT
        scores = scores.masked_fill(places[..., None] == key_places, SELF)
        hidden = ~key_seen | (key_places > places[..., None]) if causal else ~key_seen
        scores = scores.masked_fill(hidden, NEVER)
        blind = hidden.all(dim=-1, keepdim=True)
        total = scores.masked_fill(blind, 0.0).logsumexp(dim=-1, keepdim=True)
        weights = (scores - total).exp().masked_fill(blind, 0.0)
        weights = functional.dropout(weights, self.dropout) if self.training and self.dropout else weights
        return weights @ v, total.masked_fill(blind, NEVER)

    def _around(self, x: Tensor) -> Tensor:
        """[.., chunks, size, ·] → [.., chunks, M, ·]: each chunk behind those before it, and those after; zeros at the ends."""
        if x.ndim < 6:
            return x
        count = x.shape[3]
        wide = functional.pad(x, (0, 0, 0, 0, self.before, self.after))
        return torch.cat([wide[:, :, :, i : i + count] for i in range(self.before + 1 + self.after)], dim=-2)

    def weights(self, q: Tensor, k: Tensor, sight: Sight, rows: Tensor, heads: Tensor | None = None) -> Tensor:
        """What each place's value counts: what comes out when values are places."""
        one = torch.eye(k.shape[2], dtype=q.dtype, device=q.device)
        found = self(q, k, one.expand(*k.shape[:2], -1, -1), sight)[:, :, rows]
        return found if heads is None else found[:, heads]

    def visible(self, q: Tensor, k: Tensor, sight: Sight, rows: Tensor) -> Tensor:
        """[B, H, rows, S]: the keys that stand, in any round, in a query's own chunk or in those that it sees too."""
        if q.shape[2] <= self.chunk:
            return sight.asked(rows)
        real = sight.factors()[1].expand(len(q), -1)
        chunks = self._order(k, real).argsort(dim=-1)[..., : k.shape[2]] // self.chunk  # [B, H, R, T]
        behind = chunks[..., rows, None] - chunks[..., None, :]
        near = ((behind <= self.before) & (behind >= -self.after)).any(dim=2)
        return near & sight.asked(rows)

    def start(
        self, like: Tensor, rows: int, capacity: int, shape: tuple[int, int, int], behind: int | None
    ) -> KeyValues:
        raise AssertionError("chunks change when the text grows: there is no past to keep")  # the spec refuses it
