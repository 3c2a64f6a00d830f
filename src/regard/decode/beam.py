"""Beam search, all sentences and beams in tensors.

Each sentence holds `width` places. At every step its open hypotheses offer their best continuations; those that end among
the best `width` enter a pool of the `width` best finished ones, and the places go to the best that do not end. Two choices
of the strategy differ between systems: whether an ended hypothesis gives its place up for good, and when a sentence stops.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, assert_never

import torch
from torch import Tensor

from regard.decode import turns
from regard.decode.frame import NEVER, Frame
from regard.decode.strategy import Beam, Hypothesis
from regard.decode.turns import CHECKED, Turns
from regard.decode.watch import Offered, Watch
from regard.model import Decoder, EncoderDecoder


@dataclass
class _Open:
    """The hypotheses that go on, for the sentences that go on."""

    sentences: Tensor  # [B] which sentence each row block belongs to
    sums: Tensor  # [B, W] log-probability; -inf marks an empty place
    tokens: Tensor  # [B, W, L]


@dataclass
class _Finished:
    """The best finished hypotheses of each sentence, up to `width`, best first."""

    scores: Tensor  # [N, W]; -inf marks an empty place
    sums: Tensor  # [N, W]
    lengths: Tensor  # [N, W]
    ended: Tensor  # [N, W] by an end token, not by the limit
    tokens: Tensor  # [N, W, L]

    def count(self, sentences: Tensor) -> Tensor:
        return (self.scores[sentences] > NEVER).sum(dim=1)

    def enter(self, sentences: Tensor, new: _Finished) -> None:
        """The best of what was there and what is new."""
        width = self.scores.shape[1]
        best = torch.cat([self.scores[sentences], new.scores], dim=1).topk(width, dim=1).indices  # [B, W]
        rows = torch.arange(len(sentences), device=best.device)[:, None]
        for field in fields(self):
            held = getattr(self, field.name)
            held[sentences] = torch.cat([held[sentences], getattr(new, field.name)], dim=1)[rows, best]


def search(
    model: EncoderDecoder | Decoder, encoded: Any, strategy: Beam, frame: Frame, watch: Watch | None = None
) -> list[list[Hypothesis]]:
    """The `n_best` hypotheses of each sentence, best first. `watch` is shown every step."""
    device, width, count = frame.limits.device, strategy.width, len(frame.limits)
    divisors = torch.tensor([strategy.penalty.divisor(n) for n in range(1, frame.steps + 1)], device=device)
    shape = (count, width)
    going = _Open(
        torch.arange(count, device=device),
        torch.full(shape, NEVER, device=device),
        torch.full((*shape, frame.steps), frame.end, device=device),
    )
    going.sums[:, 0] = 0.0  # all beginnings are the same, so one is enough
    finished = _Finished(
        torch.full(shape, NEVER, device=device),
        torch.full(shape, NEVER, device=device),
        torch.zeros(shape, dtype=torch.long, device=device),
        torch.zeros(shape, dtype=torch.bool, device=device),
        torch.full((*shape, frame.steps), frame.end, device=device),
    )
    running = torch.ones(count, dtype=torch.bool, device=device)
    t = torch.zeros(1, dtype=torch.long, device=device)
    state = model.start(encoded, width=width, capacity=frame.capacity)
    last = frame.first.repeat_interleave(width, dim=0)

    def turn(*, first: bool = False) -> None:
        logits = model.step(last, state)[:, -1]
        rows = going.sentences.repeat_interleave(width)
        gains = torch.log_softmax(frame.allowed(logits, t, rows, first=first), dim=-1)
        withheld = frame.withheld(gains, t, rows, going.tokens.flatten(0, 1), first=first)
        gains = gains if withheld is None else gains.masked_fill(withheld, NEVER)
        parents = _advance(going, finished, gains, t, strategy, frame, divisors, watch)
        running.copy_((going.sums > NEVER).any(dim=1) & ~_decided(going, finished, strategy, t, divisors, frame.limits))
        state.reorder(parents)
        if not first:
            last.copy_(_at(going.tokens, t).reshape(-1, 1))
        t.add_(1)

    turn(first=True)
    last = going.tokens[:, :, 0].flatten()[:, None].clone()
    state.share()
    record = turns.recordable(device) and watch is None and state.fix()
    repeat = Turns(turn, record=record)
    for done in range(1, frame.steps):
        if not record or done % CHECKED == 0:
            kept = running.nonzero()[:, 0]
            if len(kept) == 0:
                break
            # A recording is of one number of rows: it is made anew when half of them have left.
            if len(kept) < len(running) and (not record or 2 * len(kept) <= len(running)):
                going = _Open(going.sentences[kept], going.sums[kept], going.tokens[kept])
                running, last = running[kept], last.view(-1, width)[kept].reshape(-1, 1)
                state.keep(kept)
                repeat = Turns(turn, record=record)
        repeat()
    return _best(finished, strategy.n_best)


def _at(tokens: Tensor, t: Tensor) -> Tensor:
    """[B, W, L] at place t [1] → [B, W]"""
    return tokens.index_select(2, t)[:, :, 0]


def _advance(
    going: _Open,
    finished: _Finished,
    gains: Tensor,
    t: Tensor,
    strategy: Beam,
    frame: Frame,
    divisors: Tensor,
    watch: Watch | None,
) -> Tensor:
    """One step of every open sentence, from the log-probabilities of its next tokens [rows, V]: fills `finished`, replaces the
    open hypotheses, returns the row each came from."""
    batch, width = going.sums.shape
    vocabulary = gains.shape[-1]
    totals = going.sums[:, :, None] + gains.view(batch, width, vocabulary)
    # Twice the width holds `width` continuations even if every hypothesis also offers its end.
    sums, index = totals.flatten(1).topk(min(2 * width, width * vocabulary), dim=1)  # [B, 2W]
    parents, tokens = index // vocabulary, index % vocabulary
    rows = torch.arange(batch, device=gains.device)[:, None]
    history = going.tokens[rows, parents]  # [B, 2W, L]
    history.index_copy_(2, t, tokens[:, :, None])
    # A candidate may end only if it is among the best `places`.
    rank = torch.arange(sums.shape[1], device=gains.device)[None]
    at_limit = (frame.limits[going.sentences] == t + 1)[:, None]
    ends = frame.ends(tokens)
    closing = (rank < _places(finished, going, strategy)) & (ends | at_limit)
    scores = torch.where(closing, sums / divisors[t], NEVER)
    finished.enter(going.sentences, _Finished(scores, sums, t + 1 - ends.long(), ends, history))
    # What is left of the places goes to the best continuations, in order.
    open_rank = torch.where(ends, rank + sums.shape[1], rank).argsort(dim=1)[:, :width]
    full = rank[:, :width] >= _places(finished, going, strategy)
    going.sums.copy_(sums.gather(1, open_rank).masked_fill(full | at_limit, NEVER))
    going.tokens.copy_(history[rows, open_rank])
    if watch is not None:
        watch(Offered(int(t), going.sentences, parents, tokens, sums, scores, open_rank, going.sums > NEVER))
    return (rows * width + parents.gather(1, open_rank)).flatten()


def _places(finished: _Finished, going: _Open, strategy: Beam) -> Tensor | int:
    """How many hypotheses of each sentence go on: [B, 1]."""
    if strategy.places == "refilled":
        return strategy.width
    return strategy.width - finished.count(going.sentences)[:, None]


def _decided(going: _Open, finished: _Finished, strategy: Beam, t: Tensor, divisors: Tensor, limits: Tensor) -> Tensor:
    """[B] True where the search of a sentence stops."""
    scores, best = finished.scores[going.sentences], going.sums.max(dim=1).values
    worst = scores[:, -1]  # −∞ until the pool is full
    match strategy.stop:
        case "full":
            return worst > NEVER
        case "likely":
            return worst >= best / divisors[t]
        case "certain":
            # log P only falls, and divisors are monotonic: nothing open can score more than this.
            longest, soonest = divisors[limits[going.sentences] - 1], divisors[(t + 1).clamp_max(len(divisors) - 1)]
            return scores[:, strategy.n_best - 1] >= best / torch.maximum(longest, soonest)
        case _:
            assert_never(strategy.stop)


def _best(finished: _Finished, n_best: int) -> list[list[Hypothesis]]:
    columns = (finished.tokens, finished.lengths, finished.scores, finished.sums, finished.ended)
    return [
        [Hypothesis(tuple(ids[:n]), s, p, e) for ids, n, s, p, e in zip(*row, strict=True) if s > NEVER][:n_best]
        for row in zip(*(column.tolist() for column in columns), strict=True)
    ]
