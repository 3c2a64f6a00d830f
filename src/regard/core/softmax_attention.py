"""Softmax mixing: softmax(q kᵀ · scale) v over the pairs that may look (equation 1). The only door to the kernels.

`explicit` is the definition, written out; `fused` is the same function through PyTorch's kernels; `best` takes a sparse
kernel where little may be seen. All take
q [B,H,T,K], k [B,G,S,K], v [B,G,S,E] and return [B,H,T,E]. A query that may look at nothing gets zeros, never NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.core import block_sparse
from regard.core.cache import Cache, KVCache, SlidingWindowCache
from regard.core.mask import AttentionMask

Kernel = Callable[[Tensor, Tensor, Tensor, AttentionMask, float, float], Tensor]
HAS_TRITON = find_spec("triton") is not None
FEW = 16  # queries of a head
SHORT = 64  # places, of which one program holds all


def best(
    q: Tensor, k: Tensor, v: Tensor, attention_mask: AttentionMask, scale: float, dropout: float
) -> Tensor:
    if not attention_mask.sparse:
        return fused(q, k, v, attention_mask, scale, dropout)
    if q.device.type == "cuda" and dropout == 0 and attention_mask.term is None:
        return block_sparse.flex(q, k, v, attention_mask, scale, dropout)
    return block_sparse.blocked(q, k, v, attention_mask, scale, dropout)


def fused(
    q: Tensor, k: Tensor, v: Tensor, attention_mask: AttentionMask, scale: float, dropout: float
) -> Tensor:
    mask = None if attention_mask.all or attention_mask.causal else attention_mask.additive
    if q.is_cuda and HAS_TRITON:
        if dropout == 0 and _few(q, k, v) and (q.shape[2] == 1 or not attention_mask.causal):
            from regard.core.kernels import decode_step

            last, columns = attention_mask.last or (None, 1)
            return decode_step.attend(q, k, v, mask, scale, last=last, columns=columns).transpose(
                1, 2
            )
        if max(q.shape[2], k.shape[2]) <= SHORT and _alike(q, k, v, mask) and _worth(q):
            from regard.core.kernels import short_attention

            return short_attention.attention(q, k, v, mask, attention_mask.causal, scale, dropout)
    out = functional.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=mask,
        is_causal=attention_mask.causal,
        dropout_p=dropout,
        scale=scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )
    # CPU kernels give a blind query zeros; some CUDA kernels give it the mean of all values.
    return (
        out
        if mask is None or attention_mask.never_fully_masked or q.device.type == "cpu"
        else out.masked_fill(attention_mask.fully_masked, 0.0)
    )


def products(
    q: Tensor, k: Tensor, v: Tensor, attention_mask: AttentionMask, scale: float
) -> Tensor:
    """Few queries of many rows: two products in a batch, where query heads of a group are rows of one matrix. The kernel for
    whole texts takes twice as long. There may be more keys and values than the sight knows of, which are not looked at."""
    (rows, groups, count, d_k), heads, queries, seen = (
        k.shape,
        q.shape[1],
        q.shape[2],
        len(attention_mask.keys),
    )
    scores = torch.bmm((q * scale).reshape(rows * groups, -1, d_k), k.flatten(0, 1).mT)
    each = scores.view(rows, heads, queries, count)
    if seen < count:
        each[..., seen:] = float("-inf")
    if not attention_mask.all:
        each[..., :seen].masked_fill_(~attention_mask.mask, float("-inf"))
    weights = torch.softmax(scores, dim=-1)
    if not attention_mask.all and not attention_mask.never_fully_masked:
        weights.view_as(each).masked_fill_(attention_mask.fully_masked, 0.0)
    return torch.bmm(weights, v.flatten(0, 1)).view(rows, heads, queries, -1)


def _by_products(q: Tensor, k: Tensor, attention_mask: AttentionMask) -> bool:
    """Whether `products` is faster than the kernels for whole texts (LOG.md): all queries must see the same."""
    return (
        q.device.type == "cpu"
        and not torch.is_grad_enabled()
        and q.shape[2] <= FEW
        and k.shape[0] * k.shape[1] >= 32
        and attention_mask.plain
        and (attention_mask.all or attention_mask.mask.shape[2] == 1)
    )


def whole(width: int) -> bool:
    """Whether halves of a head of this width are what kernels can take."""
    return width in (32, 64, 128, 256)


def _few(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether these are the queries of one step of decoding: the next token, or that of each beam."""
    queries = q.shape[2] * (q.shape[1] // k.shape[1])
    wanted = torch.is_grad_enabled() or q.shape[2] > FEW or queries > 64
    return (
        not wanted
        and whole(q.shape[3])
        and q.shape[3] == v.shape[3]
        and q.dtype == k.dtype == v.dtype
    )


def _alike(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> bool:
    """Whether each head has keys of its own and all see the same places, and one program can hold a head."""
    heads = (
        q.shape[1] == k.shape[1]
        and max(q.shape[3], v.shape[3]) <= 128
        and q.dtype == k.dtype == v.dtype
    )
    return heads and (mask is None or (mask.dtype == torch.bool and mask.shape[1] == 1))


def _worth(q: Tensor) -> bool:
    """Whether a kernel for short texts is: that for all digits takes seconds to compile, which only training gains back."""
    return torch.is_grad_enabled() or q.dtype != torch.float32


def explicit(
    q: Tensor, k: Tensor, v: Tensor, attention_mask: AttentionMask, scale: float, dropout: float
) -> Tensor:
    weights = attention_weights(
        q, k, attention_mask.mask, scale, attention_mask.bias
    )  # [B, H, T, S]
    weights = functional.dropout(weights, dropout) if dropout > 0 else weights
    return weights @ per_query_head(v, q.shape[1])


def attention_weights(
    q: Tensor,
    k: Tensor,
    mask: Tensor,
    scale: float,
    bias: Tensor | None = None,
    top: int | None = None,
) -> Tensor:
    """softmax over the keys that may be seen, or the `top` of them; a row without any is all zeros."""
    scores = (q * scale) @ per_query_head(k, q.shape[1]).transpose(-1, -2)
    scores = scores if bias is None else scores + bias
    scores = scores.masked_fill(~mask, float("-inf"))
    fully_masked = ~mask.any(dim=-1, keepdim=True)
    scores = scores.masked_fill(fully_masked, 0.0)
    if top is None or top >= scores.shape[-1]:
        return torch.softmax(scores, dim=-1).masked_fill(fully_masked, 0.0)
    kept, where = scores.topk(top, dim=-1)
    weights = torch.softmax(kept, dim=-1).masked_fill(fully_masked, 0.0)
    return torch.zeros_like(scores).scatter(-1, where, weights)


def per_query_head(x: Tensor, heads: int) -> Tensor:
    """Repeats each key/value head for the query heads of its group: [B, G, S, K] → [B, H, S, K]."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], dim=1)


class SoftmaxAttention(nn.Module):
    """The mixer of the paper. `kernel` is `best`, `fused` or `explicit`; with `top`, only that many keys of each query
    count, which only the definition can do."""

    def __init__(
        self, scale: float, dropout: float, kernel: Kernel = best, *, top: int | None = None
    ) -> None:
        super().__init__()
        self.scale = scale
        self.dropout = dropout
        self.kernel = kernel
        self.top = top

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        attention_mask: AttentionMask,
        past: Cache | None = None,
    ) -> Tensor:
        dropout = self.dropout if self.training else 0.0
        if (
            self.kernel is best
            and self.top is None
            and dropout == 0
            and _by_products(q, k, attention_mask)
        ):
            return products(
                q,
                *(past.whole if isinstance(past, KVCache) else (k, v)),
                attention_mask,
                self.scale,
            )
        if self.top is None:
            return self.kernel(q, k, v, attention_mask, self.scale, dropout)
        weights = attention_weights(
            q, k, attention_mask.mask, self.scale, attention_mask.bias, self.top
        )
        weights = functional.dropout(weights, dropout) if dropout > 0 else weights
        return weights @ per_query_head(v, q.shape[1])

    def settle(self, attention_mask: AttentionMask) -> None:
        """Makes what all layers will ask of a sight before the first of them does: compiled layers are then all alike."""
        if attention_mask.bounded and attention_mask.queries.is_cuda:
            return  # asked by those only that must
        known = attention_mask.all, attention_mask.causal, attention_mask.sparse
        if self.kernel is explicit or self.top is not None:
            _ = attention_mask.mask
        elif not any(known) and attention_mask.relative is None:
            _ = (
                attention_mask.additive,
                attention_mask.never_fully_masked or attention_mask.fully_masked,
            )

    def weights(
        self,
        q: Tensor,
        k: Tensor,
        attention_mask: AttentionMask,
        rows: Tensor,
        heads: Tensor | None = None,
    ) -> Tensor:
        """What `forward` mixes with, for the rows of queries and the heads given."""
        bias = None if attention_mask.bias is None else attention_mask.bias[:, :, rows]
        if heads is not None:
            k = k[:, heads // (q.shape[1] // k.shape[1])]  # the key head of each query head's group
            q, bias = q[:, heads], bias[:, heads] if bias is not None else None
        return attention_weights(
            q[:, :, rows], k, attention_mask.asked(rows), self.scale, bias, self.top
        )

    def start(
        self,
        like: Tensor,
        rows: int,
        capacity: int,
        shape: tuple[int, int, int],
        max_lookback: int | None,
    ) -> KVCache | SlidingWindowCache:
        """An empty decoding state for `rows` sequences of at most `capacity` tokens; `shape` is (G, K, E). Where no query
        looks more than `behind` places back, older ones are forgotten."""
        groups, d_k, d_v = shape
        capacity = (
            -(-capacity // 64) * 64 if like.is_cuda else capacity
        )  # few sizes, aligned as kernels like them
        if max_lookback is not None and max_lookback < capacity:
            return SlidingWindowCache(
                like.new_empty(rows, groups, 0, d_k),
                like.new_empty(rows, groups, 0, d_v),
                max_lookback,
            )
        return KVCache.empty(like, rows, capacity, shape, shareable=True)
