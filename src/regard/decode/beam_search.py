"""Beam search, all sentences and beams in tensors.

Each sentence holds `width` places. At every step its open hypotheses offer their best continuations; those that end among
the best `width` enter a pool of the `width` best finished ones, and the places go to the best that do not end. Two choices
of the strategy differ between systems: whether an ended hypothesis gives its place up for good, and when a sentence stops.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, fields
from typing import Any, assert_never

import torch
from torch import Tensor

from regard.core.cache import DecoderState
from regard.decode import cuda_graphs
from regard.decode.constraints import NEVER, Constraints
from regard.decode.cuda_graphs import GraphedLoop
from regard.decode.events import BeamStep, StepCallback
from regard.decode.strategy import BeamSearch, Hypothesis
from regard.decode.topk import top
from regard.model import Decoder, EncoderDecoder


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
        best = (
            torch.cat([self.scores[sentences], new.scores], dim=1).topk(width, dim=1).indices
        )  # [B, W]
        rows = torch.arange(len(sentences), device=best.device)[:, None]
        for field in fields(self):
            held = getattr(self, field.name)
            held[sentences] = torch.cat([held[sentences], getattr(new, field.name)], dim=1)[
                rows, best
            ]


@dataclass
class _Going:
    """The hypotheses that go on, for the sentences that go on, and those that have finished."""

    state: DecoderState
    frame: Constraints
    finished: _Finished
    divisors: Tensor  # [L] what a sum is divided by, for each length
    t: Tensor  # [1] how many tokens each has
    sentences: Tensor  # [B] which sentence each row block belongs to
    sums: Tensor  # [B, W] log-probability; -inf marks an empty place
    tokens: Tensor  # [B, W, L]
    last: Tensor  # [B · W, 1]
    running: Tensor  # [B] whether the search of a sentence goes on

    def only(self, kept: Tensor) -> None:
        """The sentences that go on, of those that did."""
        width = self.sums.shape[1]
        self.sentences, self.sums, self.tokens = (
            self.sentences[kept],
            self.sums[kept],
            self.tokens[kept],
        )
        self.running, self.last = self.running[kept], self.last.view(-1, width)[kept].reshape(-1, 1)
        self.state.keep(kept)


def search(
    model: EncoderDecoder | Decoder,
    encoded: Any,
    strategy: BeamSearch,
    frame: Constraints,
    watch: StepCallback | None = None,
) -> list[list[Hypothesis]]:
    """The `n_best` hypotheses of each sentence, best first. `watch` is shown every step."""
    device, width, count = frame.limits.device, strategy.width, len(frame.limits)
    shape, wide = (count, width), cuda_graphs.room(frame.steps, device)
    finished = _Finished(
        torch.full(shape, NEVER, device=device),
        torch.full(shape, NEVER, device=device),
        torch.zeros(shape, dtype=torch.long, device=device),
        torch.zeros(shape, dtype=torch.bool, device=device),
        torch.full((*shape, wide), frame.end, device=device),
    )
    going = _Going(
        model.start(encoded, width=width, capacity=cuda_graphs.room(frame.capacity, device)),
        frame,
        finished,
        torch.tensor([strategy.penalty.divisor(n) for n in range(1, wide + 1)], device=device),
        torch.zeros(1, dtype=torch.long, device=device),
        torch.arange(count, device=device),
        torch.full(shape, NEVER, device=device),
        torch.full((*shape, wide), frame.end, device=device),
        frame.first.repeat_interleave(width, dim=0),
        torch.ones(count, dtype=torch.bool, device=device),
    )
    going.sums[:, 0] = 0.0  # all beginnings are the same, so one is enough

    def turn(going: _Going, *, first: bool = False) -> None:
        _turn(model, going, strategy, watch, first=first)
        if not first:
            going.last.copy_(_at(going.tokens, going.t - 1).reshape(-1, 1))

    if not frame.alike:
        turn(going, first=True)
        going.last = going.tokens[:, :, 0].flatten()[:, None].clone()
    going.state.share()
    record = cuda_graphs.recordable(device) and watch is None and going.state.fix()
    repeat = GraphedLoop(turn, going, record=record, model=model, said=(strategy, frame.said))
    for done in range(0 if frame.alike else 1, frame.steps):
        going = repeat.going
        if repeat.due(done, lambda going: going.running):
            kept = going.running.nonzero()[:, 0]
            if len(kept) == 0:
                break
            # A recording is of one number of rows: another one is needed when half of them have left.
            if len(kept) < len(going.running) and (
                not record or 2 * len(kept) <= len(going.running)
            ):
                going = (
                    copy.deepcopy(going) if record else going
                )  # a recording keeps what it works on
                going.only(kept)
                repeat.begin(going)
        repeat()
    return _best(repeat.going.finished, strategy.n_best)


def _turn(
    model: EncoderDecoder | Decoder,
    going: _Going,
    strategy: BeamSearch,
    watch: StepCallback | None,
    *,
    first: bool,
) -> None:
    frame, t, width = going.frame, going.t, strategy.width
    rows = going.sentences.repeat_interleave(width, output_size=len(going.sentences) * width)
    logits = frame.allowed(model.step(going.last, going.state)[:, -1], t, rows, first=first)
    withheld = frame.withheld(logits, t, rows, going.tokens.flatten(0, 1), first=first)
    count = min(2 * width, logits.shape[1])
    gains, tokens, normaliser = top(
        logits, count
    )  # [rows, 2W]: no beam has more among the best of all
    if withheld is not None:
        # What is withheld has its share of the probability, and is not chosen.
        gains, tokens, _ = top(logits.masked_fill(withheld, NEVER), count)
    going.state.reorder(_advance(going, gains - normaliser[:, None], tokens, strategy, watch))
    undecided = ~_decided(going, strategy)
    going.running.copy_((going.sums > NEVER).any(dim=1) & undecided)
    t.add_(1)


def _at(tokens: Tensor, t: Tensor) -> Tensor:
    """[B, W, L] at place t [1] → [B, W]"""
    return tokens.index_select(2, t)[:, :, 0]


def _advance(
    going: _Going, gains: Tensor, words: Tensor, strategy: BeamSearch, watch: StepCallback | None
) -> Tensor:
    """One step of every open sentence, from the best next tokens of each row and their log-probabilities [rows, n]: fills
    `finished`, replaces the open hypotheses, returns the row each came from."""
    frame, finished, t = going.frame, going.finished, going.t
    batch, width = going.sums.shape
    totals = (going.sums[:, :, None] + gains.view(batch, width, -1)).flatten(1)
    # Twice the width holds `width` continuations even if every hypothesis also offers its end.
    sums, index = totals.topk(min(2 * width, totals.shape[1]), dim=1)  # [B, 2W]
    parents, tokens = index // gains.shape[1], words.view(batch, -1).gather(1, index)
    rows = torch.arange(batch, device=gains.device)[:, None]
    history = going.tokens[rows, parents]  # [B, 2W, L]
    history.index_copy_(2, t, tokens[:, :, None])
    # A candidate may end only if it is among the best `places`.
    rank = torch.arange(sums.shape[1], device=gains.device)[None]
    at_limit = (frame.limits[going.sentences] == t + 1)[:, None]
    ends = frame.ends(tokens)
    closing = (rank < _places(going, strategy)) & (ends | at_limit)
    scores = torch.where(closing, sums / going.divisors[t], NEVER)
    finished.enter(going.sentences, _Finished(scores, sums, t + 1 - ends.long(), ends, history))
    # What is left of the places goes to the best continuations, in order.
    open_rank = torch.where(ends, rank + sums.shape[1], rank).argsort(dim=1)[:, :width]
    full = rank[:, :width] >= _places(going, strategy)
    going.sums.copy_(sums.gather(1, open_rank).masked_fill(full | at_limit, NEVER))
    going.tokens.copy_(history[rows, open_rank])
    if watch is not None:
        watch(
            BeamStep(
                int(t),
                going.sentences,
                parents,
                tokens,
                sums,
                scores,
                open_rank,
                going.sums > NEVER,
            )
        )
    return (rows * width + parents.gather(1, open_rank)).flatten()


def _places(going: _Going, strategy: BeamSearch) -> Tensor | int:
    """How many hypotheses of each sentence go on: [B, 1]."""
    if strategy.places == "refilled":
        return strategy.width
    return strategy.width - going.finished.count(going.sentences)[:, None]


def _decided(going: _Going, strategy: BeamSearch) -> Tensor:
    """[B] True where the search of a sentence stops."""
    t, divisors, limits = going.t, going.divisors, going.frame.limits
    scores, best = going.finished.scores[going.sentences], going.sums.max(dim=1).values
    worst = scores[:, -1]  # −∞ until the pool is full
    match strategy.stop:
        case "full":
            return worst > NEVER
        case "likely":
            return worst >= best / divisors[t]
        case "certain":
            # log P only falls, and divisors are monotonic: nothing open can score more than this.
            longest, soonest = (
                divisors[limits[going.sentences] - 1],
                divisors[(t + 1).clamp_max(len(divisors) - 1)],
            )
            return scores[:, strategy.n_best - 1] >= best / torch.maximum(longest, soonest)
        case _:
            assert_never(strategy.stop)


def _best(finished: _Finished, n_best: int) -> list[list[Hypothesis]]:
    columns = (finished.tokens, finished.lengths, finished.scores, finished.sums, finished.ended)
    return [
        [
            Hypothesis(tuple(ids[:n]), s, p, e)
            for ids, n, s, p, e in zip(*row, strict=True)
            if s > NEVER
        ][:n_best]
        for row in zip(*cuda_graphs.values(columns), strict=True)
    ]
