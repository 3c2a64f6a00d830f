"""How much a query looks at a key: by their product, or by what a small network makes of both.

A product of vectors is what `mix.Softmax` computes; here is the score of Bahdanau et al. (2015), and the part with which a
decoder of one head looks at a memory by either. Keys are made of a memory once, for all queries that will come.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.core.cache import CrossKV
from regard.core.linear import Linear, normal
from regard.core.mask import AttentionMask
from regard.core.probe import AttentionCall, Probe
from regard.core.softmax_attention import SoftmaxAttention


class AdditiveAttention(nn.Module):
    """softmax(v · tanh(q + k) / temperature) over what may be seen: a mixer whose queries and keys are projected already."""

    def __init__(self, width: int, temperature: float = 1.0) -> None:
        super().__init__()
        self.direction = nn.Parameter(normal(1, width)[0])
        self.temperature = temperature

    def forward(self, q: Tensor, k: Tensor, v: Tensor, attention_mask: AttentionMask) -> Tensor:
        return self._weights(q, k, attention_mask.mask) @ v  # [B, 1, T, E]

    def weights(
        self,
        q: Tensor,
        k: Tensor,
        attention_mask: AttentionMask,
        rows: Tensor,
        heads: Tensor | None = None,
    ) -> Tensor:
        """What `forward` mixes with, for the rows of queries given; there is one head."""
        return self._weights(q[:, :, rows], k, attention_mask.asked(rows))

    def _weights(self, q: Tensor, k: Tensor, mask: Tensor) -> Tensor:
        hidden = torch.tanh(q[:, :, :, None] + k[:, :, None])  # [B, 1, T, S, K]
        scores = (hidden @ self.direction) / self.temperature
        fully_masked = ~mask.any(dim=-1, keepdim=True)
        scores = scores.masked_fill(~mask, float("-inf")).masked_fill(fully_masked, 0.0)
        return torch.softmax(scores, dim=-1).masked_fill(fully_masked, 0.0)


class AlignmentAttention(nn.Module):
    """One head that looks at a memory by any score, and puts what it found beside the state: tanh(W [found; state]).
    `query` and `key` are the maps before the score, where there are any; values are the memory itself."""

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

    @property
    def out_weight(self) -> Tensor:
        """[D, E]: what becomes of what is found."""
        return self.join.weight[:, : self.join.weight.shape[1] // 2]

    def joined(self, found: Tensor, x: Tensor) -> Tensor:
        return torch.tanh(self.join(torch.cat([found, x], dim=-1)))

    def remember(self, memory: Tensor) -> CrossKV:
        """Keys and values of a memory [B, S, D]."""
        keys = memory if self.key is None else self.key(memory)
        return CrossKV(keys[:, None], memory[:, None])

    def asks(self, x: Tensor, memory: CrossKV) -> Tensor:
        """Queries [B, 1, W·T, K] of [rows, T, D]: the W rows of a sentence are further places of one row, which share its
        memory."""
        q = x if self.query is None else self.query(x)
        return q.reshape(len(memory.k), 1, -1, q.shape[-1])

    def forward(
        self, x: Tensor, memory: CrossKV, attention_mask: AttentionMask, probe: Probe | None = None
    ) -> Tensor:
        """What each of the places [rows, T, D] finds: [rows, T, E]."""
        q = self.asks(x, memory)
        if probe is not None:
            probe.attended(AttentionCall(self.mixer, q, memory.k, memory.v, attention_mask))
        mixed = self.mixer(q, memory.k, memory.v, attention_mask)  # [B, 1, W·T, E]
        if probe is not None:
            mixed = probe.through("mixed", mixed)
        return mixed.reshape(*x.shape[:2], -1)  # type: ignore[no-any-return]
