"""Beam search, with all sentences and beams of a batch in tensors.

The beam of a sentence has `width` slots. At every step its unfinished hypotheses offer their best
continuations, the candidates. Candidates that end among the best `width` enter a pool of the
`width` best finished hypotheses; the slots go to the best candidates that do not end. Systems
differ in two choices, which the strategy makes: whether a finished hypothesis releases its slot for
good, and when the search of a sentence stops.

Shapes: B sentences that are still searched, N sentences of the batch, W beams, L tokens.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, fields
from typing import Any, assert_never

import torch
from torch import Tensor

from regard.core.caches.kv_cache import DecoderState
from regard.core.kernels import cpu_step
from regard.core.mixers.scaled_dot_product_attention import HAS_TRITON
from regard.decode import cuda_graphs, fused_step
from regard.decode.constraints import NEG_INF, Constraints
from regard.decode.cuda_graphs import GraphedLoop
from regard.decode.events import BeamStep, StepCallback
from regard.decode.strategy import BeamSearch, Hypothesis
from regard.decode.topk import top_tokens
from regard.wirings.generative import Generative

# Of a sentence: the kernel compares each with each other.
MOST_KERNEL_CANDIDATES = 256


@dataclass
class FinishedPool:
    """The best finished hypotheses of each sentence, up to `width`, best first."""

    scores: Tensor  # [N, W] after the length penalty; -inf marks an empty slot
    sums: Tensor  # [N, W] log-probability
    lengths: Tensor  # [N, W]
    ended: Tensor  # [N, W] by an end token, not by the limit
    tokens: Tensor  # [N, W, L]

    def count(self, sentences: Tensor) -> Tensor:
        """[B] how many hypotheses of these sentences are finished."""
        return (self.scores[sentences] > NEG_INF).sum(dim=1)

    def add(self, sentences: Tensor, candidates: FinishedPool) -> None:
        """Keeps the best `width` of the pool and the candidates [B, 2W] of these sentences."""
        width = self.scores.shape[1]
        scores = torch.cat([self.scores[sentences], candidates.scores], dim=1)  # [B, 3W]
        best = scores.topk(width, dim=1).indices  # [B, W]
        rows = torch.arange(len(sentences), device=best.device)[:, None]
        for field in fields(self):
            pool = getattr(self, field.name)
            both = torch.cat([pool[sentences], getattr(candidates, field.name)], dim=1)
            pool[sentences] = both[rows, best]


@dataclass
class SearchState:
    """The unfinished hypotheses of the sentences that are still searched, and the finished ones."""

    cache: DecoderState
    constraints: Constraints
    finished: FinishedPool
    divisors: Tensor  # [L] the length penalty of each length
    t: Tensor  # [1] how many tokens each hypothesis has; [B] where they joined at different times
    sentences: Tensor  # [B] which sentence of the batch each is
    sums: Tensor  # [B, W] log-probability; -inf marks an empty slot
    tokens: Tensor  # [B, W, L]
    last: Tensor  # [B · W, 1] the newest tokens; [B · W, P] start tokens before the first step
    running: Tensor  # [B] whether the search of a sentence goes on

    def select(self, sentences: Tensor) -> None:
        """Keeps only these sentences, by their index among the B."""
        width = self.sums.shape[1]
        self.sentences = self.sentences[sentences]
        self.sums = self.sums[sentences]
        self.tokens = self.tokens[sentences]
        self.running = self.running[sentences]
        self.last = self.last.view(-1, width)[sentences].reshape(-1, 1)
        self.cache.keep(sentences)


def search(
    model: Generative,
    encoded: Any,
    strategy: BeamSearch,
    constraints: Constraints,
    on_step: StepCallback | None = None,
) -> list[list[Hypothesis]]:
    """The `n_best` hypotheses of each sentence, best first."""
    device = constraints.limits.device
    regular = constraints.first_step_is_regular
    capacity = cuda_graphs.padded_length(constraints.cache_capacity, device)
    length = cuda_graphs.padded_length(constraints.max_steps, device)
    is_read = on_step is not None or constraints.stops is not None
    graphed = cuda_graphs.enabled(device) and not is_read and not encoded.probe.active

    def start(inputs: tuple[Any, Constraints, Tensor]) -> SearchState:
        encoded, constraints, divisors = inputs
        cache = model.start(encoded, width=strategy.width, capacity=capacity)
        state = begin(cache, strategy, constraints, divisors)
        if regular:
            state.cache.share_rows()  # beams share rows of the KV cache from here on
            if graphed:
                state.cache.make_static()
        return state

    def step(state: SearchState, *, first: bool = False) -> None:
        _step(model, state, strategy, on_step, first=first)
        if not first:
            state.last.copy_(newest_tokens(state))

    inputs = (encoded, constraints, divisors_of(strategy, length, device))
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
        state.last = state.tokens[:, :, 0].flatten()[:, None].clone()
        state.cache.share_rows()
        graphed = graphed and state.cache.make_static()
    # Whether the KV cache became static.
    graphed = graphed and state.cache.device_position is not None
    loop = GraphedLoop(step, state, graphed=graphed, model=model, key=graph_key)
    for done in range(int(not regular), constraints.max_steps):
        if not loop.drop_done(done, lambda state: state.running, SearchState.select):
            break
        loop()
    return n_best_of(loop.state.finished, strategy.n_best)


def divisors_of(strategy: BeamSearch, length: int, device: torch.device) -> Tensor:
    """The length penalty of each length [L]."""
    divisors = [strategy.penalty.divisor(n) for n in range(1, length + 1)]
    return torch.tensor(divisors, device=device)


def begin(
    cache: DecoderState, strategy: BeamSearch, constraints: Constraints, divisors: Tensor
) -> SearchState:
    """The state before the first step, of as many as there are divisors."""
    device = constraints.limits.device
    width = strategy.width
    length = len(divisors)
    count = len(constraints.limits)
    sums = torch.full((count, width), NEG_INF, device=device)
    sums[:, 0] = 0.0  # all beams begin alike, so one of them is enough
    tokens = torch.full((count, width, length), constraints.end, device=device)
    return SearchState(
        cache=cache,
        constraints=constraints,
        finished=FinishedPool(
            scores=torch.full((count, width), NEG_INF, device=device),
            sums=torch.full((count, width), NEG_INF, device=device),
            lengths=torch.zeros(count, width, dtype=torch.long, device=device),
            ended=torch.zeros(count, width, dtype=torch.bool, device=device),
            tokens=tokens.clone(),
        ),
        divisors=divisors,
        t=torch.zeros(1, dtype=torch.long, device=device),
        sentences=torch.arange(count, device=device),
        sums=sums,
        tokens=tokens,
        last=constraints.start_tokens.repeat_interleave(width, dim=0),
        running=torch.ones(count, dtype=torch.bool, device=device),
    )


def _step(
    model: Generative,
    state: SearchState,
    strategy: BeamSearch,
    on_step: StepCallback | None,
    *,
    first: bool,
) -> None:
    """One step of every sentence."""
    logits = fused_step.step(model, state.last, state.cache)[:, -1]  # [B · W, V]
    state.cache.reorder(take_beams(logits, state, strategy, on_step, first=first))


def newest_tokens(state: SearchState) -> Tensor:
    """[B · W, 1], what the next step reads."""
    column = state.tokens[:, :, :1]
    return state.tokens.gather(2, _per_row(state.t - 1, column)).reshape(-1, 1)


def _per_row(t: Tensor, like: Tensor) -> Tensor:
    """t [1] or [B], as an index of the shape [B, W, 1] of another tensor."""
    return t[:, None, None].expand_as(like)


def take_beams(
    logits: Tensor,
    state: SearchState,
    strategy: BeamSearch,
    on_step: StepCallback | None = None,
    *,
    first: bool = False,
) -> Tensor:
    """The new beam of every sentence, from what the model says of each hypothesis [B · W, V], and
    whether its search goes on; the row [B · W] that each hypothesis continues."""
    constraints = state.constraints
    width = strategy.width
    t = state.t if len(state.t) == 1 else state.t.repeat_interleave(width)  # of rows
    row_sentences = state.sentences.repeat_interleave(
        width, output_size=len(state.sentences) * width
    )
    logits = constraints.mask_logits(logits, t, row_sentences, first=first)
    forbidden = constraints.forbidden_by_rules(
        logits, t, row_sentences, state.tokens.flatten(0, 1), first=first
    )
    # The best 2W of a sentence have at most 2W from one beam.
    count = min(2 * width, logits.shape[1])
    values, tokens, normalizer = top_tokens(logits, count)  # [B · W, 2W]
    if forbidden is not None or constraints.repetition_penalty != 1:
        # Forbidden tokens have their share of the probability, and are not chosen.
        scores = constraints.penalize_repetition(
            logits - normalizer[:, None], t, row_sentences, state.tokens.flatten(0, 1)
        )
        if forbidden is not None:
            scores = scores.masked_fill(forbidden, NEG_INF)
        log_probabilities, tokens, _ = top_tokens(scores, count)
        normalizer = torch.zeros_like(normalizer)
    else:
        log_probabilities = values
    is_read = on_step is not None or constraints.stops is not None
    if not is_read and cpu_step.reads(log_probabilities):
        parent_rows = _advance_on_cpu(state, log_probabilities, tokens, normalizer, strategy)
    elif not is_read and _has_kernel(log_probabilities, state):
        from regard.core.kernels import beam_step

        parent_rows = beam_step.advance(log_probabilities, tokens, normalizer, state, strategy)
    else:
        log_probabilities = log_probabilities - normalizer[:, None]
        parent_rows = _advance(state, log_probabilities, tokens, strategy, on_step)
        undecided = ~_is_decided(state, strategy)
        state.running.copy_((state.sums > NEG_INF).any(dim=1) & undecided)
    state.t.add_(1)
    return parent_rows


def _has_kernel(values: Tensor, state: SearchState) -> bool:
    """Whether one kernel advances all sentences, from the best `values` [B · W, n] of each row."""
    candidates = state.sums.shape[1] * values.shape[1]
    one_end = not state.constraints.extra_ends
    return values.is_cuda and HAS_TRITON and one_end and candidates <= MOST_KERNEL_CANDIDATES


def _advance_on_cpu(
    state: SearchState,
    values: Tensor,
    next_tokens: Tensor,
    normalizers: Tensor,
    strategy: BeamSearch,
) -> Tensor:
    """`_advance` and what follows it, in one function."""
    batch, width, length = state.tokens.shape
    constraints = state.constraints
    finished = state.finished
    parents = torch.empty(batch * width, dtype=torch.long)
    ends = torch.tensor([constraints.end, *constraints.extra_ends])
    search = cpu_step.SearchState(
        batch,
        width,
        length,
        values.shape[1],
        strategy.slots == "refilled",
        cpu_step.STOPS.index(strategy.stop),
        strategy.n_best,
        state.t.data_ptr(),
        int(len(state.t) > 1),
        ends.data_ptr(),
        len(ends),
        state.divisors.data_ptr(),
        len(state.divisors),
        state.sentences.data_ptr(),
        constraints.limits.data_ptr(),
        state.sums.data_ptr(),
        state.tokens.data_ptr(),
        state.running.data_ptr(),
        finished.scores.data_ptr(),
        finished.sums.data_ptr(),
        finished.lengths.data_ptr(),
        finished.ended.data_ptr(),
        finished.tokens.data_ptr(),
        parents.data_ptr(),
    )
    cpu_step.advance(search, values, next_tokens, normalizers)
    return parents


def _advance(
    state: SearchState,
    log_probabilities: Tensor,
    next_tokens: Tensor,
    strategy: BeamSearch,
    on_step: StepCallback | None,
) -> Tensor:
    """The new beam, from the best next tokens of each row and their log-probabilities [B · W, n].

    Adds to `finished`, replaces the unfinished hypotheses in place, and returns the row [B · W]
    that each of them continues.
    """
    constraints = state.constraints
    t = state.t
    device = log_probabilities.device
    batch, width = state.sums.shape
    per_row = log_probabilities.shape[1]
    totals = state.sums[:, :, None] + log_probabilities.view(batch, width, -1)
    totals = totals.flatten(1)  # [B, W · n]
    # Twice the width has `width` candidates that go on even if every hypothesis offers its end.
    sums, index = totals.topk(min(2 * width, totals.shape[1]), dim=1)  # [B, 2W]
    parents = index // per_row  # [B, 2W], the beam that each candidate continues
    tokens = next_tokens.view(batch, -1).gather(1, index)  # [B, 2W]
    rows = torch.arange(batch, device=device)[:, None]
    history = state.tokens[rows, parents]  # [B, 2W, L]
    history.scatter_(2, _per_row(t, tokens[:, :, None]), tokens[:, :, None])

    # A candidate may finish only if it is among the best of the slots that there are.
    slots = _slot_count(state, strategy)
    rank = torch.arange(sums.shape[1], device=device)[None]
    at_limit = (constraints.limits[state.sentences] == t + 1)[:, None]
    ends = constraints.is_end(tokens)
    lengths = t[:, None] + 1 - ends.long()  # without the end token
    if constraints.stops is not None:
        lasts = t.expand(batch).tolist()
        stopped = [
            [constraints.stops(sentence, beam[: last + 1]) for beam in beams]
            for sentence, beams, last in zip(
                state.sentences.tolist(), history.tolist(), lasts, strict=True
            )
        ]
        ends |= torch.tensor(stopped, device=device)
    finishing = (rank < slots) & (ends | at_limit)
    scores = torch.where(finishing, sums / state.divisors[t][:, None], NEG_INF)
    state.finished.add(state.sentences, FinishedPool(scores, sums, lengths, ends, history))

    # The slots that are left go to the best candidates that do not end, in order.
    # Ends are ranked behind all others: [B, W]
    survivors = torch.where(ends, rank + sums.shape[1], rank).argsort(dim=1)[:, :width]
    released = rank[:, :width] >= _slot_count(state, strategy)
    state.sums.copy_(sums.gather(1, survivors).masked_fill(released | at_limit, NEG_INF))
    state.tokens.copy_(history[rows, survivors])
    if on_step is not None:
        active = state.sums > NEG_INF
        on_step(BeamStep(int(t), state.sentences, parents, tokens, sums, scores, survivors, active))
    return (rows * width + parents.gather(1, survivors)).flatten()


def _slot_count(state: SearchState, strategy: BeamSearch) -> Tensor | int:
    """The number of hypotheses of each sentence to continue: [B, 1], or one number for all."""
    if strategy.slots == "refilled":
        return strategy.width
    return strategy.width - state.finished.count(state.sentences)[:, None]


def _is_decided(state: SearchState, strategy: BeamSearch) -> Tensor:
    """[B] True where the search of a sentence stops."""
    t = state.t
    divisors = state.divisors
    scores = state.finished.scores[state.sentences]  # [B, W]
    best_sum = state.sums.max(dim=1).values
    worst = scores[:, -1]  # −∞ until the pool is full
    match strategy.stop:
        case "full":
            return worst > NEG_INF
        case "likely":
            return worst >= best_sum / divisors[t]
        case "certain":
            # log P only falls and divisors are monotonic, so the best score that an unfinished
            # hypothesis can still reach is at the next length or at the limit.
            at_limit = divisors[state.constraints.limits[state.sentences] - 1]
            at_next = divisors[(t + 1).clamp_max(len(divisors) - 1)]
            bound = best_sum / torch.maximum(at_limit, at_next)
            return scores[:, strategy.n_best - 1] >= bound
        case _:
            assert_never(strategy.stop)


def n_best_of(finished: FinishedPool, n_best: int) -> list[list[Hypothesis]]:
    """The best finished hypotheses of each sentence."""
    columns = (finished.tokens, finished.lengths, finished.scores, finished.sums, finished.ended)
    results: list[list[Hypothesis]] = []
    for sentence in zip(*cuda_graphs.to_lists(columns), strict=True):
        hypotheses = [
            Hypothesis(tuple(tokens[:length]), score, log_probability, ended)
            for tokens, length, score, log_probability, ended in zip(*sentence, strict=True)
            if score > NEG_INF
        ]
        results.append(hypotheses[:n_best])
    return results
