"""T5's relative position bias: a learned number for each bucket of distances and head."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from regard.core.linear import normal
from regard.errors import ModelError


class T5Bias(nn.Module):
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
        bucket = self._bucket(keys[None, :] - queries[:, None])  # [T, S]
        return self.table[bucket].permute(2, 0, 1)[None]  # [1, H, T, S]

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
