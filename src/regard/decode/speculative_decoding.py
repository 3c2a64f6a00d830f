"""Speculative decoding (Leviathan et al. 2023) of one prompt.

A small draft model proposes some tokens, the target model reads them all in one step and accepts as
many as it would have written itself. The output has exactly the distribution of the target model
alone; greedily, it is the same text.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from regard.core.caches.kv_cache import DecoderState
from regard.core.finite_outputs import require_finite
from regard.core.seeding import philox
from regard.decode.constraints import Constraints
from regard.decode.events import StepCallback, TokenCallback, TokenStep
from regard.decode.greedy_and_sampling import filtered_distribution
from regard.decode.strategy import Greedy, Hypothesis, Sampling
from regard.wirings.generative import Generative


@dataclass(frozen=True)
class DraftModel:
    """A draft model, and how many tokens it proposes before the target model reads them."""

    model: Generative
    proposals: int = 4


@dataclass
class _Reader:
    """A model and its KV cache of the text so far, of which the newest tokens may be unread."""

    model: Generative
    cache: DecoderState
    strategy: Greedy | Sampling
    constraints: Constraints
    prompt_length: int

    def distributions(self, text: list[int], count: int) -> tuple[Tensor, Tensor]:
        """The distributions of the token after each of the last `count` prefixes of a text.

        Reads the tokens that are not in the cache yet. Probabilities and constrained logits:
        [count, V] each.
        """
        constraints = self.constraints
        device = constraints.limits.device
        unread = torch.tensor([text[self.cache.position :]], device=device)
        logits = self.model.step(unread, self.cache)[0, -count:]  # [count, V]
        # Of a draft too, whose NaN would be compared with probabilities, and accepted.
        require_finite(logits, self.model)
        sentences = torch.zeros(1, dtype=torch.long, device=device)
        first_step = len(text) - count - self.prompt_length + 1
        rows = []
        for t, row in enumerate(logits, start=first_step):
            step = torch.tensor([t], device=device)
            rows.append(constraints.mask_logits(row[None], step, sentences, first=t == 0))
        allowed = torch.cat(rows)  # [count, V]
        if isinstance(self.strategy, Greedy):
            best = allowed.argmax(dim=-1)
            # One-hot: a proposal is accepted if it is the target's own token.
            return functional.one_hot(best, allowed.shape[-1]).double(), allowed
        probabilities, tokens = filtered_distribution(allowed, self.strategy)
        # From descending order back to the order of token ids.
        every_token = torch.zeros_like(allowed, dtype=probabilities.dtype)  # [count, V]
        return every_token.scatter(1, tokens, probabilities), allowed

    def rewind(self, length: int) -> None:
        """Forgets cached tokens at `length` and after it."""
        self.cache.rewind(min(self.cache.position, length))


def generate(
    model: Generative,
    draft: DraftModel,
    prompt: Tensor,
    strategy: Greedy | Sampling,
    constraints: Constraints,
    key: int,
    on_step: StepCallback | None = None,
    stream: TokenCallback | None = None,
) -> Hypothesis:
    """The continuation of one prompt [1, P]. `key`: the random stream that it is sampled from."""
    seed = strategy.seed if isinstance(strategy, Sampling) else 0
    generator = np.random.Generator(philox(seed, key))
    capacity = constraints.cache_capacity + draft.proposals
    prompt_length = prompt.shape[1]
    target, drafter = (
        _Reader(
            reader,
            reader.start(reader.encode(prompt), capacity=capacity),
            strategy,
            constraints,
            prompt_length,
        )
        for reader in (model, draft.model)
    )
    # The prompt and what follows it. The caches have read all of it but the last token, or less.
    text: list[int] = prompt[0].tolist()
    total = 0.0
    finished = stopped = False
    while not (finished or stopped) and len(text) - prompt_length < constraints.max_steps:
        room = constraints.max_steps - (len(text) - prompt_length)
        count = min(draft.proposals, room - 1)
        proposals: list[int] = []
        draft_probabilities: list[Tensor] = []  # [V] each, that the proposals were drawn from
        for _ in range(count):
            distribution = drafter.distributions(text + proposals, 1)[0][0]
            draft_probabilities.append(distribution)
            proposals.append(_inverse_transform(distribution, generator.random()))
        probabilities, logits = target.distributions(text + proposals, count + 1)
        for i in range(count + 1):
            if i < count:
                noise = generator.random(2)
                accepted, token = accept_or_resample(
                    probabilities[i], draft_probabilities[i], proposals[i], noise
                )
            else:
                # All proposals were accepted: the target model's own next token comes for free.
                accepted = False
                token = _inverse_transform(probabilities[i], generator.random())
            total += torch.log_softmax(logits[i], dim=-1)[token].item()
            text.append(token)
            finished = bool(constraints.is_end(torch.tensor(token)))
            if on_step is not None:
                sentence = torch.zeros(1, dtype=torch.long, device=prompt.device)
                step = len(text) - prompt_length - 1
                on_step(TokenStep(step, sentence, logits[i : i + 1], sentence + token))
            stopped = stream is not None and not finished and stream(0, token)
            if finished or stopped or not accepted:
                break
        # Rejected proposals leave the caches; the newest token is read in the next round.
        for reader in (target, drafter):
            reader.rewind(len(text) - 1)
    if finished:
        text.pop()  # the end token
    return Hypothesis(tuple(text[prompt_length:]), total, total, finished or stopped)


def accept_or_resample(
    target: Tensor, draft: Tensor, proposal: int, noise: np.ndarray
) -> tuple[bool, int]:
    """Whether a proposal is accepted, and the token: the proposal or one drawn instead of it.

    A proposal x drawn from the draft distribution q is accepted with probability
    min(1, p(x) / q(x)); otherwise a token is drawn from max(0, p − q), normalized. The token is
    then distributed as if drawn from the target distribution p (Leviathan et al., appendix A.1).
    Distributions are [V], noise [2] in [0, 1).
    """
    if noise[0] * draft[proposal].item() < target[proposal].item():
        return True, proposal
    residual = (target - draft).clamp_min(0)  # [V]
    return False, _inverse_transform(residual / residual.sum(), noise[1])


def _inverse_transform(probabilities: Tensor, noise: float) -> int:
    """The token of probabilities [V] that inverse-transform sampling gives for this noise."""
    rank = int((probabilities.cumsum(dim=-1) <= noise).sum())
    # Rounding may leave the last cumulative value just below a noise close to 1.
    return min(rank, int(probabilities.nonzero()[-1]))
