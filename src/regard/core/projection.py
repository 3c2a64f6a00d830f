"""Query, key and value projections: of one sequence, of two, with queries that are keys too, or
with one matrix for several of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from regard.core.caches.kv_cache import CrossKV
from regard.core.linear import Linear, dimensions
from regard.core.norm import LayerNorm, RMSNorm

Qkv = tuple[Tensor, Tensor, Tensor]


def split_heads(x: Tensor, heads: int) -> Tensor:
    """[B, T, H·K] → [B, H, T, K]"""
    return x.view(*x.shape[:-1], heads, -1).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """[B, H, T, E] → [B, T, H·E]"""
    return x.transpose(1, 2).flatten(-2)


class _Projection(nn.Module):
    """Sizes that all projections have. Key heads (`groups`) may be fewer than query heads."""

    def __init__(self, heads: int, groups: int, d_k: int, d_v: int) -> None:
        super().__init__()
        self.heads = heads
        self.groups = groups
        self.d_k = d_k
        self.d_v = d_v

    def extra_repr(self) -> str:
        return f"heads={self.heads}, key_heads={self.groups}, d_k={self.d_k}, d_v={self.d_v}"

    def _key_heads(self, heads: Tensor) -> Tensor:
        """The key heads that some query heads use: one each, or the one that all have in common."""
        assert self.groups in (1, self.heads), "grouped heads cannot be pruned one by one"
        if self.groups == self.heads:
            return heads
        return torch.arange(self.groups, device=heads.device)


class SelfProjection(_Projection):
    """Queries, keys and values of one sequence, in one matrix product."""

    def __init__(
        self, d_model: int, heads: int, groups: int, d_k: int, d_v: int, bias: str
    ) -> None:
        super().__init__(heads, groups, d_k, d_v)
        widths = (heads * d_k, groups * d_k, groups * d_v)  # of q, k and v
        biased = [letter in bias for letter in "qkv"]
        self.qkv = Linear(d_model, sum(widths), bias=biased, parts=widths)

    def forward(self, x: Tensor, memory: Tensor | CrossKV | None) -> Qkv:
        q, k, v = self.qkv(x).split(self.qkv.parts, dim=-1)
        # [B, H, T, K], [B, G, T, K], [B, G, T, E]
        return split_heads(q, self.heads), split_heads(k, self.groups), split_heads(v, self.groups)

    def keep(self, heads: Tensor) -> None:
        """Prunes all but these heads, with their keys and values."""
        key_heads = self._key_heads(heads)
        q_rows = dimensions(heads, self.d_k)
        k_rows = dimensions(key_heads, self.d_k)
        v_rows = dimensions(key_heads, self.d_v)
        self.qkv.keep_outputs([q_rows, k_rows, v_rows])
        self.heads = len(heads)
        self.groups = len(key_heads)


class NormedProjection(SelfProjection):
    """Queries and keys of one sequence, each head's normalised (QK-norm), and its values."""

    def __init__(
        self, *sizes: Any, q_norm: LayerNorm | RMSNorm, k_norm: LayerNorm | RMSNorm
    ) -> None:
        super().__init__(*sizes)  # those of `SelfProjection`
        self.q_norm = q_norm
        self.k_norm = k_norm

    def forward(self, x: Tensor, memory: Tensor | CrossKV | None) -> Qkv:
        q, k, v = super().forward(x, memory)
        return self.q_norm(q), self.k_norm(k), v


class JointProjection(SelfProjection):
    """Queries of one sequence, keys and values of another, by one fused matrix."""

    def forward(self, x: Tensor, memory: Tensor | CrossKV | None) -> Qkv:
        assert isinstance(memory, Tensor), "there is something to attend to, and no cache of it"
        q, _, _ = self.qkv(x).split(self.qkv.parts, dim=-1)
        # The queries of the memory are computed and left: the matrix is one, the layer one of many.
        _, k, v = self.qkv(memory).split(self.qkv.parts, dim=-1)
        return split_heads(q, self.heads), split_heads(k, self.groups), split_heads(v, self.groups)


class CrossProjection(_Projection):
    """Queries of one sequence; keys and values of another, or as they were cached."""

    def __init__(
        self, d_model: int, heads: int, groups: int, d_k: int, d_v: int, bias: str
    ) -> None:
        super().__init__(heads, groups, d_k, d_v)
        widths = (groups * d_k, groups * d_v)  # of k and v
        self.q = Linear(d_model, heads * d_k, bias="q" in bias)
        biased = [letter in bias for letter in "kv"]
        self.kv = Linear(d_model, sum(widths), bias=biased, parts=widths)

    def keys_and_values(self, memory: Tensor) -> CrossKV:
        """Keys and values of the encoder memory [B, S, D]: [B, G, S, K] and [B, G, S, E]."""
        k, v = self.kv(memory).split(self.kv.parts, dim=-1)
        return CrossKV(split_heads(k, self.groups), split_heads(v, self.groups))

    def forward(self, x: Tensor, memory: Tensor | CrossKV | None) -> Qkv:
        assert memory is not None, "cross-attention needs something to attend to"
        if not isinstance(memory, CrossKV):
            memory = self.keys_and_values(memory)
        return split_heads(self.q(x), self.heads), memory.k, memory.v

    def keep(self, heads: Tensor) -> None:
        """Prunes all but these heads, with their keys and values."""
        key_heads = self._key_heads(heads)
        self.q.keep_outputs([dimensions(heads, self.d_k)])
        self.kv.keep_outputs([dimensions(key_heads, self.d_k), dimensions(key_heads, self.d_v)])
        self.heads = len(heads)
        self.groups = len(key_heads)


class SharedProjection(_Projection):
    """Shared QK (Reformer): values, and queries that are keys too, at length 1 (Kitaev et al.
    2020)."""

    def __init__(
        self, d_model: int, heads: int, groups: int, d_k: int, d_v: int, bias: str
    ) -> None:
        super().__init__(heads, groups, d_k, d_v)
        widths = (heads * d_k, groups * d_v)  # of q, which is k too, and v
        biased = [letter in bias for letter in "qv"]
        self.qv = Linear(d_model, sum(widths), bias=biased, parts=widths)

    def forward(self, x: Tensor, memory: Tensor | CrossKV | None) -> Qkv:
        q, v = self.qv(x).split(self.qv.parts, dim=-1)
        q = split_heads(q, self.heads)  # [B, H, T, K]
        # Hugging Face adds 1e-6 to the mean of the squares; here it is their sum.
        k = q * (q.square().sum(dim=-1, keepdim=True) + 1e-6 * self.d_k).rsqrt()
        return q, k, split_heads(v, self.groups)

    def keep(self, heads: Tensor) -> None:
        raise AssertionError("hashes are drawn for each head")


class TiedProjection(_Projection):
    """Tied projections: one matrix for queries, keys and values (`qkv`), or for two (`qk`, `kv`).

    With `qkv` or `qk`, scores are those of a symmetric form: x W Wᵀ xᵀ.
    """

    def __init__(
        self,
        d_model: int,
        heads: int,
        groups: int,
        d_k: int,
        d_v: int,
        bias: str,
        *,
        tied: str,
    ) -> None:
        super().__init__(heads, groups, d_k, d_v)
        self.tied = tied
        # A matrix is called by the first of its letters: `q` and `v` remain of `qk`.
        self.letters = [letter for letter in "qkv" if letter not in tied[1:]]
        widths = {"q": heads * d_k, "k": groups * d_k, "v": groups * d_v}
        parts = [widths[letter] for letter in self.letters]
        biased = [letter in bias for letter in self.letters]
        self.maps = Linear(d_model, sum(parts), bias=biased, parts=parts)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, tied={self.tied}"

    def forward(self, x: Tensor, memory: Tensor | CrossKV | None) -> Qkv:
        maps = self.maps(x).split(self.maps.parts, dim=-1)
        by_letter = dict(zip(self.letters, maps, strict=True))
        for letter in self.tied[1:]:
            by_letter[letter] = by_letter[self.tied[0]]
        # [B, H, T, K], [B, G, T, K], [B, G, T, E]
        return (
            split_heads(by_letter["q"], self.heads),
            split_heads(by_letter["k"], self.groups),
            split_heads(by_letter["v"], self.groups),
        )

    def keep(self, heads: Tensor) -> None:
        """Prunes all but these heads, with their keys and values."""
        key_heads = self._key_heads(heads)
        rows = {
            "q": dimensions(heads, self.d_k),
            "k": dimensions(key_heads, self.d_k),
            "v": dimensions(key_heads, self.d_v),
        }
        self.maps.keep_outputs([rows[letter] for letter in self.letters])
        self.heads = len(heads)
        self.groups = len(key_heads)


Projection = SelfProjection | CrossProjection | SharedProjection | TiedProjection


def per_query_head(x: Tensor, heads: int) -> Tensor:
    """Repeats each key head for the query heads of its group: [B, G, S, K] → [B, H, S, K]."""
    if x.shape[1] == heads:
        return x
    return x.repeat_interleave(heads // x.shape[1], dim=1)
