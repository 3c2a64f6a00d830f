"""Beam search, all sentences and beams in tensors.

Each sentence holds `width` places. At every step the best continuations of its open hypotheses take the places that are
left; one that ends gives its place up for good. The search of a sentence stops when no place is left, or when the best
score that any open hypothesis can still reach is below the n-best finished ones: stopping early never changes the answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.decode.strategy import Beam, Hypothesis
from regard.model import Decoder, EncoderDecoder

_NEVER = float("-inf")


@dataclass
class _Open:
    """The hypotheses that go on, for the sentences that go on."""

    sentences: Tensor  # [B] which sentence each row block belongs to
    sums: Tensor  # [B, W] log-probability; -inf marks an empty place
    tokens: Tensor  # [B, W, L]


@dataclass
class _Finished:
    """Up to `width` finished hypotheses for every sentence."""

    scores: Tensor  # [N, W]
    sums: Tensor  # [N, W]
    lengths: Tensor  # [N, W]
    ended: Tensor  # [N, W] by an end token, not by the limit
    tokens: Tensor  # [N, W, L]
    count: Tensor  # [N]

    def add(self, rows: Tensor, slots: Tensor, **values: Tensor) -> None:
        for name, value in values.items():
            getattr(self, name)[rows, slots] = value


def search(
    model: EncoderDecoder | Decoder,
    encoded: Any,
    strategy: Beam,
    *,
    limits: Tensor,
    first: Tensor,
    end: int,
    banned: Tensor,
    early: bool = True,
) -> list[list[Hypothesis]]:
    """The `n_best` hypotheses of each sentence, best first. `early=False` searches until no place is left."""
    device, width, count = limits.device, strategy.width, len(limits)
    capacity = int(limits.max())
    divisors = torch.tensor([strategy.penalty.divisor(n) for n in range(1, capacity + 1)], device=device)
    going = _Open(
        torch.arange(count, device=device),
        torch.full((count, width), _NEVER, device=device).index_fill(
            1, torch.zeros(1, dtype=torch.long, device=device), 0.0
        ),
        torch.full((count, width, capacity), end, device=device),
    )
    shape = (count, width)
    finished = _Finished(
        torch.full(shape, _NEVER, device=device),
        torch.full(shape, _NEVER, device=device),
        torch.zeros(shape, dtype=torch.long, device=device),
        torch.zeros(shape, dtype=torch.bool, device=device),
        torch.full((*shape, capacity), end, device=device),
        torch.zeros(count, dtype=torch.long, device=device),
    )
    state = model.start(encoded, width=width, capacity=capacity)
    last = first.repeat_interleave(width)[:, None]
    for t in range(capacity):
        logits = model.step(last, state)[:, -1].float().index_fill(1, banned, _NEVER)
        parents = _advance(going, finished, logits, t, end=end, divisor=divisors[t], limits=limits)
        running = (going.sums > _NEVER).any(dim=1)
        if early:
            running &= ~_decided(going, finished, strategy, t, divisors, limits)
        kept = running.nonzero()[:, 0]
        if len(kept) == 0:
            break
        state.reorder(parents)
        if len(kept) < len(going.sentences):
            going = _Open(going.sentences[kept], going.sums[kept], going.tokens[kept])
            state.keep(kept)
        last = going.tokens[:, :, t].reshape(-1, 1)
    return _best(finished, strategy.n_best)


def _advance(
    going: _Open, finished: _Finished, logits: Tensor, t: int, *, end: int, divisor: Tensor, limits: Tensor
) -> Tensor:
    """One step of every open sentence: fills `finished`, replaces the open hypotheses, returns the row each came from."""
    batch, width = going.sums.shape
    vocabulary = logits.shape[-1]
    totals = going.sums[:, :, None] + torch.log_softmax(logits, dim=-1).view(batch, width, vocabulary)
    # Twice the width holds `width` continuations even if every hypothesis also offers its end.
    sums, index = totals.flatten(1).topk(min(2 * width, width * vocabulary), dim=1)  # [B, 2W]
    parents, tokens = index // vocabulary, index % vocabulary
    rows = torch.arange(batch, device=logits.device)[:, None]
    history = going.tokens[rows, parents]  # [B, 2W, L]
    history[:, :, t] = tokens
    # A candidate matters only if it is among the best `places`, the number of places still to be had.
    places = width - finished.count[going.sentences][:, None]  # [B, 1]
    rank = torch.arange(sums.shape[1], device=logits.device)[None]
    at_limit = (limits[going.sentences] == t + 1)[:, None]
    valid = (rank < places) & (sums > _NEVER)
    closing = valid & ((tokens == end) | at_limit)
    slot = finished.count[going.sentences][:, None] + closing.cumsum(dim=1) - 1
    b, c = closing.nonzero(as_tuple=True)
    finished.add(
        going.sentences[b],
        slot[b, c],
        scores=sums[b, c] / divisor,
        sums=sums[b, c],
        lengths=(t + 1 - (tokens == end).long())[b, c],
        ended=(tokens == end)[b, c],
        tokens=history[b, c],
    )
    finished.count[going.sentences] += closing.sum(dim=1)
    # What is left of the places goes to the best continuations, in order.
    open_rank = torch.where(tokens == end, rank + sums.shape[1], rank).argsort(dim=1)[:, :width]
    places = width - finished.count[going.sentences][:, None]
    going.sums = sums.gather(1, open_rank).masked_fill((rank[:, :width] >= places) | at_limit, _NEVER)
    going.tokens = history[rows, open_rank]
    return (rows * width + parents.gather(1, open_rank)).flatten()


def _decided(going: _Open, finished: _Finished, strategy: Beam, t: int, divisors: Tensor, limits: Tensor) -> Tensor:
    """[B] True where no open hypothesis can still enter the n-best: log P only falls, and divisors are monotonic."""
    longest = divisors[limits[going.sentences] - 1]
    soonest = divisors[min(t + 1, len(divisors) - 1)]
    reachable = going.sums.max(dim=1).values / torch.maximum(longest, soonest)
    nth = finished.scores[going.sentences].topk(strategy.n_best, dim=1).values[:, -1]
    return nth >= reachable


def _best(finished: _Finished, n_best: int) -> list[list[Hypothesis]]:
    scores, order = finished.scores.sort(dim=1, descending=True, stable=True)
    rows = torch.arange(len(order), device=order.device)[:, None]
    columns = zip(
        finished.tokens[rows, order].tolist(),
        finished.lengths[rows, order].tolist(),
        scores.tolist(),
        finished.sums[rows, order].tolist(),
        finished.ended[rows, order].tolist(),
        strict=True,
    )
    return [
        [Hypothesis(tuple(ids[:n]), s, p, e) for ids, n, s, p, e in zip(*row, strict=True) if s > _NEVER][:n_best]
        for row in columns
    ]
