"""Attention over fewer keys: the length is projected (Wang et al. 2020, Linformer)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.core.cache import Cache, KVCache
from regard.core.mask import AttentionMask
from regard.core.softmax_attention import per_query_head
from regard.errors import DataError


class LengthProjection(nn.Module):
    """Maps `length` places to `rank`: one matrix for each of `heads`, or one for all; another for values, or the same."""

    def __init__(self, length: int, rank: int, heads: int, *, values: bool) -> None:
        super().__init__()
        self.keys = nn.Parameter(_normal(heads, rank, length))
        self.values = nn.Parameter(_normal(heads, rank, length)) if values else None

    def forward(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """[B, G, S, ·] → [B, G, rank, ·]"""
        return self.of_keys(k.shape[2]) @ k, self.of_values(v.shape[2]) @ v

    def of_keys(self, length: int) -> Tensor:
        known = self.keys.shape[-1]
        if length > known:
            raise DataError(
                f"the input has {length} positions, but this model projects at most {known}",
                "split the text into shorter lines, or train with a larger `length`",
            )
        return self.keys[..., :length]

    def of_values(self, length: int) -> Tensor:
        return self.of_keys(length) if self.values is None else self.values[..., :length]


def _normal(heads: int, rank: int, length: int) -> Tensor:
    table = torch.empty(heads, rank, length)
    return table if table.is_meta else table.normal_(std=rank**-0.5)


class Linformer(nn.Module):
    """softmax(q (E k)ᵀ) F v. Padding counts as zeros, so it changes nothing."""

    def __init__(self, scale: float, dropout: float, lengths: LengthProjection) -> None:
        super().__init__()
        self.scale, self.dropout = scale, dropout
        self.lengths = lengths

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        attention_mask: AttentionMask,
        past: Cache | None = None,
    ) -> Tensor:
        _, padding_mask = attention_mask.factors()
        seen = padding_mask[:, None, :, None]
        k, v = self.lengths(k * seen, v * seen)
        dropout = self.dropout if self.training else 0.0
        gqa = q.shape[1] != k.shape[1]
        return functional.scaled_dot_product_attention(
            q, k, v, dropout_p=dropout, scale=self.scale, enable_gqa=gqa
        )

    def weights(
        self,
        q: Tensor,
        k: Tensor,
        attention_mask: AttentionMask,
        rows: Tensor,
        heads: Tensor | None = None,
    ) -> Tensor:
        """What each place's value is multiplied with in the end. These need not be positive nor sum to one."""
        _, padding_mask = attention_mask.factors()
        few = per_query_head(
            self.lengths.of_keys(k.shape[2]) @ (k * padding_mask[:, None, :, None]), q.shape[1]
        )
        weights = torch.softmax(q[:, :, rows] * self.scale @ few.mT, dim=-1)
        back = self.lengths.of_values(k.shape[2])
        found: Tensor = (
            weights
            @ (back if len(back) == 1 else back.repeat_interleave(q.shape[1] // len(back), dim=0))
            * (padding_mask[:, None, None, :])
        )
        return found if heads is None else found[:, heads]

    def start(
        self,
        like: Tensor,
        rows: int,
        capacity: int,
        shape: tuple[int, int, int],
        max_lookback: int | None,
    ) -> KVCache:
        raise AssertionError("a projection of the whole length has no past")  # the spec refuses it
