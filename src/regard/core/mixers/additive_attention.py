"""Additive attention (Bahdanau et al. 2015): a score by a small network instead of a product."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.core.linear import normal
from regard.core.mixers.explicit_attention import ExplicitAttention
from regard.core.mixers.scaled_dot_product_attention import masked_softmax


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
