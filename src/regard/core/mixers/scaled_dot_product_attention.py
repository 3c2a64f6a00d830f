"""Scaled dot-product attention: softmax(q kᵀ · scale) v over pairs that may attend (equation 1).

Selects the attention kernel. `explicit` is the definition, written out; `fused` is the same
function through PyTorch's kernels (FlashAttention and others) or our own; `dispatch` takes a
block-sparse kernel if the mask is sparse. All take q [B,H,T,K], k [B,G,S,K], v [B,G,S,E] and
return [B,H,T,E]. A query that may attend to nothing gets zeros, never NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.core.attention import Mixer
from regard.core.caches.kv_cache import Cache, KVCache
from regard.core.linear import keep_rows
from regard.core.masks.attention_mask import AttentionMask, ScoreBias, additive_mask
from regard.core.masks.mask_blocks import is_pointwise
from regard.core.mixers import block_sparse_attention, edge_attention
from regard.core.projection import per_query_head

Kernel = Callable[..., Tensor]  # (q, k, v, mask, scale, dropout, bias)
HAS_TRITON = find_spec("triton") is not None
MAX_FEW_QUERIES = 16  # queries of a head in a decoding step
MIN_DROPOUT = 1e-9  # smaller rates count as 0
MAX_SHORT = 64  # positions of a short sequence, of which one Triton program holds all


# ------------------------------------------------------------------ kernels


def dispatch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: AttentionMask,
    scale: float,
    dropout: float,
    bias: ScoreBias | None = None,
) -> Tensor:
    """Attention by the fastest kernel: along edges or block-sparse if the mask is sparse, otherwise
    a fused dense one."""
    edges = edge_attention.edges_of(mask)
    if edges is not None:
        return edge_attention.attend(q, k, v, edges, mask, scale, dropout, bias)
    if not mask.is_sparse or (bias is not None and bias.is_dense):
        return fused(q, k, v, mask, scale, dropout, bias)
    # FlexAttention neither drops weights nor takes a bias here.
    if q.is_cuda and dropout == 0 and bias is None and is_pointwise(mask.pattern):
        return block_sparse_attention.flex(q, k, v, mask, scale)
    return block_sparse_attention.blocked(q, k, v, mask, scale, dropout, bias)


def fused(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: AttentionMask,
    scale: float,
    dropout: float,
    bias: ScoreBias | None = None,
) -> Tensor:
    """Dense attention by a fused kernel: Triton's for few queries or short sequences, or
    PyTorch's."""
    # PyTorch takes `is_causal` or `attn_mask`, never both.
    causal = bias is None and mask.is_causal
    tensor = None  # of a full or causal mask
    if bias is not None or not (mask.is_full or causal):
        tensor = additive_mask(mask, bias)
    # PyTorch takes a tiny rate for 0 when it selects a kernel, but not inside the kernel.
    if dropout < MIN_DROPOUT:
        dropout = 0.0
    if q.is_cuda and HAS_TRITON:
        if dropout == 0 and _has_few_queries(q, k, v) and (q.shape[2] == 1 or not causal):
            from regard.core.kernels import decode_step

            last, columns = mask.limit or (None, 1)
            out = decode_step.attend(q, k, v, tensor, scale, last=last, columns=columns)
            return out.transpose(1, 2)  # [B, T, H, E] → [B, H, T, E]
        if _is_short(q, k, v, tensor):
            from regard.core.kernels import short_attention

            return short_attention.attention(q, k, v, tensor, causal, scale, dropout)
    out = functional.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=tensor,
        is_causal=causal,
        dropout_p=dropout,
        scale=scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )
    # CPU kernels give a fully masked query zeros; some CUDA kernels the mean of all values.
    if tensor is None or mask.never_fully_masked or q.device.type == "cpu":
        return out
    return out.masked_fill(mask.fully_masked, 0.0)


def few_query_products(
    q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask, scale: float
) -> Tensor:
    """Few queries of many rows on a CPU: two batched products, where the query heads of a group are
    rows of one matrix. The kernel for whole texts takes twice as long. There may be more keys and
    values than the mask knows of, which are not attended to."""
    rows, groups, count, d_k = k.shape
    heads = q.shape[1]
    queries = q.shape[2]
    visible = len(mask.keys)
    # [B·G, (H/G)·T, S]
    scores = torch.bmm((q * scale).reshape(rows * groups, -1, d_k), k.flatten(0, 1).mT)
    # A view: −∞ is written through it.
    by_head = scores.view(rows, heads, queries, count)
    if visible < count:
        by_head[..., visible:] = float("-inf")
    if not mask.is_full:
        by_head[..., :visible].masked_fill_(~mask.allowed, float("-inf"))
    weights = torch.softmax(scores, dim=-1)
    if not mask.is_full and not mask.never_fully_masked:
        weights.view_as(by_head).masked_fill_(mask.fully_masked, 0.0)
    return torch.bmm(weights, v.flatten(0, 1)).view(rows, heads, queries, -1)


def explicit(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: AttentionMask,
    scale: float,
    dropout: float,
    bias: ScoreBias | None = None,
) -> Tensor:
    """The definition: scores, softmax, weighted sum."""
    weights = attention_weights(q, k, mask.allowed, scale, _bias_tensor(mask, bias))  # [B, H, T, S]
    if dropout > 0:
        weights = functional.dropout(weights, dropout)
    return weights @ per_query_head(v, q.shape[1])


def attention_weights(
    q: Tensor,
    k: Tensor,
    allowed: Tensor,
    scale: float,
    bias: Tensor | None = None,
    top: int | None = None,
    cap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Softmax over the allowed keys, or the `top` of them; a fully masked row is all zeros. The
    scores are soft-capped by `cap`; `sinks` [H] are scores that take their share and give
    nothing."""
    scores = (q * scale) @ per_query_head(k, q.shape[1]).transpose(-1, -2)  # [B, H, T, S]
    if cap is not None:
        scores = cap * torch.tanh(scores / cap)
    if bias is not None:
        scores = scores + bias
    return masked_softmax(scores, allowed, top, sinks)


def masked_softmax(
    scores: Tensor, allowed: Tensor, top: int | None = None, sinks: Tensor | None = None
) -> Tensor:
    """Softmax over the allowed keys, or the `top` of them; a fully masked row is all zeros."""
    scores = scores.masked_fill(~allowed, float("-inf"))
    fully_masked = ~allowed.any(dim=-1, keepdim=True)
    # A softmax over −∞ alone is NaN, and so is its gradient.
    scores = scores.masked_fill(fully_masked, 0.0)
    if top is None or top >= scores.shape[-1]:
        return _softmax(scores, sinks).masked_fill(fully_masked, 0.0)
    best, index = scores.topk(top, dim=-1)
    weights = _softmax(best, sinks).masked_fill(fully_masked, 0.0)
    return torch.zeros_like(scores).scatter(-1, index, weights)


def _softmax(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """The softmax of scores [B, H, T, S] beside the sink of each head, which is left out of it."""
    if sinks is None:
        return torch.softmax(scores, dim=-1)
    sink = sinks.to(scores.dtype)[:, None, None].expand(*scores.shape[:-1], 1)
    return torch.softmax(torch.cat([scores, sink], dim=-1), dim=-1)[..., :-1]


# ------------------------------------------------------------------ which kernel fits


def _few_products_fit(q: Tensor, k: Tensor, mask: AttentionMask, bias: ScoreBias | None) -> bool:
    """Whether `few_query_products` is faster than the kernels for whole texts (log). All queries
    must see the same."""
    return (
        q.device.type == "cpu"
        and not torch.is_grad_enabled()
        and q.shape[2] <= MAX_FEW_QUERIES
        and k.shape[0] * k.shape[1] >= 32
        and bias is None
        and (mask.is_full or mask.allowed.shape[2] == 1)
    )


def is_kernel_width(width: int) -> bool:
    """Whether halves of a head of this width are what Triton kernels can take."""
    return width in (32, 64, 128, 256)


def _has_few_queries(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether these are the queries of one decoding step: the next token, or that of each beam."""
    if torch.is_grad_enabled() or q.shape[2] > MAX_FEW_QUERIES:
        return False
    queries_per_group = q.shape[2] * (q.shape[1] // k.shape[1])
    if queries_per_group > 64 or not is_kernel_width(q.shape[3]):
        return False
    return q.shape[3] == v.shape[3] and q.dtype == k.dtype == v.dtype


def _is_short(q: Tensor, k: Tensor, v: Tensor, tensor: Tensor | None) -> bool:
    """Whether one Triton program should hold a head: short, each head with keys of its own, and a
    mask that is alike for all heads."""
    if max(q.shape[2], k.shape[2]) > MAX_SHORT:
        return False
    if q.shape[1] != k.shape[1] or max(q.shape[3], v.shape[3]) > 128:
        return False
    if not q.dtype == k.dtype == v.dtype:
        return False
    # float32 Triton kernels compile slowly, and are faster only on tensor cores, with TF32.
    learns_in_tf32 = torch.is_grad_enabled() and torch.backends.cuda.matmul.allow_tf32
    if q.dtype == torch.float32 and not learns_in_tf32:
        return False
    return tensor is None or (tensor.dtype == torch.bool and tensor.shape[1] == 1)


# ------------------------------------------------------------------ the part


class SoftmaxAttention(Mixer):
    """Scaled dot-product attention: softmax(scale · q kᵀ + bias) v. `kernel` is `dispatch`, `fused`
    or `explicit`. What only the definition can do: of each query, the `top` keys alone count;
    scores are soft-capped by `cap`; each of so many heads (`sinks`) has an attention sink."""

    def __init__(
        self,
        scale: float,
        dropout: float,
        kernel: Kernel = dispatch,
        *,
        top: int | None = None,
        cap: float | None = None,
        sinks: int | None = None,
    ) -> None:
        super().__init__()
        self.scale = scale
        self.dropout = dropout
        self.kernel = kernel
        self.top = top
        self.cap = cap
        self.sinks = nn.Parameter(torch.zeros(sinks)) if sinks else None

    @property
    def is_plain(self) -> bool:
        """Whether kernels can compute it, and not the definition alone."""
        return self.top is None and self.cap is None and self.sinks is None

    def extra_repr(self) -> str:
        return f"scale={self.scale:.4g}, dropout={self.dropout}"

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: AttentionMask,
        bias: ScoreBias | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """[B, H, T, E]"""
        dropout = self.dropout * self.training
        if not self.is_plain:
            weights = self._weights(q, k, mask.allowed, _bias_tensor(mask, bias), self.sinks)
            if dropout > 0:
                weights = functional.dropout(weights, dropout)
            return weights @ per_query_head(v, q.shape[1])
        if self.kernel is dispatch and dropout == 0 and _few_products_fit(q, k, mask, bias):
            if isinstance(cache, KVCache):
                k, v = cache.buffers
            return few_query_products(q, k, v, mask, self.scale)
        return self.kernel(q, k, v, mask, self.scale, dropout, bias)

    def prepare(self, mask: AttentionMask, bias: ScoreBias | None) -> None:
        """Makes what all layers will ask of a mask before the first of them does: compiled layers
        are then all alike."""
        if bias is None and mask.is_bounded and mask.queries.is_cuda:
            return  # made by those kernels only that need it
        if self.kernel is explicit or not self.is_plain:
            _ = mask.allowed
            return
        if edge_attention.edges_of(mask) is not None:
            return
        if mask.is_sparse and (bias is None or not bias.is_dense):
            return
        if bias is None and (mask.is_full or mask.is_causal):
            return
        additive_mask(mask, bias)
        if not mask.never_fully_masked:
            _ = mask.fully_masked

    def weights(
        self,
        q: Tensor,
        k: Tensor,
        mask: AttentionMask,
        rows: Tensor,
        heads: Tensor | None = None,
        bias: ScoreBias | None = None,
    ) -> Tensor:
        """The attention weights of some query rows and heads: [B, heads, rows, S]."""
        tensor = _bias_tensor(mask, bias)
        if tensor is not None:
            tensor = tensor[:, :, rows]  # [B or 1, H, rows, S]
        sinks: Tensor | None = self.sinks
        if heads is not None:
            k = k[:, heads // (q.shape[1] // k.shape[1])]  # the key head of each query head's group
            q = q[:, heads]
            if tensor is not None:
                tensor = tensor[:, heads]
            if sinks is not None:
                sinks = sinks[heads]
        return self._weights(q[:, :, rows], k, mask.for_rows(rows), tensor, sinks)

    def _weights(
        self, q: Tensor, k: Tensor, allowed: Tensor, bias: Tensor | None, sinks: Tensor | None
    ) -> Tensor:
        return attention_weights(q, k, allowed, self.scale, bias, self.top, self.cap, sinks)

    def keep(self, heads: Tensor) -> None:
        if self.sinks is not None:
            keep_rows(self, "sinks", heads)


def _bias_tensor(mask: AttentionMask, bias: ScoreBias | None) -> Tensor | None:
    return None if bias is None else bias.tensor(mask)
