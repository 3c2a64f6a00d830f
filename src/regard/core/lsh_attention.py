"""Attention between keys that hash alike (Kitaev et al. 2020, Reformer)."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from regard.core.chunked_attention import ChunkedAttention, ChunkRing
from regard.core.seeding import generator


class LshAttention(ChunkedAttention):
    """Places are sorted by the bucket of their hash before they are cut into chunks. Several `rounds` of other hashes are
    weighed by how much each has seen.

    Training draws hashes anew in every call, evaluation has those of `seed`. With a `limit` instead of `buckets`, there are
    as many buckets as `twice` says. Unlike in the paper, the first chunk does not see the last, so that padding changes
    nothing, unless a `ring` is asked for: then the chunks of all rounds stand on it, and the seed is torch's own.
    """

    alone: ClassVar[float | None] = -1e5  # a place is seen by itself only where nothing else is
    rotations: Tensor | None

    def __init__(
        self,
        d_k: int,
        heads: int,
        scale: float,
        *,
        buckets: tuple[int, ...] | None,
        chunk: int,
        rounds: int,
        around: tuple[int, int],
        seed: int,
        dropout: float,
        limit: int = 0,
        ring: ChunkRing | None = None,
    ) -> None:
        super().__init__(scale, chunk=chunk, around=around, ring=ring, dropout=dropout)
        self.shape, self.seed = (heads, d_k), seed
        self.buckets, self.limit, self.rounds = buckets, limit, rounds
        self.register_buffer(
            "rotations", self._drawn(buckets) if buckets else None, persistent=False
        )

    def _drawn(self, factors: tuple[int, ...]) -> Tensor:
        """[H, K, R · Σ factors / 2], drawn from the seed."""
        chance = (
            generator(self.seed) if self.ring is None else torch.Generator().manual_seed(self.seed)
        )
        return torch.randn(
            *self.shape, self.rounds * sum(factors) // 2, generator=chance, device="cpu"
        )

    def _order(self, q: Tensor, padding_mask: Tensor) -> Tensor:
        """Sorted by bucket, in a bucket by place; padding comes last."""
        length = self._filled(q.shape[2])
        factors = self.buckets or twice(length // self.chunk, self.limit)
        rotations = self._drawn(factors) if self.rotations is None else self.rotations
        rotations = torch.randn_like(rotations) if self.training else rotations
        turned = (q.detach() @ rotations.to(q)).unflatten(
            -1, (self.rounds, -1)
        )  # [B, H, T, R, Σ factors / 2]
        bucket, several = torch.zeros((), dtype=torch.long, device=q.device), 1
        for factor, part in zip(
            factors, turned.split([f // 2 for f in factors], dim=-1), strict=True
        ):
            bucket = bucket + several * torch.cat([part, -part], dim=-1).argmax(dim=-1)
            several *= factor
        bucket = bucket.transpose(2, 3).masked_fill(~padding_mask[:, None, None], several)
        bucket = functional.pad(bucket, (0, length - q.shape[2]), value=several)
        return bucket.argsort(dim=-1, stable=True)


def twice(chunks: int, limit: int) -> tuple[int, ...]:
    """Twice as many buckets as chunks, rounded down to a power of two; more than `limit` are told by two hashes."""
    power = (2 * chunks).bit_length() - 1
    return (2**power,) if 2**power <= limit else (2 ** (power // 2), 2 ** (power - power // 2))
