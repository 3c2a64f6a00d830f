"""Multi-head attention pooling: a learned query gathers one vector of all positions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.core.attention import Attention
from regard.core.context import LayerContext
from regard.core.encoder_output import cross_mask
from regard.core.feedforward import FeedForward
from regard.core.linear import normal
from regard.core.norm import Norm


class AttentionPool(nn.Module):
    """Pooling by multi-head attention (Lee et al. 2019): [B, T, D] → [B, D]."""

    def __init__(
        self, d_model: int, attention: Attention, norm: Norm, feedforward: FeedForward
    ) -> None:
        super().__init__()
        self.query = nn.Parameter(normal(1, d_model)[0])
        self.attention = attention
        self.norm = norm
        self.feedforward = feedforward

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        query = self.query.to(x.dtype).expand(x.shape[0], 1, -1)  # [B, 1, D]
        mask = cross_mask(padding_mask, torch.arange(x.shape[1], device=x.device), x.shape[0])
        # The query itself is not added: there is no residual around the attention.
        pooled = self.attention(query, mask, None, LayerContext(), x)[:, 0]  # [B, D]
        return pooled + self.feedforward(self.norm(pooled))
