"""Softmax mixing: softmax(q kᵀ · scale) v over the pairs that may look (equation 1). The only door to the kernels.

`explicit` is the definition, written out; `fused` is the same function through PyTorch's kernels; `best` takes a sparse
kernel where little may be seen. All take
q [B,H,T,K], k [B,G,S,K], v [B,G,S,E] and return [B,H,T,E]. A query that may look at nothing gets zeros, never NaN.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.core import sparse
from regard.core.pattern import Sight
from regard.core.state import KeyValues, Past, Rolling

Kernel = Callable[[Tensor, Tensor, Tensor, Sight, float, float], Tensor]


def best(q: Tensor, k: Tensor, v: Tensor, sight: Sight, scale: float, dropout: float) -> Tensor:
    if not sight.sparse:
        return fused(q, k, v, sight, scale, dropout)
    if q.device.type == "cuda" and dropout == 0 and sight.term is None:
        return sparse.flex(q, k, v, sight, scale, dropout)
    return sparse.blocked(q, k, v, sight, scale, dropout)


def fused(q: Tensor, k: Tensor, v: Tensor, sight: Sight, scale: float, dropout: float) -> Tensor:
    mask = None if sight.all or sight.causal else sight.additive
    out = functional.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=mask,
        is_causal=sight.causal,
        dropout_p=dropout,
        scale=scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )
    # CPU kernels give a blind query zeros; some CUDA kernels give it the mean of all values.
    return out if mask is None or sight.sighted or q.device.type == "cpu" else out.masked_fill(sight.blind, 0.0)


def few(q: Tensor, k: Tensor, v: Tensor, scale: float, seen: int) -> Tensor:
    """Few queries of many rows, which see the first `seen` keys: two products in a batch, where query heads of a group are
    rows of one matrix. The kernel for whole texts takes twice as long."""
    (rows, groups, _, d_k), heads, queries = k.shape, q.shape[1], q.shape[2]
    scores = torch.bmm((q * scale).reshape(rows * groups, -1, d_k), k.flatten(0, 1).mT)
    scores[..., seen:] = float("-inf")
    return torch.bmm(torch.softmax(scores, dim=-1), v.flatten(0, 1)).view(rows, heads, queries, -1)


def _decodes(q: Tensor, k: Tensor) -> bool:
    """Whether `few` is faster than the kernels for whole texts (LOG.md)."""
    return q.device.type == "cpu" and not torch.is_grad_enabled() and q.shape[2] <= 8 and k.shape[0] * k.shape[1] >= 32


def explicit(q: Tensor, k: Tensor, v: Tensor, sight: Sight, scale: float, dropout: float) -> Tensor:
    weights = attention_weights(q, k, sight.mask, scale, sight.bias)  # [B, H, T, S]
    weights = functional.dropout(weights, dropout) if dropout > 0 else weights
    return weights @ per_query_head(v, q.shape[1])


def attention_weights(
    q: Tensor, k: Tensor, mask: Tensor, scale: float, bias: Tensor | None = None, top: int | None = None
) -> Tensor:
    """softmax over the keys that may be seen, or the `top` of them; a row without any is all zeros."""
    scores = (q * scale) @ per_query_head(k, q.shape[1]).transpose(-1, -2)
    scores = scores if bias is None else scores + bias
    scores = scores.masked_fill(~mask, float("-inf"))
    blind = ~mask.any(dim=-1, keepdim=True)
    scores = scores.masked_fill(blind, 0.0)
    if top is None or top >= scores.shape[-1]:
        return torch.softmax(scores, dim=-1).masked_fill(blind, 0.0)
    kept, where = scores.topk(top, dim=-1)
    weights = torch.softmax(kept, dim=-1).masked_fill(blind, 0.0)
    return torch.zeros_like(scores).scatter(-1, where, weights)


def per_query_head(x: Tensor, heads: int) -> Tensor:
    """Repeats each key/value head for the query heads of its group: [B, G, S, K] → [B, H, S, K]."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], dim=1)


class Softmax(nn.Module):
    """The mixer of the paper. `kernel` is `best`, `fused` or `explicit`; with `top`, only that many keys of each query
    count, which only the definition can do."""

    def __init__(self, scale: float, dropout: float, kernel: Kernel = best, *, top: int | None = None) -> None:
        super().__init__()
        self.scale = scale
        self.dropout = dropout
        self.kernel = kernel
        self.top = top

    def forward(self, q: Tensor, k: Tensor, v: Tensor, sight: Sight, past: Past | None = None) -> Tensor:
        dropout = self.dropout if self.training else 0.0
        if self.kernel is best and self.top is None and sight.all and _decodes(q, k):
            return few(q, *(past.whole if isinstance(past, KeyValues) else (k, v)), self.scale, seen=k.shape[2])
        if self.top is None:
            return self.kernel(q, k, v, sight, self.scale, dropout)
        weights = attention_weights(q, k, sight.mask, self.scale, sight.bias, self.top)
        weights = functional.dropout(weights, dropout) if dropout > 0 else weights
        return weights @ per_query_head(v, q.shape[1])

    def settle(self, sight: Sight) -> None:
        """Makes what all layers will ask of a sight before the first of them does: compiled layers are then all alike."""
        if self.kernel is explicit or self.top is not None:
            _ = sight.mask
        elif not (sight.all or sight.causal or sight.sparse or sight.relative is not None):
            _ = sight.additive, sight.sighted or sight.blind

    def weights(self, q: Tensor, k: Tensor, sight: Sight, rows: Tensor, heads: Tensor | None = None) -> Tensor:
        """What `forward` mixes with, for the rows of queries and the heads given."""
        bias = None if sight.bias is None else sight.bias[:, :, rows]
        if heads is not None:
            k = k[:, heads // (q.shape[1] // k.shape[1])]  # the key head of each query head's group
            q, bias = q[:, heads], bias[:, heads] if bias is not None else None
        return attention_weights(q[:, :, rows], k, sight.asked(rows), self.scale, bias, self.top)

    def start(
        self, like: Tensor, rows: int, capacity: int, shape: tuple[int, int, int], behind: int | None
    ) -> KeyValues | Rolling:
        """An empty decoding state for `rows` sequences of at most `capacity` tokens; `shape` is (G, K, E). Where no query
        looks more than `behind` places back, older ones are forgotten."""
        groups, d_k, d_v = shape
        capacity = -(-capacity // 16) * 16 if like.is_cuda else capacity  # as masks are aligned for its kernels
        if behind is not None and behind < capacity:
            return Rolling(like.new_empty(rows, groups, 0, d_k), like.new_empty(rows, groups, 0, d_v), behind)
        return KeyValues.empty(like, rows, capacity, shape, shareable=True)
