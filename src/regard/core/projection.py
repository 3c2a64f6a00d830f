"""Query, key and value projections: of one sequence, of two, with queries that are keys too, or
with one matrix for several of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from regard.core.caches.kv_cache import CrossKV
from regard.core.linear import Linear, dimensions
from regard.core.norm import LayerNorm, RMSNorm

if TYPE_CHECKING:
    from regard import spec

Qkv = tuple[Tensor, Tensor, Tensor]
Memory = Tensor | CrossKV | None  # what cross-attention attends to, or its keys and values


def split_heads(x: Tensor, heads: int) -> Tensor:
    """[B, T, H·K] → [B, H, T, K]"""
    return x.view(*x.shape[:-1], heads, -1).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """[B, H, T, E] → [B, T, H·E]"""
    return x.transpose(1, 2).flatten(-2)


class Projection(nn.Module):
    """Abstract: maps to queries, keys and values, each with widths of its own. Key heads (`groups`)
    may be fewer than query heads."""

    def __init__(self, part: spec.Attention) -> None:
        super().__init__()
        self.heads = part.heads
        self.groups = part.key_heads
        self.d_k = part.d_k
        self.d_v = part.d_v

    def extra_repr(self) -> str:
        return f"heads={self.heads}, key_heads={self.groups}, d_k={self.d_k}, d_v={self.d_v}"

    def matrices(self) -> dict[str, Linear]:
        """The matrices, by the letters of what each gives: queries, keys and values."""
        raise NotImplementedError

    def shift(self, x: Tensor, letter: str) -> Tensor:
        """What adding x [B, T, D] to what is projected adds to queries (`q`) or keys (`k`)."""
        heads = self.heads if letter == "q" else self.groups
        letters, part = next(item for item in self.matrices().items() if letter in item[0])
        return split_heads(part.shift(x, letters.index(letter)), heads)

    def keep(self, heads: Tensor) -> None:
        """Prunes all but these heads, with their keys and values."""
        assert self.groups in (1, self.heads), "grouped heads cannot be pruned one by one"
        key_heads = heads  # one each, or the one that all have in common
        if self.groups < self.heads:
            key_heads = torch.arange(self.groups, device=heads.device)
        rows = {
            "q": dimensions(heads, self.d_k),
            "k": dimensions(key_heads, self.d_k),
            "v": dimensions(key_heads, self.d_v),
        }
        for letters, part in self.matrices().items():
            part.keep_outputs([rows[letter] for letter in letters])
        self.heads = len(heads)
        self.groups = len(key_heads)

    def _map(self, part: spec.Attention, d_model: int, letters: str) -> Linear:
        """One matrix for several of queries, keys and values."""
        widths = {
            "q": self.heads * self.d_k,
            "k": self.groups * self.d_k,
            "v": self.groups * self.d_v,
        }
        parts = [widths[letter] for letter in letters]
        biased = [letter in part.bias for letter in letters]
        return Linear(d_model, sum(parts), bias=biased, parts=parts)


class SelfProjection(Projection):
    """Queries, keys and values of one sequence, in one matrix product."""

    def __init__(self, part: spec.Attention, d_model: int) -> None:
        super().__init__(part)
        self.qkv = self._map(part, d_model, "qkv")

    def matrices(self) -> dict[str, Linear]:
        return {"qkv": self.qkv}

    def forward(self, x: Tensor, memory: Memory) -> Qkv:
        q, k, v = self.qkv(x).split(self.qkv.parts, dim=-1)
        # [B, H, T, K], [B, G, T, K], [B, G, T, E]
        return split_heads(q, self.heads), split_heads(k, self.groups), split_heads(v, self.groups)


class NormedProjection(SelfProjection):
    """Queries and keys of one sequence, each head's normalised (QK-norm), and its values."""

    def __init__(
        self,
        part: spec.Attention,
        d_model: int,
        q_norm: LayerNorm | RMSNorm,
        k_norm: LayerNorm | RMSNorm,
    ) -> None:
        super().__init__(part, d_model)
        self.q_norm = q_norm
        self.k_norm = k_norm

    def forward(self, x: Tensor, memory: Memory) -> Qkv:
        q, k, v = super().forward(x, memory)
        return self.q_norm(q), self.k_norm(k), v


class JointProjection(SelfProjection):
    """Queries of one sequence, keys and values of another, by one fused matrix."""

    def forward(self, x: Tensor, memory: Memory) -> Qkv:
        assert isinstance(memory, Tensor), "there is something to attend to, and no cache of it"
        q, _, _ = self.qkv(x).split(self.qkv.parts, dim=-1)
        # The queries of the memory are computed and left: the matrix is one, the layer one of many.
        _, k, v = self.qkv(memory).split(self.qkv.parts, dim=-1)
        return split_heads(q, self.heads), split_heads(k, self.groups), split_heads(v, self.groups)


class CrossProjection(Projection):
    """Queries of one sequence; keys and values of another, or as they were cached."""

    def __init__(self, part: spec.Attention, d_model: int) -> None:
        super().__init__(part)
        self.q = self._map(part, d_model, "q")
        self.kv = self._map(part, part.memory or d_model, "kv")

    def matrices(self) -> dict[str, Linear]:
        return {"q": self.q, "kv": self.kv}

    def keys_and_values(self, memory: Tensor) -> CrossKV:
        """Keys and values of the encoder memory [B, S, D]: [B, G, S, K] and [B, G, S, E]."""
        k, v = self.kv(memory).split(self.kv.parts, dim=-1)
        return CrossKV(split_heads(k, self.groups), split_heads(v, self.groups))

    def forward(self, x: Tensor, memory: Memory) -> Qkv:
        assert memory is not None, "cross-attention needs something to attend to"
        if not isinstance(memory, CrossKV):
            memory = self.keys_and_values(memory)
        return split_heads(self.q(x), self.heads), memory.k, memory.v


class NormedCrossProjection(CrossProjection):
    """The same, with a norm of each head's queries and keys."""

    def __init__(
        self,
        part: spec.Attention,
        d_model: int,
        q_norm: LayerNorm | RMSNorm,
        k_norm: LayerNorm | RMSNorm,
    ) -> None:
        super().__init__(part, d_model)
        self.q_norm = q_norm
        self.k_norm = k_norm

    def keys_and_values(self, memory: Tensor) -> CrossKV:
        cached = super().keys_and_values(memory)
        return CrossKV(self.k_norm(cached.k), cached.v)

    def forward(self, x: Tensor, memory: Memory) -> Qkv:
        q, k, v = super().forward(x, memory)
        return self.q_norm(q), k, v


class SharedProjection(Projection):
    """Shared QK (Reformer): values, and queries that are keys too, at length 1 (Kitaev et al.
    2020)."""

    def __init__(self, part: spec.Attention, d_model: int) -> None:
        super().__init__(part)
        self.qv = self._map(part, d_model, "qv")

    def matrices(self) -> dict[str, Linear]:
        return {"qv": self.qv}

    def forward(self, x: Tensor, memory: Memory) -> Qkv:
        q, v = self.qv(x).split(self.qv.parts, dim=-1)
        q = split_heads(q, self.heads)  # [B, H, T, K]
        # Hugging Face adds 1e-6 to the mean of the squares; here it is their sum.
        k = q * (q.square().sum(dim=-1, keepdim=True) + 1e-6 * self.d_k).rsqrt()
        return q, k, split_heads(v, self.groups)


class TiedProjection(Projection):
    """Tied projections: one matrix for queries, keys and values (`qkv`), or for two (`qk`, `kv`).

    With `qkv` or `qk`, scores are those of a symmetric form: x W Wᵀ xᵀ.
    """

    def __init__(self, part: spec.Attention, d_model: int) -> None:
        super().__init__(part)
        self.tied = part.projection.removeprefix("tied_")
        # A matrix is called by the first of its letters: `q` and `v` remain of `qk`.
        self.letters = "".join(letter for letter in "qkv" if letter not in self.tied[1:])
        self.maps = self._map(part, d_model, self.letters)

    def matrices(self) -> dict[str, Linear]:
        return {self.letters: self.maps}

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, tied={self.tied}"

    def forward(self, x: Tensor, memory: Memory) -> Qkv:
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


def per_query_head(x: Tensor, heads: int) -> Tensor:
    """Repeats each key head for the query heads of its group: [B, G, S, K] → [B, H, S, K]."""
    if x.shape[1] == heads:
        return x
    return x.repeat_interleave(heads // x.shape[1], dim=1)
