"""Greedy decoding and sampling: one continuation of each sentence."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from regard.core.caches.kv_cache import DecoderState
from regard.core.finite_outputs import non_finite_error
from regard.core.seeding import philox
from regard.decode import cuda_graphs, fused_step
from regard.decode.constraints import NEG_INF, Constraints
from regard.decode.cuda_graphs import GraphedLoop
from regard.decode.events import StepCallback, TokenCallback, TokenStep
from regard.decode.strategy import Greedy, Hypothesis, Sampling
from regard.decode.topk import greedy_kernel, top_tokens
from regard.wirings.generative import Generative


@dataclass
class GenerationState:
    """The unfinished sentences of a batch, one row each, with their KV cache."""

    cache: DecoderState
    constraints: Constraints
    t: Tensor  # [1] how many tokens each row has, or [rows] where they joined at different times
    sentences: Tensor  # [rows] which sentence of the batch each row is
    limits: Tensor  # [rows] maximum number of tokens
    last: Tensor  # [rows, 1] the newest token; [rows, P] start tokens before the first step
    tokens: Tensor  # [rows, L]
    sums: Tensor  # [rows] log-probability
    ended: Tensor  # [rows] by an end token
    noise: Tensor | None  # [rows, L] in [0, 1), one number for each token that is sampled

    def done(self) -> Tensor:
        """[rows] True for rows that have ended or reached their limit."""
        return self.ended | (self.limits <= self.t)

    def select(self, rows: Tensor) -> None:
        """Keeps only these rows."""
        for name in ("sentences", "limits", "last", "tokens", "sums", "ended"):
            setattr(self, name, getattr(self, name)[rows])
        if self.noise is not None:
            self.noise = self.noise[rows]
        self.cache.keep(rows)


def generate(
    model: Generative,
    encoded: Any,
    strategy: Greedy | Sampling,
    constraints: Constraints,
    keys: list[int],
    on_step: StepCallback | None = None,
    stream: TokenCallback | None = None,
) -> list[Hypothesis]:
    """One hypothesis of each sentence. `keys`: the random stream that each sentence draws from."""
    device = constraints.limits.device
    count = len(constraints.limits)
    capacity = cuda_graphs.padded_length(constraints.cache_capacity, device)
    length = cuda_graphs.padded_length(constraints.max_steps, device)
    watched = on_step is not None or encoded.probe.active
    graphed = cuda_graphs.enabled(device) and not watched
    regular = constraints.first_step_is_regular

    def start(inputs: tuple[Any, Constraints, Tensor | None]) -> GenerationState:
        encoded, constraints, noise = inputs
        state = begin(model.start(encoded, capacity=capacity), constraints, length, noise)
        if graphed and regular:
            state.cache.make_static()
        return state

    def step(state: GenerationState, *, first: bool = False) -> None:
        generation_step(model, state, strategy, on_step, first=first)
        state.t.add_(1)

    inputs = (encoded, constraints, draw_noise(strategy, keys, length, device))
    graph_key = (strategy, constraints.graph_key)
    if graphed and regular:
        state = cuda_graphs.prefill(
            start,
            inputs,
            model=model,
            key=(*graph_key, capacity, length),
            capturable=functools.partial(fused_step.starts_in_a_graph, model),
        )
    else:
        state = start(inputs)
    if not regular:
        # An irregular first step stays out of the graph: it may read several tokens, or force one.
        step(state, first=True)
        state.last = state.tokens[:, :1].clone()
        graphed = graphed and state.cache.make_static()
        if stream is not None:
            _stream_tokens(model, state, 0, stream)
    # Whether the KV cache became static.
    graphed = graphed and state.cache.device_position is not None
    loop = GraphedLoop(step, state, graphed=graphed, model=model, key=graph_key)
    hypotheses: dict[int, Hypothesis] = {}

    def select(state: GenerationState, rows: Tensor) -> None:
        """Rows that are done leave the batch on the way."""
        hypotheses.update(_hypotheses(state))
        state.select(rows)

    for number in range(int(not regular), constraints.max_steps):
        if not loop.drop_done(number, lambda state: ~state.done(), select):
            break
        loop()
        if stream is not None:
            _stream_tokens(model, loop.state, number, stream)
    hypotheses.update(_hypotheses(loop.state))
    return [hypotheses[sentence] for sentence in range(count)]


def begin(
    cache: DecoderState, constraints: Constraints, length: int, noise: Tensor | None
) -> GenerationState:
    """The state before the first of `length` steps."""
    device = constraints.limits.device
    count = len(constraints.limits)
    return GenerationState(
        cache=cache,
        constraints=constraints,
        t=torch.zeros(1, dtype=torch.long, device=device),
        sentences=torch.arange(count, device=device),
        limits=constraints.limits,
        last=constraints.start_tokens.clone(),
        tokens=torch.full((count, length), constraints.end, device=device),
        sums=torch.zeros(count, device=device),
        ended=torch.zeros(count, dtype=torch.bool, device=device),
        noise=noise,
    )


def _stream_tokens(
    model: nn.Module, state: GenerationState, step: int, stream: TokenCallback
) -> None:
    """Passes the token of this step to `stream`, which may end its row, unless that has ended."""
    columns = (state.sentences, state.tokens[:, step], state.sums)
    for row, (sentence, token, total) in enumerate(
        zip(*cuda_graphs.to_lists(columns), strict=True)
    ):
        if math.isnan(total):
            raise non_finite_error(model)
        if token != state.constraints.end and stream(sentence, token):
            state.ended[row] = True


def generation_step(
    model: Generative,
    state: GenerationState,
    strategy: Greedy | Sampling,
    on_step: StepCallback | None,
    *,
    first: bool,
) -> None:
    """The next token of each row. An irregular `first` step may read several start tokens."""
    logits = fused_step.step(model, state.last, state.cache)[:, -1]  # [rows, V]
    # Before the token is shown to anyone; other texts are checked at their end.
    if on_step is not None and bool(logits.isnan().any()):
        raise non_finite_error(model)
    take_tokens(logits, state, strategy, on_step, first=first)


def take_tokens(
    logits: Tensor,
    state: GenerationState,
    strategy: Greedy | Sampling,
    on_step: StepCallback | None = None,
    *,
    first: bool = False,
) -> None:
    """The next token of each row, from what the model says of it [rows, V]."""
    constraints = state.constraints
    t = state.t
    logits = constraints.mask_logits(logits, t, state.sentences, first=first)
    logits = constraints.penalize_repetition(logits, t, state.sentences, state.tokens)
    forbidden = constraints.forbidden_by_rules(
        logits, t, state.sentences, state.tokens, first=first
    )
    if forbidden is not None:
        logits = logits.masked_fill(forbidden, NEG_INF)
    plain = not (first or on_step or constraints.extra_ends)
    take_best = greedy_kernel(logits) if plain and isinstance(strategy, Greedy) else None
    if take_best is not None:
        take_best(
            logits,
            constraints.end,
            t,
            state.limits,
            state.ended,
            state.sums,
            state.tokens,
            state.last,
        )
        return
    tokens, log_probability = _next_tokens(logits, strategy, state)
    done = state.done()
    # Rows that are done go on in the batch, and add nothing.
    state.sums += log_probability.masked_fill(done, 0.0)
    ends = constraints.is_end(tokens) & ~done
    tokens = tokens.masked_fill(done | ends, constraints.end)
    state.tokens.scatter_(1, t.expand(len(tokens))[:, None], tokens[:, None])
    state.ended |= ends
    if on_step is not None:
        on_step(TokenStep(int(t), state.sentences, logits.float(), tokens))
    if not first:
        state.last.copy_(tokens[:, None].clamp_min(0))  # −1 where there is no end token


def _next_tokens(
    logits: Tensor, strategy: Greedy | Sampling, state: GenerationState
) -> tuple[Tensor, Tensor]:
    """The chosen token of each row of logits [rows, V], and its log-probability: [rows] each."""
    if isinstance(strategy, Sampling):
        assert state.noise is not None
        logits = logits.float()
        noise = state.noise.gather(1, state.t.expand(len(logits))[:, None])[:, 0]
        tokens = sample_tokens(logits, strategy, noise)
        # Of the model's distribution, not of the filtered one that is drawn from.
        log_probabilities = torch.log_softmax(logits, dim=-1)
        return tokens, log_probabilities.gather(1, tokens[:, None])[:, 0]
    best, best_tokens, normalizer = top_tokens(logits, 1)
    return best_tokens[:, 0], best[:, 0] - normalizer


def _hypotheses(state: GenerationState) -> dict[int, Hypothesis]:
    """The hypothesis of each sentence so far."""
    columns = (state.sentences, state.tokens, state.limits, state.sums, state.ended)
    end = state.constraints.end
    hypotheses: dict[int, Hypothesis] = {}
    for sentence, row, limit, total, ended in zip(*cuda_graphs.to_lists(columns), strict=True):
        tokens = row[:limit]
        if ended and end in tokens:
            tokens = tokens[: tokens.index(end)]
        hypotheses[sentence] = Hypothesis(tuple(tokens), total, total, ended)
    return hypotheses


# --- sampling ---


def draw_noise(
    strategy: Greedy | Sampling, keys: list[int], steps: int, device: torch.device
) -> Tensor | None:
    """[rows, steps] in [0, 1) from (seed, key) alone: what else is in the batch changes nothing."""
    if not isinstance(strategy, Sampling):
        return None
    rows = [np.random.Generator(philox(strategy.seed, key)).random(steps) for key in keys]
    return torch.from_numpy(np.stack(rows)).to(device)


def sample_tokens(logits: Tensor, strategy: Sampling, noise: Tensor) -> Tensor:
    """Inverse-transform sampling from the filtered distribution.

    logits [B, V], noise [B] in [0, 1) → tokens [B].
    """
    probabilities, tokens = filtered_distribution(logits, strategy)
    rank = (probabilities.cumsum(dim=-1) <= noise[:, None]).sum(dim=-1)
    # Rounding may leave the last cumulative value just below a noise close to 1: stay inside what
    # the filters left.
    rank = torch.minimum(rank, (probabilities > 0).sum(dim=-1) - 1)
    # Of NaN nothing is left: any token will do, its log-probability is NaN and an error.
    rank = rank.clamp_min(0)
    return tokens.gather(1, rank[:, None])[:, 0]


def filtered_distribution(logits: Tensor, strategy: Sampling) -> tuple[Tensor, Tensor]:
    """The distribution after temperature, top-k, top-p and min-p: probabilities and tokens [B, V].

    Probabilities are in descending order. With top-k there are k of them: [B, k].
    """
    scaled = logits / strategy.temperature
    if strategy.top_k:
        ordered, tokens = scaled.topk(min(strategy.top_k, scaled.shape[-1]), dim=-1)
    else:
        ordered, tokens = scaled.sort(dim=-1, descending=True, stable=True)
    probabilities = ordered.double().softmax(dim=-1)
    mass_before = probabilities.cumsum(dim=-1) - probabilities
    probabilities = probabilities.masked_fill(mass_before >= strategy.top_p, 0.0)
    least = strategy.min_p * probabilities[:, :1]
    probabilities = probabilities.masked_fill(probabilities < least, 0.0)
    return probabilities / probabilities.sum(dim=-1, keepdim=True), tokens
