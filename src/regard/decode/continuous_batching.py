"""Continuous batching: texts join a batch and leave it between two steps (Orca, Yu et al. 2022).

A step is one call of the model for all rows, whatever is decoded in them, and one choice of tokens
for each group of texts that are decoded alike: `take_tokens` or `take_beams`, as in a batch whose
texts began together. What a text becomes does not depend on what else is in the batch.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Sequence

import torch
from torch import Tensor

from regard.core.caches.kv_cache import DecoderState
from regard.core.caches.slots import Slots
from regard.core.probe import NO_PROBE, NullProbe, RowPart, RowProbe
from regard.decode import cuda_graphs, fused_step
from regard.decode.cuda_graphs import GraphedLoop
from regard.decode.greedy_and_sampling import GenerationState, generation_step
from regard.decode.jobs import Job, Prefill, Search
from regard.decode.search_groups import SearchGroup
from regard.decode.strategy import Greedy, Sampling
from regard.wirings.generative import Generative

_MOST_GRAPHS = 32  # of steps of slots, which share the caches


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
        self.groups: dict[Hashable, SearchGroup] = {}

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
            self._add(SearchGroup.begin(searches, self.device))

    def _add(self, group: SearchGroup) -> None:
        if group.key in self.groups:
            self.groups[group.key].join(group)
        else:
            self.groups[group.key] = group

    def leave(self, searches: Sequence[Search]) -> None:
        """Takes searches out, whatever has become of them."""
        if not searches:
            return
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
        self, groups: Sequence[SearchGroup], probe: NullProbe, meanwhile: Callable[[], None] | None
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

    def _is_regular(self, group: SearchGroup, probe: NullProbe) -> bool:
        """Whether steps of this group are all alike, and nobody looks at each."""
        is_plain = isinstance(group.state, GenerationState) and self.rows.is_static
        return is_plain and not group.first and not probe.active and self.looks_ahead

    def _take_steps(
        self, group: SearchGroup, most: int, meanwhile: Callable[[], None] | None
    ) -> None:
        """Several steps of one group, one after the other: replayed from a CUDA graph."""
        assert isinstance(self.rows, Slots)
        assert isinstance(group.strategy, Greedy | Sampling)
        strategy = group.strategy
        count = min(most, group.steps_left)
        index = self._rows(group)
        state = group.spread(index, self.rows.used, self.rows.state(steps=count))

        def step(state: GenerationState) -> None:
            running = ~state.done()
            generation_step(self.model, state, strategy, None, first=False)
            state.t += running
            state.last.clamp_min_(0)  # −1 where there is no end token
            # Who is done may have no position left.
            assert state.cache.device_position is not None
            state.cache.device_position *= ~state.done()[:, None]

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

    def _rows(self, group: SearchGroup) -> Tensor:
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
        if tokens.is_cuda:
            logits = fused_step.step(model, tokens, state)[:, -1]
        else:  # rounded alike whether somebody looks into a row or not
            logits = model.step(tokens, state)[:, -1]
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
