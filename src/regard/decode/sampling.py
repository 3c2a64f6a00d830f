"""One continuation a sentence: greedy, or by chance."""

from __future__ import annotations

import copy
import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.core import fused_step
from regard.core.cache import DecoderState
from regard.core.mask import CausalMask
from regard.core.seeding import philox
from regard.core.stack import Stack
from regard.decode import cuda_graphs
from regard.decode.constraints import NEVER, Constraints
from regard.decode.cuda_graphs import GraphedLoop
from regard.decode.events import StepCallback, TokenStep
from regard.decode.strategy import Greedy, Hypothesis, Sampling
from regard.decode.topk import at_once, top
from regard.model import Decoder, EncoderDecoder


@dataclass
class _Going:
    """The sentences that go on."""

    state: DecoderState
    frame: Constraints
    t: Tensor  # [1] how many tokens each has
    sentences: Tensor  # [rows] which they are
    limits: Tensor  # [rows]
    last: Tensor  # [rows, 1]
    chosen: Tensor  # [rows, L]
    sums: Tensor  # [rows] log-probability
    ended: Tensor  # [rows] by its end token
    noise: Tensor | None  # [rows, L]

    def done(self) -> Tensor:
        """[rows] True for those that have ended or reached their limit."""
        return self.ended | (self.limits <= self.t)

    def only(self, kept: Tensor) -> None:
        """Those that go on, of those that did."""
        for name in ("sentences", "limits", "last", "chosen", "sums", "ended"):
            setattr(self, name, getattr(self, name)[kept])
        self.noise = None if self.noise is None else self.noise[kept]
        self.state.keep(kept)


def generate(
    model: EncoderDecoder | Decoder,
    encoded: Any,
    strategy: Greedy | Sampling,
    frame: Constraints,
    keys: list[int],
    watch: StepCallback | None = None,
) -> list[Hypothesis]:
    """`keys`: what the chance of each sentence is drawn from. `watch` is shown every step."""
    device, count, steps = frame.limits.device, len(frame.limits), frame.steps
    capacity, wide = cuda_graphs.room(frame.capacity, device), cuda_graphs.room(steps, device)
    record = cuda_graphs.recordable(device) and watch is None

    def begin(given: tuple[Any, Constraints, Tensor | None]) -> _Going:
        encoded, frame, noise = given
        going = _Going(
            model.start(encoded, capacity=capacity),
            frame,
            torch.zeros(1, dtype=torch.long, device=device),
            torch.arange(count, device=device),
            frame.limits,
            frame.first.clone(),
            torch.full((count, wide), frame.end, device=device),
            torch.zeros(count, device=device),
            torch.zeros(count, dtype=torch.bool, device=device),
            noise,
        )
        if record and frame.alike:
            going.state.fix()
        return going

    def turn(going: _Going, *, first: bool = False) -> None:
        _turn(model, going, strategy, watch, first=first)
        going.t.add_(1)

    given, said = (encoded, frame, _noise(strategy, keys, wide, device)), (strategy, frame.said)
    if record and frame.alike:
        usual = functools.partial(_usual, model)
        going = cuda_graphs.begun(
            begin, given, model=model, said=(*said, capacity, wide), usual=usual
        )
    else:
        going = begin(given)
    if not frame.alike:
        turn(going, first=True)
        going.last = going.chosen[:, :1].clone()
        record = record and going.state.fix()
    record = record and going.state.place is not None
    repeat = GraphedLoop(turn, going, record=record, model=model, said=said)
    written: dict[int, Hypothesis] = {}
    for step in range(0 if frame.alike else 1, steps):
        going = repeat.going
        if repeat.due(step, lambda going: ~going.done()):
            kept = (~going.done()).nonzero()[:, 0]
            if len(kept) == 0:
                break
            # A recording is of one number of rows: another one is needed when half of them have left.
            if len(kept) < len(going.sentences) and (
                not record or 2 * len(kept) <= len(going.sentences)
            ):
                written |= _written(going)
                going = (
                    copy.deepcopy(going) if record else going
                )  # a recording keeps what it works on
                going.only(kept)
                repeat.begin(going)
        repeat()
    written |= _written(repeat.going)
    return [written[sentence] for sentence in range(count)]


def _usual(model: EncoderDecoder | Decoder) -> bool:
    """Whether reading a prompt can be recorded: all parts are known to ask the device nothing, and what they remember will
    be fixed, so that turns leave the structure of what was recorded as it is."""
    stack = model.stack if isinstance(model, Decoder) else model.decoder
    return (
        isinstance(stack, Stack)
        and stack.pattern == CausalMask()
        and stack.max_lookback is None
        and fused_step.known(stack)
    )


def _turn(
    model: EncoderDecoder | Decoder,
    going: _Going,
    strategy: Greedy | Sampling,
    watch: StepCallback | None,
    *,
    first: bool,
) -> None:
    """The next token of each row. The first one may follow several, so that what comes `last` has another shape then."""
    frame, t, sentences = going.frame, going.t, going.sentences
    logits = frame.allowed(
        model.step(going.last, going.state)[:, -1], t, sentences, first=first
    )  # [rows, V]
    withheld = frame.withheld(logits, t, sentences, going.chosen, first=first)
    logits = logits if withheld is None else logits.masked_fill(withheld, NEVER)
    if isinstance(strategy, Greedy) and at_once(logits) and not (first or watch or frame.also):
        from regard.core.kernels.topk import take_best

        take_best(
            logits, frame.end, t, going.limits, going.ended, going.sums, going.chosen, going.last
        )
        return
    if isinstance(strategy, Sampling):
        assert going.noise is not None
        logits = logits.float()
        tokens = choose(logits, strategy, going.noise[:, t][:, 0])
        gain = torch.log_softmax(logits, dim=-1).gather(1, tokens[:, None])[:, 0]
    else:
        best, places, normaliser = top(logits, 1)
        tokens, gain = places[:, 0], best[:, 0] - normaliser
    done = going.done()
    going.sums += gain.masked_fill(done, 0.0)
    ends = frame.ends(tokens) & ~done
    tokens = tokens.masked_fill(done | ends, frame.end)
    going.chosen.index_copy_(1, t, tokens[:, None])
    going.ended |= ends
    if watch is not None:
        watch(TokenStep(int(t), sentences, logits.float(), tokens))
    if not first:
        going.last.copy_(tokens[:, None])


def _written(going: _Going) -> dict[int, Hypothesis]:
    """What there is of each sentence so far."""
    columns = (going.sentences, going.chosen, going.limits, going.sums, going.ended)
    return {
        sentence: _hypothesis(row[:limit], going.frame.end, total, ended)
        for sentence, row, limit, total, ended in zip(*cuda_graphs.values(columns), strict=True)
    }


def _hypothesis(row: list[int], end: int, total: float, finished: bool) -> Hypothesis:
    return Hypothesis(tuple(row[: row.index(end)] if finished else row), total, total, finished)


def _noise(
    strategy: Greedy | Sampling, keys: list[int], steps: int, device: torch.device
) -> Tensor | None:
    """One number in [0, 1) for each sentence and step, from (seed, sentence) alone: neighbours change nothing."""
    if not isinstance(strategy, Sampling):
        return None
    rows = [np.random.Generator(philox(strategy.seed, key)).random(steps) for key in keys]
    return torch.from_numpy(np.stack(rows)).to(device)


def choose(logits: Tensor, strategy: Sampling, noise: Tensor) -> Tensor:
    """Draws from the filtered distribution by inverting its cumulative sum: logits [B, V], noise [B] → tokens [B]."""
    probabilities, tokens = filtered(logits, strategy)
    rank = (probabilities.cumsum(dim=-1) <= noise[:, None]).sum(dim=-1)
    # Rounding may leave the last cumulative value just below a noise close to 1: stay inside what the filters left.
    rank = torch.minimum(rank, (probabilities > 0).sum(dim=-1) - 1)
    return tokens.gather(1, rank[:, None])[:, 0]


def filtered(logits: Tensor, strategy: Sampling) -> tuple[Tensor, Tensor]:
    """The distribution that is drawn from: probabilities [B, V], highest first, and the tokens they belong to."""
    ordered, tokens = (logits / strategy.temperature).sort(dim=-1, descending=True, stable=True)
    if strategy.top_k:
        ordered[:, strategy.top_k :] = float("-inf")
    probabilities = ordered.double().softmax(dim=-1)
    before = probabilities.cumsum(dim=-1) - probabilities
    probabilities = probabilities.masked_fill(before >= strategy.top_p, 0.0)
    probabilities = probabilities.masked_fill(
        probabilities < strategy.min_p * probabilities[:, :1], 0.0
    )
    return probabilities / probabilities.sum(dim=-1, keepdim=True), tokens
