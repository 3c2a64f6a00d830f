"""Attention of recurrent decoders: additive (Bahdanau et al. 2015) and multiplicative (Luong et al.
2015), with one head that reads the encoder memory.

`SoftmaxAttention` computes scores that are products of vectors. Here are the additive score, and
the attention layer of a decoder with either. Keys are projected once for all queries.
"""

# Letters of shapes: B sentences, W beams of each, S source and T target positions, D d_model,
# K the width of keys, E that of values.

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.core.caches.kv_cache import CrossKV
from regard.core.linear import Linear, normal
from regard.core.masks.attention_mask import AttentionMask, ScoreBias
from regard.core.mixers.explicit_attention import additive_scores
from regard.core.mixers.scaled_dot_product_attention import SoftmaxAttention, masked_softmax
from regard.core.probe import NullProbe


class AdditiveAttention(nn.Module):
    """softmax(v · tanh(q + k) / temperature), for queries and keys that are projected already."""

    def __init__(self, width: int, temperature: float = 1.0) -> None:
        super().__init__()
        self.direction = nn.Parameter(normal(1, width)[0])  # v_a of Bahdanau et al., [K]
        self.temperature = temperature

    def extra_repr(self) -> str:
        return f"width={len(self.direction)}, temperature={self.temperature}"

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask) -> Tensor:
        return self._weights(q, k, mask.allowed) @ v  # [B, 1, T, E]

    def weights(
        self,
        q: Tensor,
        k: Tensor,
        mask: AttentionMask,
        rows: Tensor,
        heads: Tensor | None = None,
        bias: ScoreBias | None = None,
    ) -> Tensor:
        """The attention weights of some query rows; there is one head."""
        return self._weights(q[:, :, rows], k, mask.for_rows(rows))

    def _weights(self, q: Tensor, k: Tensor, allowed: Tensor) -> Tensor:
        scores = additive_scores(q, k, self.direction) / self.temperature  # [B, 1, T, S]
        return masked_softmax(scores, allowed)


class AlignmentAttention(nn.Module):
    """Attention of a recurrent decoder to the encoder output, with one head and any score.

    The output is tanh(W [context; state]). `query` and `key` are the projections before the score,
    where there are any; values are the encoder output itself.
    """

    heads = 1

    def __init__(
        self,
        mixer: SoftmaxAttention | AdditiveAttention,
        join: Linear,
        query: Linear | None = None,
        key: Linear | None = None,
    ) -> None:
        super().__init__()
        self.mixer = mixer
        self.join = join
        self.query = query
        self.key = key

    # join.weight is [D, E + D]: the context vector comes first.
    @property
    def out_weight(self) -> Tensor:
        """The map of the context vector: [D, E]."""
        return self.join.weight[:, : self.join.weight.shape[1] // 2]

    def joined(self, context_vector: Tensor, x: Tensor) -> Tensor:
        """tanh(W [context; state])"""
        return torch.tanh(self.join(torch.cat([context_vector, x], dim=-1)))

    def keys_and_values(self, memory: Tensor) -> CrossKV:
        """Of a memory [B, S, D]: [B, 1, S, K] and [B, 1, S, D]."""
        keys = memory if self.key is None else self.key(memory)
        return CrossKV(keys[:, None], memory[:, None])

    def queries(self, x: Tensor, memory: CrossKV) -> Tensor:
        """Queries [B, 1, W·T, K] of states [rows, T, D].

        The W beams of a sentence become further positions of one row, which share its memory.
        """
        q = x if self.query is None else self.query(x)
        return q.reshape(len(memory.k), 1, -1, q.shape[-1])

    def forward(self, x: Tensor, memory: CrossKV, mask: AttentionMask, probe: NullProbe) -> Tensor:
        """The context vector of each of the positions [rows, T, D]: [rows, T, E]."""
        q = self.queries(x, memory)
        probe.attention(self.mixer, (q, memory.k, memory.v), mask)
        mixed = self.mixer(q, memory.k, memory.v, mask)  # [B, 1, W·T, E]
        mixed = probe.through("mixed", mixed)
        return mixed.reshape(*x.shape[:2], -1)
