"""Searches of a continuous batch that are decoded alike, whenever they began: one state of decoding
with a row for each, and one choice of tokens for all."""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from regard.core.caches.kv_cache import DecoderState
from regard.core.finite_outputs import non_finite_error
from regard.core.seeding import philox
from regard.data.padding import pad_rows, round_up
from regard.decode import beam_search, greedy_and_sampling
from regard.decode.batch_decoding import constraints_of
from regard.decode.beam_search import FinishedPool, SearchState
from regard.decode.constraints import NEG_INF
from regard.decode.cuda_graphs import LENGTH_MULTIPLE, to_lists
from regard.decode.greedy_and_sampling import GenerationState
from regard.decode.jobs import Search
from regard.decode.strategy import BeamSearch, Hypothesis, Sampling, Strategy
from regard.wirings.generative import Generative


@dataclass(eq=False)
class SearchGroup:
    """Searches with the same strategy and the same rules, in one state of decoding. `first` is
    whether their first step is still to come and not like the others."""

    strategy: Strategy
    state: GenerationState | SearchState
    searches: list[Search]
    rules: Hashable
    first: bool

    @property
    def key(self) -> Hashable:
        return self.rules, self.first

    @classmethod
    def begin(cls, searches: list[Search], device: torch.device) -> SearchGroup:
        """Searches of jobs of one kind."""
        jobs = [search.job for search in searches]
        job = jobs[0]
        newest = torch.tensor([[one.start[-1]] for one in jobs], device=device)
        constraints = constraints_of([job.source], newest, None, job.special_tokens, job.settings)
        prefix = None  # what has been read, where there are rules that count it
        if constraints.no_repeat_ngram_size or constraints.repetition_penalty != 1:
            prefix = pad_rows([one.read for one in jobs], -1, side="left")[0].to(device)
        limits = [one.settings.limit(one.source_length) for one in jobs]
        constraints = replace(
            constraints,
            start_tokens=newest,
            limits=torch.tensor(limits, device=device),
            prefix=prefix,
            stops=None,
        )
        strategy = job.strategy
        nothing = DecoderState([])  # the caches are those of the whole batch
        state: Any
        if isinstance(strategy, BeamSearch):
            divisors = beam_search.divisors_of(strategy, max(limits), device)
            state = beam_search.begin(nothing, strategy, constraints, divisors)
        else:
            noise = _noise(searches, max(limits), device)
            state = greedy_and_sampling.begin(nothing, constraints, max(limits), noise)
        state.t = state.t.repeat(len(searches))
        first = not constraints.first_step_is_regular
        group = cls(strategy, state, searches, job.kind, first)
        if job.stops is not None and isinstance(strategy, BeamSearch):
            state.constraints = replace(constraints, stops=group.is_stopped)
        return group

    @property
    def slots(self) -> list[int]:
        """The rows of its searches, one after the other."""
        return [slot for search in self.searches for slot in search.slots]

    def is_stopped(self, number: int, tokens: list[int]) -> bool:
        return self.searches[number].job.is_stopped(tokens)

    # ------------------------------------------------------------------ who takes part

    def join(self, other: SearchGroup) -> None:
        """The searches of another group, which are of the same kind, come behind those of this."""
        self.searches += other.searches
        one = self.state
        two = other.state
        if isinstance(one, SearchState) and isinstance(two, SearchState):
            one.divisors = max(one.divisors, two.divisors, key=len)
        self._replace(lambda name, get: _appended(name, get(one), get(two)), one)
        one.sentences = torch.arange(len(self.searches), device=one.t.device)

    def keep(self, numbers: Sequence[int]) -> None:
        """Only these searches."""
        self.searches = [self.searches[number] for number in numbers]
        index = torch.tensor(numbers, device=self.state.t.device)
        state = self.state

        def kept(name: str, get: Callable[[Any], Any]) -> Tensor | None:
            rows: Tensor | None = get(state)
            return rows if rows is None else rows[index]

        self._replace(kept, state)
        state.sentences = torch.arange(len(self.searches), device=state.t.device)

    @staticmethod
    def _replace(
        value: Callable[[str, Callable[[Any], Any]], Tensor | None],
        state: GenerationState | SearchState,
    ) -> None:
        """Replaces all tensors that have a row for each search by value(name, getter)."""

        def replaced(prefix: str, names: Sequence[str]) -> dict[str, Any]:
            return {name: value(name, operator.attrgetter(prefix + name)) for name in names}

        rows = replaced("", _ROW_FIELDS[type(state)])
        rules = replaced("constraints.", ("limits", "start_tokens", "prefix"))
        state.constraints = replace(state.constraints, **rules)
        if isinstance(state, SearchState):
            pool = replaced("finished.", [one.name for one in fields(FinishedPool)])
            state.finished = FinishedPool(**pool)
        for name, tensor in rows.items():
            setattr(state, name, tensor)

    # ------------------------------------------------------------------ a step

    def last(self) -> Tensor:
        """[rows, 1] what the next step reads."""
        state = self.state
        start = state.constraints.start_tokens
        newest = (state.t - 1).clamp_min(0)
        if isinstance(state, SearchState):
            column = state.tokens[:, :, :1]  # [B, W, 1]
            index = newest[:, None, None].expand_as(column)
            tokens = state.tokens.gather(2, index)
            is_new = (state.t > 0)[:, None, None]
            return torch.where(is_new, tokens, start[:, None]).reshape(-1, 1)
        tokens = state.tokens.gather(1, newest[:, None])
        return torch.where((state.t > 0)[:, None], tokens, start)

    def choose(self, logits: Tensor, model: Generative) -> Tensor | None:
        """The next tokens, from logits [rows, V]; the row that each row of a beam continues."""
        state = self.state
        first = self.first
        self.first = False
        if isinstance(state, SearchState):
            assert isinstance(self.strategy, BeamSearch)
            parents = beam_search.take_beams(logits, state, self.strategy, first=first)
            self._report_beams(state, self.strategy, model)
            return parents
        assert not isinstance(self.strategy, BeamSearch)
        greedy_and_sampling.take_tokens(logits, state, self.strategy, first=first)
        state.t = state.t + 1
        self._report_tokens(state, model)
        return None

    @property
    def steps_left(self) -> int:
        """How many steps some of them may still take."""
        jobs = [search.job for search in self.searches]
        limits = [job.settings.limit(job.source_length) for job in jobs]
        taken = [len(search.tokens) for search in self.searches]
        return max(limit - count for limit, count in zip(limits, taken, strict=True))

    def spread(self, index: Tensor, rows: int, cache: DecoderState) -> GenerationState:
        """The same state with a row for each slot, of which `index` are those of the group; the
        others are done, and stay where they are."""
        state = self.state
        assert isinstance(state, GenerationState)
        state.last = self.last()
        # One more: who is done writes behind its last token.
        length = round_up(state.tokens.shape[1] + 1, LENGTH_MULTIPLE)

        def spread(name: str, get: Callable[[Any], Any]) -> Tensor | None:
            tensor: Tensor | None = get(state)
            if tensor is None:
                return None
            if name in ("tokens", "noise"):
                tensor = functional.pad(tensor, (0, length - tensor.shape[1]))
            spread = tensor.new_zeros(rows, *tensor.shape[1:])
            return spread.index_copy_(0, index, tensor)

        spread_state = copy.copy(state)
        self._replace(spread, spread_state)
        spread_state.sentences = torch.arange(rows, device=index.device)
        spread_state.cache = cache
        return spread_state

    def gather(self, index: Tensor, spread: GenerationState, count: int, model: Generative) -> None:
        """Takes back what `spread` has become in so many steps."""
        state = self.state
        assert isinstance(state, GenerationState)
        width = state.tokens.shape[1]
        for name in ("t", "sums", "ended"):
            setattr(state, name, getattr(spread, name)[index])
        state.tokens = spread.tokens[index, :width]
        self._report_tokens(state, model, count)

    def _report_tokens(self, state: GenerationState, model: Generative, count: int = 1) -> None:
        """What the last `count` steps have brought."""
        before = torch.tensor([len(one.tokens) for one in self.searches], device=state.t.device)
        places = before[:, None] + torch.arange(count, device=before.device)
        new = state.tokens.gather(1, places.clamp_max(state.tokens.shape[1] - 1))
        columns = to_lists((new, state.t, state.sums, state.ended, state.done()))
        for search, (tokens, t, total, ended, done) in zip(
            self.searches, zip(*columns, strict=True), strict=True
        ):
            if math.isnan(total):
                search.job.fail(non_finite_error(model))
            search.tokens += tokens[: t - ended - len(search.tokens)]
            search.total = total
            if done:
                tokens = tuple(search.tokens)
                search.hypotheses = [Hypothesis(tokens, total, total, ended)]

    def _report_beams(self, state: SearchState, strategy: BeamSearch, model: Generative) -> None:
        length = int(state.t.max())
        columns = (state.running, _agreed(state), state.tokens[:, 0, :length])
        for number, (running, agreed, tokens) in enumerate(zip(*to_lists(columns), strict=True)):
            search = self.searches[number]
            if running:
                # With several answers nobody knows yet which of them goes on so.
                if strategy.n_best == 1:
                    search.tokens = tokens[:agreed]
                continue
            pool = FinishedPool(
                *(getattr(state.finished, one.name)[number, None] for one in fields(FinishedPool))
            )
            [search.hypotheses] = beam_search.n_best_of(pool, strategy.n_best)
            if not search.hypotheses:  # NaN is no candidate of a beam
                search.job.fail(non_finite_error(model))
                continue
            best = search.hypotheses[0]
            if strategy.n_best == 1:
                search.tokens = [*best.tokens]
            search.total = best.log_probability


_ROW_FIELDS: dict[type, tuple[str, ...]] = {
    GenerationState: ("t", "limits", "last", "tokens", "sums", "ended", "noise"),
    SearchState: ("t", "sums", "tokens", "running"),
}


def _noise(searches: Sequence[Search], length: int, device: torch.device) -> Tensor | None:
    """[searches, length] what each draws from: of its own seed."""
    rows = []
    for search in searches:
        job = search.job
        if isinstance(job.strategy, Sampling):
            noise = np.random.Generator(
                philox(job.strategy.seed, job.key * job.count + search.index)
            )
            rows.append(noise.random(length))
    if not rows:
        return None
    return torch.from_numpy(np.stack(rows)).to(device)


def _agreed(state: SearchState) -> Tensor:
    """[B] how many first tokens are the same in all hypotheses that may still become the answer:
    those of the beam, and the best finished one."""
    first = state.tokens[:, :1]  # [B, 1, L]: a beam's first hypothesis is never empty
    live = state.sums > NEG_INF  # [B, W]
    same = ((state.tokens == first) | ~live[..., None]).all(dim=1)  # [B, L]
    columns = torch.arange(same.shape[1], device=same.device)
    pool = state.finished
    is_finished = pool.scores[:, :1] > NEG_INF  # [B, 1]
    as_finished = (pool.tokens[:, 0] == first[:, 0]) & (columns < pool.lengths[:, :1])
    same &= as_finished | ~is_finished
    same &= columns < state.t[:, None]
    return same.long().cumprod(dim=1).sum(dim=1)


def _appended(name: str, one: Tensor | None, two: Tensor | None) -> Tensor | None:
    """The rows of both, made as long as the longer ones."""
    if one is None or two is None:
        return None
    length = max(one.shape[-1], two.shape[-1])
    if name == "prefix":  # of a shorter prompt the padding comes first
        one, two = (functional.pad(x, (length - x.shape[1], 0), value=-1) for x in (one, two))
    elif name in ("tokens", "noise"):
        one, two = (functional.pad(x, (0, length - x.shape[-1])) for x in (one, two))
    return torch.cat([one, two])
