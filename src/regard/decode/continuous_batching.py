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
from regard.core.caches.slots import Slots
from regard.core.context import Context
from regard.core.finite_outputs import non_finite_error
from regard.core.masks.mask import CausalMask
from regard.core.probe import NO_PROBE, NullProbe, RowPart, RowProbe
from regard.core.stack import Stack
from regard.data.padding import pad_rows, round_up
from regard.decode import beam_search, cuda_graphs, fused_step, greedy_and_sampling
from regard.decode.batch_decoding import (
    DecodingSettings,
    Source,
    SpecialTokens,
    collate,
    constraints_of,
)
from regard.decode.beam_search import FinishedPool, SearchState
from regard.decode.constraints import NEG_INF
from regard.decode.cuda_graphs import LENGTH_MULTIPLE, GraphedLoop, to_lists
from regard.decode.greedy_and_sampling import GenerationState, generation_step
from regard.decode.strategy import BeamSearch, Greedy, Hypothesis, Sampling, Strategy
from regard.wirings.generative import Generative

# Prompts are padded to this many tokens, and read at most so many of each at once: the attention
# kernel of a CPU then rounds a text alike, whatever it is read with (see the log of serving).
PIECE_MULTIPLE = 16
MOST_IN_PIECE = 128
_MOST_GRAPHS = 32  # of steps of slots, which share the caches


@dataclass(eq=False)
class Job:
    """One text to decode: its rows in the batch, and what has come of it so far.

    `settings.stops` and `settings.stream` are not used; `stops(tokens)` ends a hypothesis of a beam
    as it is, and `wants_logits` keeps the logits of each new token. `is_watched`: somebody looks at
    each token before the next one is taken.
    """

    source: Source
    special_tokens: SpecialTokens
    settings: DecodingSettings
    key: int = 0  # the random stream that is drawn from
    stops: Callable[[list[int]], bool] | None = None
    wants_logits: bool = False
    is_watched: bool = False
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
    def source_length(self) -> int:
        """In tokens, or in frames."""
        return self.source.shape[-1] if isinstance(self.source, Tensor) else len(self.source)

    @property
    def start(self) -> tuple[int, ...]:
        """What its decoder begins with, the newest token last."""
        start = self.special_tokens.start
        if start is None:  # a language model goes on from the last token of its prompt
            start = int(self.source[-1])
        return (start,) if isinstance(start, int) else start

    @property
    def kind(self) -> Hashable:
        """Jobs of one kind are decoded alike."""
        strategy = self.strategy
        if isinstance(strategy, Sampling):  # what else draws alike may have another seed
            strategy = replace(strategy, seed=0, draws=1)
        rules = self.settings
        return (
            strategy,
            replace(self.special_tokens, start=None),
            rules.min_new_tokens,
            rules.no_repeat_ngram_size,
            rules.repetition_penalty,
            self.stops is None,
        )

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
    logits: Tensor | None = None  # [V] of the newest of them, where they are wanted
    total: float = 0.0  # log-probability
    hypotheses: list[Hypothesis] | None = None  # once it is done


class Prefill:
    """Reads the sources or the prompts of jobs, in pieces: all that comes before the first step.

    Prompts that `can_share` are read together, shorter ones padded behind their end, where nothing
    of theirs looks.
    """

    def __init__(self, model: Generative, jobs: Sequence[Job], most_tokens: int) -> None:
        self.model = model
        self.jobs = jobs
        self.device = next(model.parameters()).device
        self.state: DecoderState | None = None
        self.in_pieces = jobs[0].special_tokens.start is None and model.keeps_cache
        # What the decoder reads: the last token is that of the first step.
        reads = [[*job.start] for job in jobs]
        if self.in_pieces:
            reads = [[*job.source] for job in jobs]
        self.lengths = [len(one) - 1 for one in reads]
        multiple = 1
        piece = most_tokens
        if self.can_share(model, jobs[0]):
            multiple = PIECE_MULTIPLE
            piece = max(multiple, min(most_tokens, MOST_IN_PIECE) // multiple * multiple)
        before, _ = pad_rows([one[:-1] for one in reads], 0, pad_to_multiple_of=multiple)
        if multiple > 1 and (most := model.positions_left(0)) is not None:
            before = before[:, : max(most, *self.lengths)]
        self.capacity = before.shape[1] + 1
        pieces = before.to(self.device).split(piece, dim=1)
        self.pieces = [one for one in pieces if one.shape[1]]

    @staticmethod
    def can_share(model: Generative, job: Job) -> bool:
        """Whether what it reads may be read with others without a difference: causal attention of
        several positions has one kernel on a CPU, and so have products of four rows and more; an
        encoder's attention has not. A recurrent model reads position by position; a window would
        be filled by padding."""
        stack = model.stacks()["decoder"]
        is_stack = isinstance(stack, Stack) and model.keeps_cache
        is_read_alike = job.special_tokens.start is None or next(model.parameters()).is_cuda
        if not (is_stack and is_read_alike) or job.settings.probe.active:
            return False
        return all(kind.pattern == CausalMask() for kind in stack.layer_types)

    def __call__(self) -> int:
        """Reads one piece; the number of its tokens. `done` says whether it was the last."""
        if self.state is None:
            sources = [job.source for job in self.jobs]
            if self.in_pieces:  # the first token alone, which leaves caches empty
                sources = [one[:1] for one in sources]
            pad = self.jobs[0].special_tokens.pad
            source, mask = collate(sources, pad, self.model.padding_side, self.device)
            context = Context(probe=self.jobs[0].settings.probe)
            encoded = self.model.encode(source, mask, context)
            self.state = self.model.start(encoded, capacity=self.capacity)
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
        assert prefill.state is not None
        kinds: dict[Hashable, list[Search]] = {}
        for job in prefill.jobs:
            for index in range(job.count):
                first = len(self.owners)
                search = Search(job, index, [*range(first, first + job.width)])
                job.searches.append(search)
                self.owners += [(search, beam) for beam in range(job.width)]
                kinds.setdefault(job.kind, []).append(search)
        self.rows.join(prefill.state, prefill.lengths, [job.rows for job in prefill.jobs])
        for searches in kinds.values():
            self._add(_Group.begin(searches, self.device))

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

    @property
    def looks_ahead(self) -> bool:
        """Whether several tokens of each row may be taken before anybody looks at the first."""
        jobs = [search.job for search, _ in self.owners]
        return not any(job.is_watched or job.wants_logits for job in jobs)

    def step(self, most: int = 1, meanwhile: Callable[[], None] | None = None) -> list[Search]:
        """A token of each row, or up to `most` where nobody looks at each: all searches that took
        part. Those that are done, or whose job is in error, have left. `meanwhile` is called while
        the device works."""
        groups = [*self.groups.values()]
        searches = [search for group in groups for search in group.searches]
        probe = self._probe(searches)
        if most > 1 and len(groups) == 1 and self._is_regular(groups[0], probe):
            self._take_steps(groups[0], most, meanwhile)
        else:
            self._take_step(groups, probe, meanwhile)
        done = [one for one in searches if one.hypotheses is not None or one.job.error]
        if done:
            self.leave(done)
        # What had a first step of its own goes on with the others.
        for key, group in [*self.groups.items()]:
            if key != group.key:
                del self.groups[key]
                self._add(group)
        return searches

    def _take_step(
        self, groups: Sequence[_Group], probe: NullProbe, meanwhile: Callable[[], None] | None
    ) -> None:
        rows = [self._rows(group) for group in groups]
        tokens = torch.zeros(self.rows.used, 1, dtype=torch.long, device=self.device)
        for group, index in zip(groups, rows, strict=True):
            tokens[index] = group.last()
        logits = self.rows.step(self.model, tokens, probe)  # [rows, V]
        if meanwhile is not None:
            meanwhile()
        for group, index in zip(groups, rows, strict=True):
            for search in group.searches:
                if search.job.wants_logits:
                    search.logits = logits[search.slots[0]]
            try:
                all_in_order = group.slots == [*range(len(index))]
                chosen = slice(len(index)) if all_in_order else index  # a slice is no copy
                parents = group.choose(logits[chosen], self.model)
            except Exception as error:  # of what these ask for, and nobody else
                for search in group.searches:
                    search.job.fail(error)
                continue
            if parents is not None:
                self.rows.reorder(index, index[parents])

    def _is_regular(self, group: _Group, probe: NullProbe) -> bool:
        """Whether steps of this group are all alike, and nobody looks at each."""
        is_plain = isinstance(group.state, GenerationState) and self.rows.is_static
        return is_plain and not group.first and not probe.active and self.looks_ahead

    def _take_steps(
        self, group: _Group, most: int, meanwhile: Callable[[], None] | None
    ) -> None:
        """Several steps of one group, one after the other: replayed from a CUDA graph."""
        assert isinstance(self.rows, Slots)
        assert isinstance(group.strategy, Greedy | Sampling)
        strategy = group.strategy
        count = min(most, group.steps_left)
        index = self._rows(group)
        state = group.spread(index, self.rows.used, self.rows.state(steps=count))

        def step(state: GenerationState) -> None:
            done = state.done()
            generation_step(self.model, state, strategy, None, first=False)
            state.t += ~done
            # Who is done stays where it is: its cache has no room for more.
            assert state.cache.device_position is not None
            state.cache.device_position -= done[:, None].long()

        loop = GraphedLoop(
            step,
            state,
            graphed=cuda_graphs.enabled(self.device),
            model=self.model,
            key=(group.rules, self.rows.addresses),
            most_graphs=_MOST_GRAPHS,
        )
        for _ in range(count):
            loop()
        if meanwhile is not None:
            meanwhile()
        group.gather(index, loop.state, count, self.model)
        self.rows.advanced(loop.state.cache, count)

    def _rows(self, group: _Group) -> Tensor:
        return torch.tensor(group.slots, device=self.device)

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

    is_static = False

    def __init__(self) -> None:
        self.states: list[DecoderState] = []

    @property
    def used(self) -> int:
        return len(self.states)

    def join(self, state: DecoderState, lengths: Sequence[int], counts: Sequence[int]) -> None:
        """Each state has one row: such models read one text at a time."""
        self.states += [copy.deepcopy(state) for _ in range(counts[0])]

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
        return self.rules, self.first

    @classmethod
    def begin(cls, searches: list[Search], device: torch.device) -> _Group:
        """Searches of jobs of one kind."""
        jobs = [search.job for search in searches]
        job = jobs[0]
        newest = torch.tensor([[one.start[-1]] for one in jobs], device=device)
        constraints = constraints_of([job.source], newest, None, job.special_tokens, job.settings)
        prefix = None  # what has been read, where there are rules that count it
        if constraints.no_repeat_ngram_size or constraints.repetition_penalty != 1:
            read = [one.special_tokens.start is None for one in jobs]
            texts = [one.source if is_read else one.start for one, is_read in zip(jobs, read)]
            prefix = pad_rows(texts, -1, side="left")[0].to(device)
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
            state = beam_search.begin(nothing, strategy, constraints, max(limits))
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

    def join(self, other: _Group) -> None:
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

    def gather(
        self, index: Tensor, spread: GenerationState, count: int, model: Generative
    ) -> None:
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
        columns = before[:, None] + torch.arange(count, device=before.device)
        new = state.tokens.gather(1, columns.clamp_max(state.tokens.shape[1] - 1))
        told = to_lists((new, state.t, state.sums, state.ended, state.done()))
        for search, (tokens, t, total, ended, done) in zip(
            self.searches, zip(*told, strict=True), strict=True
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
    if not isinstance(searches[0].job.strategy, Sampling):
        return None
    rows = []
    for search in searches:
        job = search.job
        keys = [job.key * job.count + search.index]
        rows.append(greedy_and_sampling.draw_noise(job.strategy, keys, length, torch.device("cpu")))
    return torch.cat(rows).to(device)


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
