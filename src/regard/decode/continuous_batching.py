"""Continuous batching: texts join a batch and leave it between two steps (Orca, Yu et al. 2022).

A step is one call of the model for all rows, whatever is decoded in them, and one choice of tokens
for each group of texts that are decoded alike: `take_tokens` or `take_beams`, as in a batch whose
texts began together. What a text becomes does not depend on what else is in the batch.
"""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from regard.core.caches.kv_cache import DecoderState
from regard.core.caches.slots import ROW_MULTIPLE, Slots
from regard.core.context import Context
from regard.core.finite_outputs import non_finite_error
from regard.core.probe import NO_PROBE, NullProbe, RowPart, RowProbe
from regard.core.stack import Stack
from regard.decode import beam_search, fused_step, greedy_and_sampling
from regard.decode.batch_decoding import DecodingSettings, Source, SpecialTokens, constraints_of
from regard.decode.beam_search import FinishedPool, SearchState
from regard.decode.constraints import NEG_INF, Constraints
from regard.decode.cuda_graphs import to_lists
from regard.decode.greedy_and_sampling import GenerationState
from regard.decode.strategy import BeamSearch, Hypothesis, Sampling, Strategy
from regard.wirings.generative import Generative


@dataclass(eq=False)
class Job:
    """One text to decode: its rows in the batch, and what has come of it so far.

    `settings.stops` and `settings.stream` are not used; `stops(tokens)` ends a hypothesis of a beam
    as it is, and `wants_logits` keeps the logits of each new token.
    """

    source: Source
    special_tokens: SpecialTokens
    settings: DecodingSettings
    key: int = 0  # the random stream that is drawn from
    stops: Callable[[list[int]], bool] | None = None
    wants_logits: bool = False
    # --- in the batch ---
    searches: list[Search] = field(default_factory=list)
    error: BaseException | None = None

    def fail(self, error: BaseException) -> None:
        """The job is in error; the first one counts."""
        self.error = self.error or error

    def is_stopped(self, tokens: list[int]) -> bool:
        """Whether these tokens of a beam end a hypothesis."""
        if self.stops is None or self.error is not None:
            return False
        try:
            return self.stops(tokens)
        except Exception as error:  # whatever it is, it is this job's alone
            self.fail(error)
            return True

    @property
    def strategy(self) -> Strategy:
        return self.settings.strategy

    @property
    def width(self) -> int:
        """How many rows each of its searches takes."""
        if isinstance(self.strategy, BeamSearch):
            return self.strategy.width
        return 1

    @property
    def count(self) -> int:
        """How many searches it is."""
        if isinstance(self.strategy, Sampling):
            return self.strategy.draws
        return 1

    @property
    def rows(self) -> int:
        """How many rows it takes."""
        return self.width * self.count


@dataclass(eq=False)
class Search:
    """One search of a job: a sample, the greedy continuation, or a beam."""

    job: Job
    index: int
    slots: list[int]  # its rows: one, or one for each beam
    tokens: list[int] = field(default_factory=list)  # that will not change any more
    log_probabilities: list[float] = field(default_factory=list)  # of them, without a beam
    logits: Tensor | None = None  # [V] of the newest of them, where they are wanted
    total: float = 0.0  # log-probability
    hypotheses: list[Hypothesis] | None = None  # once it is done


class Prefill:
    """Reads the source or the prompt of a job, in pieces: all that comes before the first step.
    Prompts of one length may be read together, if `can_share`."""

    def __init__(self, model: Generative, jobs: Sequence[Job], most_tokens: int) -> None:
        self.model = model
        self.jobs = jobs
        first = jobs[0]
        device = next(model.parameters()).device
        sources = [torch.as_tensor(job.source, device=device) for job in jobs]
        self.source = torch.stack(sources)
        self.constraints = [
            constraints_of([job.source], source[None], None, job.special_tokens, job.settings)
            for job, source in zip(jobs, sources, strict=True)
        ]
        self.in_pieces = first.special_tokens.start is None and model.keeps_cache
        # What the decoder reads: the last token is that of the first step.
        reads = self.constraints[0].start_tokens
        if self.in_pieces:
            reads = self.source
        self.last = reads[:, -1:]
        before = reads[:, :-1].split(most_tokens, dim=1)
        self.pieces = [piece for piece in before if piece.shape[1]]
        self.state: DecoderState | None = None

    @staticmethod
    def can_share(model: Generative, job: Job, most_tokens: int) -> bool:
        """Whether its prompt, of one piece, may be read with others without a difference: causal
        attention of several positions has one kernel, and so have products of four rows and
        more. A recurrent model reads position by position."""
        in_parallel = isinstance(model.stacks()["decoder"], Stack) and model.keeps_cache
        is_prompt = job.special_tokens.start is None and in_parallel
        is_one_piece = ROW_MULTIPLE < len(job.source) <= most_tokens
        return is_prompt and is_one_piece and not job.settings.probe.active

    def __call__(self) -> int:
        """Reads one piece; the number of its tokens. `done` says whether it was the last."""
        if self.state is None:
            # Of a prompt that is read in pieces the first token alone, which leaves caches empty.
            source = self.source
            if self.in_pieces:
                source = source[:, :1]
            context = Context(probe=self.jobs[0].settings.probe)
            encoded = self.model.encode(source, None, context)
            most = max(one.cache_capacity for one in self.constraints)
            self.state = self.model.start(encoded, capacity=most + self.source.shape[-1])
            if not self.in_pieces:
                return source.shape[-1]
        if not self.pieces:
            return 0
        piece = self.pieces.pop(0)
        self.model.advance(piece, self.state)
        return piece.numel()

    @property
    def done(self) -> bool:
        return self.state is not None and not self.pieces


class ContinuousBatch:
    """Up to `rows` rows of one model. All of it runs in inference mode."""

    def __init__(self, model: Generative, rows: int) -> None:
        self.model = model
        self.most_rows = rows
        self.device = next(model.parameters()).device
        self.rows: _SlotRows | _OwnRows = _OwnRows()
        if model.keeps_cache:
            self.rows = _SlotRows(rows)
        self.owners: list[tuple[Search, int]] = []  # of each row in use, and which of its rows
        self.groups: dict[Hashable, _Group] = {}

    @property
    def free(self) -> int:
        return self.most_rows - len(self.owners)

    def join(self, prefill: Prefill) -> None:
        """Jobs that have been read take part from the next step on."""
        for number, job in enumerate(prefill.jobs):
            self._join(prefill, number, job)

    def _join(self, prefill: Prefill, number: int, job: Job) -> None:
        assert prefill.state is not None
        for index in range(job.count):
            search = Search(job, index, [])
            job.searches.append(search)
            for beam in range(job.width):
                search.slots.append(len(self.owners))
                self.owners.append((search, beam))
        self.rows.join(prefill.state, number, job.rows)
        last = prefill.last[number, None]
        self._add(_Group.begin(job, prefill.constraints[number], last))

    def _add(self, group: _Group) -> None:
        if group.key in self.groups:
            self.groups[group.key].join(group)
        else:
            self.groups[group.key] = group

    def leave(self, searches: Sequence[Search]) -> None:
        """Takes searches out, whatever has become of them."""
        leaving = {id(search) for search in searches}
        for key, group in [*self.groups.items()]:
            staying = [i for i, one in enumerate(group.searches) if id(one) not in leaving]
            if not staying:
                del self.groups[key]
            elif len(staying) < len(group.searches):
                group.keep(staying)
        free = {row for search in searches for row in search.slots}
        for search in searches:
            if search.job.error is not None:
                for row in search.slots:
                    self.rows.clear(row)
            search.slots = []
        # The last rows take the places of those that are free.
        count = len(self.owners) - len(free)
        last = [row for row in range(count, len(self.owners)) if row not in free]
        moved = [*zip(sorted(row for row in free if row < count), last, strict=True)]
        self.rows.keep(count, moved)
        for row, other in moved:
            search, beam = self.owners[row] = self.owners[other]
            search.slots[beam] = row
        del self.owners[count:]

    # ------------------------------------------------------------------ a step

    def step(self) -> list[Search]:
        """One token of each row: all searches that took part. Those that are done, or whose job
        is in error, have left."""
        groups = [*self.groups.values()]
        searches = [search for group in groups for search in group.searches]
        rows = [self._rows(group) for group in groups]
        tokens = torch.zeros(self.rows.used, 1, dtype=torch.long, device=self.device)
        for group, index in zip(groups, rows, strict=True):
            tokens[index] = group.last()
        logits = self.rows.step(self.model, tokens, self._probe(searches))  # [rows, V]
        for group, index in zip(groups, rows, strict=True):
            for search in group.searches:
                if search.job.wants_logits:
                    search.logits = logits[search.slots[0]]
            try:
                parents = group.choose(logits[index], self.model)
            except Exception as error:  # of what these ask for, and nobody else
                for search in group.searches:
                    search.job.fail(error)
                continue
            if parents is not None:
                self.rows.reorder(index, index[parents])
        done = [one for one in searches if one.hypotheses is not None or one.job.error]
        if done:
            self.leave(done)
        # What had a first step of its own goes on with the others.
        for key, group in [*self.groups.items()]:
            if key != group.key:
                del self.groups[key]
                self._add(group)
        return searches

    def _rows(self, group: _Group) -> Tensor:
        slots = [slot for search in group.searches for slot in search.slots]
        return torch.tensor(slots, device=self.device)

    def _probe(self, searches: Sequence[Search]) -> NullProbe:
        """What is recorded or edited in this step, each of the rows of its job."""
        rows: dict[Job, list[int]] = {}
        for search in searches:
            if search.job.settings.probe.active:
                rows.setdefault(search.job, []).extend(search.slots)
        if not rows:
            return NO_PROBE
        parts = [
            RowPart(torch.tensor(slots, device=self.device), job.settings.probe, job.fail)
            for job, slots in rows.items()
        ]
        return RowProbe(parts)


# ------------------------------------------------------------------ rows of the model


class _SlotRows(Slots):
    def step(self, model: Generative, tokens: Tensor, probe: NullProbe) -> Tensor:
        """tokens [rows, 1] → logits [rows, V]"""
        state = self.state(probe)
        logits = fused_step.step(model, tokens, state)[:, -1]
        self.advanced(state)
        return logits


class _OwnRows:
    """Rows of a model that keeps no cache: each has a state of its own."""

    def __init__(self) -> None:
        self.states: list[DecoderState] = []

    @property
    def used(self) -> int:
        return len(self.states)

    def join(self, state: DecoderState, source: int, count: int) -> None:
        """Each state has one row: such models read one text at a time."""
        self.states += [copy.deepcopy(state) for _ in range(count)]

    def keep(self, count: int, moved: Sequence[tuple[int, int]]) -> None:
        for row, other in moved:
            self.states[row] = self.states[other]
        del self.states[count:]

    def clear(self, row: int) -> None:
        """Nothing of one row is read by another."""

    def reorder(self, rows: Tensor, parents: Tensor) -> None:
        before = [*self.states]
        for row, parent in zip(rows.tolist(), parents.tolist(), strict=True):
            self.states[row] = copy.deepcopy(before[parent])

    def step(self, model: Generative, tokens: Tensor, probe: NullProbe) -> Tensor:
        """tokens [rows, 1] → logits [rows, V]"""
        steps = zip(tokens.split(1), self.states, strict=True)
        return torch.cat([model.step(token, state)[:, -1] for token, state in steps])


# ------------------------------------------------------------------ searches that are alike


@dataclass(eq=False)
class _Group:
    """Searches with the same strategy and the same rules, in one state of decoding. `first` is
    whether their first step is still to come and not like the others."""

    strategy: Strategy
    state: GenerationState | SearchState
    searches: list[Search]
    rules: Hashable
    first: bool

    @property
    def key(self) -> Hashable:
        return self.strategy, self.rules, self.first

    @classmethod
    def begin(cls, job: Job, constraints: Constraints, last: Tensor) -> _Group:
        """The searches of one job."""
        strategy = job.strategy
        if isinstance(strategy, Sampling):  # what else draws alike may have another seed
            strategy = replace(strategy, seed=0, draws=1)
        count = job.count
        prefix = None  # of the prompt, where there are rules that read it
        if constraints.no_repeat_ngram_size or constraints.repetition_penalty != 1:
            assert constraints.prefix is not None
            prefix = constraints.prefix.repeat(count, 1)
        constraints = replace(
            constraints,
            start_tokens=last.repeat(count, 1),
            limits=constraints.limits.repeat(count),
            prefix=prefix,
            stops=None,
        )
        first = not constraints.first_step_is_regular
        group = cls(strategy, _begin_state(job, constraints), [*job.searches], (), first)
        if job.stops is not None and isinstance(strategy, BeamSearch):
            constraints = replace(constraints, stops=group.is_stopped)
            group.state.constraints = constraints
        suppressed = constraints.begin_suppressed
        group.rules = (
            constraints.graph_key,
            tuple(constraints.banned.tolist()),
            suppressed is not None and tuple(suppressed.tolist()),
            constraints.stops is None,
        )
        return group

    def is_stopped(self, number: int, tokens: list[int]) -> bool:
        return self.searches[number].job.is_stopped(tokens)

    # ------------------------------------------------------------------ who takes part

    def join(self, other: _Group) -> None:
        """The searches of another group, which are of the same kind, come behind those of this."""
        self.searches += other.searches
        one = self.state
        two = other.state
        if isinstance(one, SearchState) and isinstance(two, SearchState):
            one.divisors = max(one.divisors, two.divisors, key=len)
        self._replace(lambda name, get: _appended(name, get(one), get(two)))

    def keep(self, numbers: Sequence[int]) -> None:
        """Only these searches."""
        self.searches = [self.searches[number] for number in numbers]
        index = torch.tensor(numbers, device=self.state.t.device)
        state = self.state

        def kept(name: str, get: Callable[[Any], Any]) -> Tensor | None:
            rows: Tensor | None = get(state)
            return rows if rows is None else rows[index]

        self._replace(kept)

    def _replace(self, value: Callable[[str, Callable[[Any], Any]], Tensor | None]) -> None:
        """Replaces all tensors that have a row for each search by value(name, getter)."""
        state = self.state

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
        state.sentences = torch.arange(len(self.searches), device=state.t.device)

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

    def _report_tokens(self, state: GenerationState, model: Generative) -> None:
        newest = state.tokens.gather(1, state.t[:, None] - 1)[:, 0]
        columns = (newest, state.sums, state.ended, state.done())
        for search, (token, total, ended, done) in zip(
            self.searches, zip(*to_lists(columns), strict=True), strict=True
        ):
            if math.isnan(total):
                search.job.fail(non_finite_error(model))
            if not ended:
                search.tokens.append(token)
                search.log_probabilities.append(total - search.total)
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


def _begin_state(job: Job, constraints: Constraints) -> GenerationState | SearchState:
    """The state of decoding before the first step; the caches are those of the whole batch."""
    strategy = job.strategy
    count = job.count
    device = constraints.limits.device
    length = constraints.max_steps
    nothing = DecoderState([])
    if isinstance(strategy, BeamSearch):
        state: Any = beam_search.begin(nothing, strategy, constraints, length)
    else:
        keys = [job.key * count + index for index in range(count)]
        noise = greedy_and_sampling.draw_noise(strategy, keys, length, device)
        state = greedy_and_sampling.begin(nothing, constraints, length, noise)
    state.t = state.t.repeat(count)
    return state  # type: ignore[no-any-return]


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
