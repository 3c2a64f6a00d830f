"""One continuation a sentence: greedy, or by chance."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.decode import turns
from regard.decode.frame import NEVER, Frame
from regard.decode.strategy import Greedy, Hypothesis, Sample
from regard.decode.top import top
from regard.decode.turns import CHECKED, Turns
from regard.decode.watch import Chosen, Watch
from regard.model import Decoder, EncoderDecoder


def generate(
    model: EncoderDecoder | Decoder,
    encoded: Any,
    strategy: Greedy | Sample,
    frame: Frame,
    keys: list[int],
    watch: Watch | None = None,
) -> list[Hypothesis]:
    """`keys`: what the chance of each sentence is drawn from. `watch` is shown every step."""
    limits, end, steps = frame.limits, frame.end, frame.steps
    device, count = limits.device, len(limits)
    t = torch.zeros(1, dtype=torch.long, device=device)
    sentences = torch.arange(count, device=device)
    chosen = torch.full((count, steps), end, device=device)  # [B, L]
    sums = torch.zeros(count, device=device)
    ended = torch.zeros(count, dtype=torch.bool, device=device)  # by its end token
    noise = _noise(strategy, keys, steps, device)
    state = model.start(encoded, capacity=frame.capacity)
    last = frame.first

    def turn(*, first: bool = False) -> None:
        logits = frame.allowed(model.step(last, state)[:, -1], t, sentences, first=first)  # [B, V]
        withheld = frame.withheld(logits, t, sentences, chosen[sentences], first=first)
        logits = logits if withheld is None else logits.masked_fill(withheld, NEVER)
        if isinstance(strategy, Sample):
            assert noise is not None
            tokens = choose(logits, strategy, noise[sentences, t])
        else:
            tokens = top(logits, 1)[1][:, 0]
        done = ended[sentences] | (limits[sentences] <= t)
        gain = torch.log_softmax(logits, dim=-1).gather(1, tokens[:, None])[:, 0]
        sums[sentences] += gain.masked_fill(done, 0.0)
        ends = frame.ends(tokens) & ~done
        tokens = tokens.masked_fill(done | ends, end)
        chosen[sentences, t] = tokens
        ended[sentences] |= ends
        if watch is not None:
            watch(Chosen(int(t), sentences, logits, tokens))
        if not first:
            last.copy_(tokens[:, None])
        t.add_(1)

    turn(first=True)
    last = chosen[:, :1].clone()
    record = turns.recordable(device) and watch is None and state.fix()
    repeat = Turns(turn, record=record)
    for done in range(1, steps):
        if not record or done % CHECKED == 0:
            kept = (~ended[sentences] & (limits[sentences] > t)).nonzero()[:, 0]
            if len(kept) == 0:
                break
            # A recording is of one number of rows: it is made anew when half of them have left.
            if len(kept) < len(sentences) and (not record or 2 * len(kept) <= len(sentences)):
                sentences, last = sentences[kept], last[kept]
                state.keep(kept)
                repeat = Turns(turn, record=record)
        repeat()
    return [
        _hypothesis(row[:limit], end, total, done)
        for row, limit, total, done in zip(chosen.tolist(), limits.tolist(), sums.tolist(), ended.tolist(), strict=True)
    ]


def _hypothesis(row: list[int], end: int, total: float, finished: bool) -> Hypothesis:
    return Hypothesis(tuple(row[: row.index(end)] if finished else row), total, total, finished)


def _noise(strategy: Greedy | Sample, keys: list[int], steps: int, device: torch.device) -> Tensor | None:
    """One number in [0, 1) for each sentence and step, from (seed, sentence) alone: neighbours change nothing."""
    if not isinstance(strategy, Sample):
        return None
    rows = [np.random.Generator(np.random.Philox(key=[strategy.seed, key])).random(steps) for key in keys]
    return torch.from_numpy(np.stack(rows)).to(device)


def choose(logits: Tensor, strategy: Sample, noise: Tensor) -> Tensor:
    """Draws from the filtered distribution by inverting its cumulative sum: logits [B, V], noise [B] → tokens [B]."""
    probabilities, tokens = filtered(logits, strategy)
    rank = (probabilities.cumsum(dim=-1) <= noise[:, None]).sum(dim=-1)
    # Rounding may leave the last cumulative value just below a noise close to 1: stay inside what the filters left.
    rank = torch.minimum(rank, (probabilities > 0).sum(dim=-1) - 1)
    return tokens.gather(1, rank[:, None])[:, 0]


def filtered(logits: Tensor, strategy: Sample) -> tuple[Tensor, Tensor]:
    """The distribution that is drawn from: probabilities [B, V], highest first, and the tokens they belong to."""
    ordered, tokens = (logits / strategy.temperature).sort(dim=-1, descending=True, stable=True)
    if strategy.top_k:
        ordered[:, strategy.top_k :] = float("-inf")
    probabilities = ordered.double().softmax(dim=-1)
    before = probabilities.cumsum(dim=-1) - probabilities
    probabilities = probabilities.masked_fill(before >= strategy.top_p, 0.0)
    probabilities = probabilities.masked_fill(probabilities < strategy.min_p * probabilities[:, :1], 0.0)
    return probabilities / probabilities.sum(dim=-1, keepdim=True), tokens
