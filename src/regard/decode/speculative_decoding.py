"""Speculative decoding (Leviathan et al. 2023): a small model writes some tokens ahead, the large one reads them all in one
step and keeps as many as it would have written itself. What comes out is distributed exactly as without the small model;
greedily, it is the same text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.core.cache import DecoderState
from regard.core.seeding import philox
from regard.decode.constraints import Constraints
from regard.decode.events import StepCallback, TokenStep
from regard.decode.sampling import filtered
from regard.decode.strategy import Greedy, Hypothesis, Sampling
from regard.model import Decoder


@dataclass(frozen=True)
class DraftModel:
    """`ahead`: how many tokens are written before they are read."""

    model: Decoder
    ahead: int = 4


def generate(
    model: Decoder,
    draft: DraftModel,
    tokens: Tensor,
    strategy: Greedy | Sampling,
    frame: Constraints,
    key: int,
    watch: StepCallback | None = None,
) -> Hypothesis:
    """What follows one prompt, tokens [1, P]."""
    chance = np.random.Generator(philox(getattr(strategy, "seed", 0), key))
    room = frame.capacity + draft.ahead
    state, other = (each.start(each.encode(tokens), capacity=room) for each in (model, draft.model))
    read = tokens[
        0
    ].tolist()  # the prompt and what followed; a state has read all but the last, or less
    given, limit, total, finished = len(read), frame.steps, 0.0, False
    while not finished and len(read) - given < limit:
        ahead = min(draft.ahead, limit - (len(read) - given) - 1)
        guesses, doubts = _guess(draft.model, other, read, ahead, strategy, frame, given, chance)
        sure, logits = _distributions(
            model, state, read + guesses, ahead + 1, strategy, frame, given
        )
        for i in range(ahead + 1):
            guessed = i < ahead
            kept, token = (
                settle(
                    sure[i : i + 1], doubts[i : i + 1], guesses[i : i + 1], chance.random((1, 2))
                )
                if guessed
                else (False, _drawn(sure[i], chance))
            )
            total += torch.log_softmax(logits[i], dim=-1)[token].item()
            read.append(token)
            finished = bool(frame.ends(torch.tensor(token)))
            if watch is not None:
                where = torch.zeros(1, dtype=torch.long, device=tokens.device)
                watch(TokenStep(len(read) - given - 1, where, logits[i : i + 1], where + token))
            if finished or not kept:
                break
        for each in (state, other):
            each.rewind(min(each.position, len(read) - 1))
    written = read[given : len(read) - finished]
    return Hypothesis(tuple(written), total, total, finished)


def settle(sure: Tensor, doubts: Tensor, guesses: list[int], noise: Any) -> tuple[bool, int]:
    """Keeps a guess drawn from `doubts` with the probability min(1, p / q), or else draws from what p has more than q: as if it
    had been drawn from `sure`. [1, V] both; noise [1, 2] in [0, 1)."""
    guess = guesses[0]
    if noise[0, 0] * doubts[0, guess].item() < sure[0, guess].item():
        return True, guess
    rest = (sure[0] - doubts[0]).clamp_min(0)
    return False, _inverted(rest / rest.sum(), noise[0, 1])


def _guess(
    model: Decoder,
    state: DecoderState,
    read: list[int],
    count: int,
    strategy: Any,
    frame: Constraints,
    given: int,
    chance: Any,
) -> tuple[list[int], Tensor]:
    """Tokens that the small model writes, and the distributions it drew them from."""
    guesses: list[int] = []
    doubts = []
    for _ in range(count):
        q, _ = _distributions(model, state, read + guesses, 1, strategy, frame, given)
        doubts.append(q[0])
        guesses.append(_drawn(q[0], chance))
    return guesses, torch.stack(doubts) if doubts else torch.empty(0)


def _distributions(
    model: Decoder,
    state: DecoderState,
    text: list[int],
    count: int,
    strategy: Any,
    frame: Constraints,
    given: int,
) -> tuple[Tensor, Tensor]:
    """Reads what of the text was not read; what follows its last `count` beginnings is drawn from these [count, V]."""
    device = frame.limits.device
    new = torch.tensor([text[state.position :]], device=device)
    logits = model.step(new, state)[0, -count:]  # [count, V]
    sentences = torch.zeros(1, dtype=torch.long, device=device)
    places = range(len(text) - count - given + 1, len(text) - given + 1)
    allowed = torch.cat(
        [
            frame.allowed(row[None], torch.tensor([t], device=device), sentences, first=t == 0)
            for t, row in zip(places, logits, strict=True)
        ]
    )
    if isinstance(strategy, Greedy):
        sure = torch.nn.functional.one_hot(allowed.argmax(dim=-1), allowed.shape[-1]).double()
        return sure, allowed
    probabilities, tokens = filtered(allowed, strategy)
    return torch.zeros_like(probabilities).scatter(1, tokens, probabilities), allowed


def _drawn(probabilities: Tensor, chance: Any) -> int:
    return _inverted(probabilities, chance.random())


def _inverted(probabilities: Tensor, noise: float) -> int:
    rank = int((probabilities.cumsum(dim=-1) <= noise).sum())
    # Rounding may leave the last cumulative value just below a noise close to 1.
    return min(rank, int(probabilities.nonzero()[-1]))
