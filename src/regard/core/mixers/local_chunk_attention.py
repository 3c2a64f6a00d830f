"""Chunked attention: inside chunks of a sequence, and between neighbouring ones (Reformer's local
layers; `lsh_attention` sorts positions by their hash first)."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from regard import spec
from regard.core.attention import Mixer
from regard.core.caches.kv_cache import Cache
from regard.core.masks.attention_mask import AttentionMask, ScoreBias

NEVER = float("-inf")


class ChunkedAttention(Mixer):
    """Positions are put into an order and cut into chunks; each attends to its own chunk and some
    `before` and `after` it, as far as the mask allows. Inputs no longer than a chunk have full
    attention. Here the order is that of the positions.

    On a `ring`, the last chunk stands before the first, and one that is met twice counts twice.
    Without one the chunks stand in a line, which padding behind them does not change.
    """

    # The score of a position with itself, where that is not what it looks for.
    self_score: ClassVar[float | None] = None
    rounds = 1

    def __init__(self, part: spec.ChunkedAttention | spec.LshAttention, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.dropout = part.dropout
        self.chunk = part.chunk
        self.ring = part.ring
        self.filling = part.ring or spec.ChunkRing(part.chunk, part.chunk)
        self.before = part.before
        self.after = part.after

    def extra_repr(self) -> str:
        return f"chunk={self.chunk}, before={self.before}, after={self.after}"

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
        causal, padding_mask = mask.causal_and_padding()
        padding_mask = padding_mask.expand(len(q), -1)  # [B, T]
        if self._padded_length(q.shape[2]) <= self.chunk:
            positions = mask.keys.expand(len(q), q.shape[1], 1, -1)
            one_chunk = (q[:, :, None], k[:, :, None], v[:, :, None])  # [B, H, 1, T, ·]
            out, _ = self._attend(one_chunk, positions, padding_mask[:, None, None], causal)
            return out[:, :, 0]
        order = self._order(q, padding_mask)  # [B, H, R, N]
        # [B, H, R, chunks, size, ·] each
        chunks = (self._sort(q, order), self._sort(k, order), self._sort(v, order))
        positions = torch.arange(q.shape[2], device=q.device).expand(len(q), -1)
        sorted_positions = self._sort_rows(positions, order)  # [B, H, R, chunks, size]
        sorted_padding = self._sort_rows(padding_mask, order)
        out, log_sum = self._attend(chunks, sorted_positions, sorted_padding, causal)
        # The inverse permutation, without the filling at its end: [B, H, R, T, 1]
        back = order.argsort(dim=-1)[..., : q.shape[2], None]
        out = out.flatten(3, 4).take_along_dim(back, dim=3)
        log_sum = log_sum.flatten(3, 4).gather(3, back)  # [B, H, R, T, 1]; out is [B, H, R, T, E]
        return self._weigh_rounds(out, log_sum)

    def _weigh_rounds(self, out: Tensor, log_sum: Tensor) -> Tensor:
        """Weights each round by its sum of exponentials: [B, H, R, T, E] → [B, H, T, E]."""
        fully_masked = (log_sum == NEVER).all(dim=2, keepdim=True)
        # A softmax over −∞ alone would be NaN.
        log_sum = log_sum.masked_fill(fully_masked, 0.0)
        if self.ring is None:
            return (out * torch.softmax(log_sum, dim=2)).sum(dim=2)
        # As the checkpoints of rings are computed: where a position saw itself alone, the sum of
        # its shares is rounded.
        shares = (log_sum - log_sum.logsumexp(dim=2, keepdim=True)).exp()
        return (out * shares).sum(dim=2)

    # ------------------------------------------------------------------ the order of positions

    def _order(self, q: Tensor, padding_mask: Tensor) -> Tensor:
        """[B, H, R, N]: which position comes when, in each of several rounds; filling comes
        last."""
        order = torch.arange(self._padded_length(q.shape[2]), device=q.device)
        return order.expand(*q.shape[:2], self.rounds, -1)

    def _padded_length(self, length: int) -> int:
        """The number of positions that are cut into chunks."""
        if length <= self.filling.beyond:
            return length
        return length + -length % self.filling.multiple

    def _sort_rows(self, x: Tensor, order: Tensor) -> Tensor:
        """[B, T] → [B, H, R, chunks, size]"""
        x = functional.pad(x, (0, order.shape[-1] - x.shape[-1]))[:, None, None]
        return x.take_along_dim(order, dim=-1).unflatten(-1, (-1, self.chunk))

    def _sort(self, x: Tensor, order: Tensor) -> Tensor:
        """[B, H, T, K] → [B, H, R, chunks, size, K]"""
        x = functional.pad(x, (0, 0, 0, order.shape[-1] - x.shape[2]))[:, :, None]
        return x.take_along_dim(order[..., None], dim=3).unflatten(3, (-1, self.chunk))

    # ------------------------------------------------------------------ inside chunks

    def _attend(
        self,
        qkv: tuple[Tensor, Tensor, Tensor],
        positions: Tensor,
        padding_mask: Tensor,
        causal: bool,
    ) -> tuple[Tensor, Tensor]:
        """Attention of each chunk [.., size, ·] to itself and its neighbours, and the log-sum-exp
        of its scores."""
        q, k, v = qkv
        k = self._with_neighbours(k)  # [.., M, K]
        v = self._with_neighbours(v)  # [.., M, E]
        key_positions = self._with_neighbours(positions[..., None]).mT  # [.., 1, M]
        key_padding = self._with_neighbours(padding_mask[..., None]).mT
        scores = q * self.scale @ k.mT  # [.., size, M]
        if self.self_score is not None:
            itself = positions[..., None] == key_positions
            scores = scores.masked_fill(itself, self.self_score)
        hidden = ~key_padding
        if causal:
            # By their positions and not by the order here: LSH has sorted them.
            hidden = hidden | (key_positions > positions[..., None])
        scores = scores.masked_fill(hidden, NEVER)
        fully_masked = hidden.all(dim=-1, keepdim=True)
        # The softmax written out, because `_weigh_rounds` needs its log-sum-exp.
        log_sum = scores.masked_fill(fully_masked, 0.0).logsumexp(dim=-1, keepdim=True)
        weights = (scores - log_sum).exp().masked_fill(fully_masked, 0.0)
        weights = functional.dropout(weights, self.dropout, self.training)
        return weights @ v, log_sum.masked_fill(fully_masked, NEVER)

    def _with_neighbours(self, x: Tensor) -> Tensor:
        """[.., R, chunks, size, ·] → [.., R, chunks, M, ·]: each chunk between those before and
        those after it. A ring has the chunks of all rounds; the ends of a line are padded
        with zeros."""
        if x.ndim < 6:
            return x  # one chunk alone
        if self.ring is not None:
            line = x.flatten(2, 3)  # of all rounds
            shifts = [-_ring_offset(by, line.shape[2]) for by in self._offsets()]
            rolled = [line.roll(by, dims=2).unflatten(2, x.shape[2:4]) for by in shifts]
            return torch.cat(rolled, dim=-2)
        count = x.shape[3]
        padded = functional.pad(x, (0, 0, 0, 0, self.before, self.after))
        shifted = [padded[:, :, :, i : i + count] for i in range(self.before + 1 + self.after)]
        return torch.cat(shifted, dim=-2)

    def _offsets(self) -> range:
        return range(-self.before, self.after + 1)

    # ------------------------------------------------------------------ for probes

    def visible(self, q: Tensor, k: Tensor, mask: AttentionMask, rows: Tensor) -> Tensor:
        """[B, H, rows, S]: the keys that are, in any round, in a query's own chunk or in its
        neighbours."""
        if self._padded_length(q.shape[2]) <= self.chunk:
            return mask.for_rows(rows)
        _, padding_mask = mask.causal_and_padding()
        order = self._order(q, padding_mask.expand(len(q), -1))
        chunks = order.argsort(dim=-1)[..., : k.shape[2]] // self.chunk  # [B, H, R, T]
        if self.ring is None:
            ahead = chunks[..., None, :] - chunks[..., rows, None]  # [B, H, R, rows, S]
            near = ((ahead >= -self.before) & (ahead <= self.after)).any(dim=2)
            return near & mask.for_rows(rows)
        chunks_per_round = order.shape[-1] // self.chunk
        count = chunks_per_round * self.rounds
        rounds = torch.arange(self.rounds, device=q.device)[:, None]
        chunks = chunks + chunks_per_round * rounds
        # From each round's queries to each round's keys: [B, H, R, R, rows, S]
        ahead = (chunks[:, :, None, :, None, :] - chunks[:, :, :, None, rows, None]) % count
        offsets = torch.tensor([_ring_offset(by, count) for by in self._offsets()], device=q.device)
        near = torch.isin(ahead, offsets).flatten(2, 3).any(dim=2)
        return near & mask.for_rows(rows)


def _ring_offset(by: int, count: int) -> int:
    """The rotation of a ring of `count` chunks that brings the chunk `by` chunks later; 0 if that
    is a whole round or more."""
    if abs(by) >= count:
        return 0
    return by % count
