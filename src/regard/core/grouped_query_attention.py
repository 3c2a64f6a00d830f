"""Grouped-query attention (Ainslie et al. 2023): the query heads of a group share keys and values.

The projections make as many key heads as there are groups; one group is multi-query attention.
"""

from __future__ import annotations

from torch import Tensor


def per_query_head(x: Tensor, heads: int) -> Tensor:
    """Repeats each key head for the query heads of its group: [B, G, S, K] → [B, H, S, K]."""
    if x.shape[1] == heads:
        return x
    return x.repeat_interleave(heads // x.shape[1], dim=1)
