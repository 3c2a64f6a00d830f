"""Attention kernels that make weights, then a weighted sum: a base class for those from outside the
package, and additive attention (Bahdanau et al. 2015).

A kernel of one's own says how attention weights come from queries and keys. Grouped-query heads,
masks, dropout, the KV cache and the weights that a probe asks for are the same for all of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.core.attention import Mixer
from regard.core.caches.kv_cache import Cache
from regard.core.linear import normal
from regard.core.masks.attention_mask import AttentionMask, ScoreBias
from regard.core.mixers.scaled_dot_product_attention import masked_softmax
from regard.core.projection import per_query_head


class ExplicitAttention(Mixer, ABC):
    """Abstract attention kernel: out = weights(q, k) v. A subclass defines `attention_weights`."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = dropout

    @abstractmethod
    def attention_weights(
        self, q: Tensor, k: Tensor, allowed: Tensor, bias: Tensor | None
    ) -> Tensor:
        """q [B, H, T, K], k [B, H, S, K] → weights [B, H, T, S].

        `allowed` [B or 1, H or 1, T or 1, S] is True where a query may attend to a key: a sum over
        keys must leave out the others, whose own weights are set to zero afterwards. `bias`
        [B or 1, H, T, S] is what positions add to the scores (T5, ALiBi), if there are any.
        """

    def extra_repr(self) -> str:
        return f"dropout={self.dropout}"

    def forward(
        self,
        q: Tensor,  # [B, H, T, K]
        k: Tensor,  # [B, G, S, K]
        v: Tensor,  # [B, G, S, E]
        mask: AttentionMask,
        bias: ScoreBias | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """[B, H, T, E]. Keys and values already include those of the cache."""
        rows = torch.arange(q.shape[2], device=q.device)
        weights = self.weights(q, k, mask, rows, bias=bias)  # [B, H, T, S]
        weights = functional.dropout(weights, self.dropout, self.training)
        return weights @ per_query_head(v, q.shape[1])

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
        allowed = mask.for_rows(rows)
        bias_tensor = None if bias is None else bias.tensor(mask)[:, :, rows]
        k = per_query_head(k, q.shape[1])
        weights = self.attention_weights(q[:, :, rows], k, allowed, bias_tensor)
        weights = weights.masked_fill(~allowed, 0.0)
        # All were computed: a kernel may have parameters for each head.
        return weights if heads is None else weights[:, heads]


# ------------------------------------------------------------------ additive attention


def additive_scores(q: Tensor, k: Tensor, direction: Tensor) -> Tensor:
    """w · tanh(q + k) of every pair of q [B, H, T, K] and k [B, H, S, K]: [B, H, T, S].

    `direction` [K], or [H, K], is w. The hidden layer of all pairs, [B, H, T, S, K], is what makes
    additive attention slower than products of equal complexity (Section 3.2.1).
    """
    hidden = torch.tanh(q[:, :, :, None] + k[:, :, None])
    if direction.ndim == 1:
        return hidden @ direction
    return torch.einsum("bhtsk,hk->bhts", hidden, direction)


class AdditiveAttention(ExplicitAttention):
    """softmax(w_h · tanh(q + k)) v in each head h, for queries and keys that the layer projects."""

    def __init__(self, heads: int, d_k: int, dropout: float) -> None:
        super().__init__(dropout)
        self.direction = nn.Parameter(normal(heads, d_k))  # w_h: [H, K]

    def extra_repr(self) -> str:
        heads, width = self.direction.shape
        return f"heads={heads}, width={width}, dropout={self.dropout}"

    def attention_weights(
        self, q: Tensor, k: Tensor, allowed: Tensor, bias: Tensor | None
    ) -> Tensor:
        scores = additive_scores(q, k, self.direction)  # [B, H, T, S]
        if bias is not None:
            scores = scores + bias
        return masked_softmax(scores, allowed)
