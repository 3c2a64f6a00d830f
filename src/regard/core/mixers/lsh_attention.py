"""LSH attention: between keys that hash alike (Kitaev et al. 2020, Reformer)."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from regard import spec
from regard.core.mixers.local_chunk_attention import ChunkedAttention
from regard.core.seeding import generator


class LshAttention(ChunkedAttention):
    """Positions are sorted by the bucket of their hash before they are cut into chunks. Several
    rounds of other hashes are weighted by their sums of exponentials.

    Training draws hashes anew in every call, evaluation has those of the seed. Unlike in the paper,
    the first chunk does not see the last, so that padding changes nothing, unless a `ring` is asked
    for: then the chunks of all rounds stand on it, and the seed is torch's own.
    """

    # A position attends to itself only where nothing else is.
    self_score: ClassVar[float | None] = -1e5  # as in Hugging Face's Reformer
    rotations: Tensor | None

    def __init__(self, part: spec.LshAttention, heads: int, d_k: int, scale: float) -> None:
        super().__init__(part, scale)
        self.spec = part
        self.shape = (heads, d_k)
        self.rounds = part.rounds
        self.limit = getattr(part.buckets, "limit", 0)  # of buckets whose number follows from T
        rotations = self._draw_rotations(part.factors) if part.factors else None
        self.register_buffer("rotations", rotations, persistent=False)

    def _draw_rotations(self, factors: tuple[int, ...]) -> Tensor:
        """[H, K, R · Σ factors / 2], drawn from the seed."""
        if self.ring is None:
            chance = generator(self.spec.seed)
        else:
            chance = torch.Generator().manual_seed(self.spec.seed)
        count = self.rounds * sum(factors) // 2
        return torch.randn(*self.shape, count, generator=chance, device="cpu")

    def _order(self, q: Tensor, padding_mask: Tensor) -> Tensor:
        """Sorted by bucket, in a bucket by position; padding comes last."""
        length = self._padded_length(q.shape[2])
        factors = self.spec.factors or auto_buckets(length // self.chunk, self.limit)
        rotations = self._draw_rotations(factors) if self.rotations is None else self.rotations
        if self.training:
            rotations = torch.randn_like(rotations)
        rotated = (q.detach() @ rotations.to(q)).unflatten(-1, (self.rounds, -1))
        # [B, H, T, R, Σ factors / 2]; a bucket is the direction, or its opposite, that is nearest.
        bucket = torch.zeros((), dtype=torch.long, device=q.device)
        count = 1
        halves = [factor // 2 for factor in factors]
        for factor, part in zip(factors, rotated.split(halves, dim=-1), strict=True):
            # h(x) = argmax([xR; −xR]); several factors are the digits of one bucket number.
            bucket = bucket + count * torch.cat([part, -part], dim=-1).argmax(dim=-1)
            count *= factor
        # [B, H, R, T]; padding gets a bucket behind all others.
        bucket = bucket.transpose(2, 3).masked_fill(~padding_mask[:, None, None], count)
        bucket = functional.pad(bucket, (0, length - q.shape[2]), value=count)
        return bucket.argsort(dim=-1, stable=True)  # [B, H, R, N]


def auto_buckets(chunks: int, limit: int) -> tuple[int, ...]:
    """Twice as many buckets as chunks, rounded down to a power of two; more than `limit` are a
    product of two."""
    # As Hugging Face's `_set_num_buckets`.
    power = (2 * chunks).bit_length() - 1
    if 2**power <= limit:
        return (2**power,)
    return (2 ** (power // 2), 2 ** (power - power // 2))
