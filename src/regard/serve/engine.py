"""The engine: one thread that owns a model, and all that is asked of it.

Between two decoding steps requests join and leave: who waits longest among the clients is taken up,
prompts are read in pieces, tasks of encoders are answered in batches, and who has gone is dropped.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, TypeVar

import torch

from regard.decode.continuous_batching import ContinuousBatch
from regard.decode.jobs import Prefill
from regard.evaluation.prediction import check_options, chosen_task, task_with
from regard.evaluation.task import PredictionOptions
from regard.look.inspectable import MediaInput, Reading, decoder_start, read_input
from regard.models.base import Model
from regard.serve import looking
from regard.serve.generations import Running
from regard.serve.requests import Generation, Limits, Metrics, QueueFull, Stream, require_within
from regard.serve.waiting import FairQueue
from regard.system.errors import RegardError, SettingError
from regard.system.pending import Pending
from regard.wirings.generative import Generative

R = TypeVar("R")
_IDLE_SECONDS = 0.5  # between two looks at who has gone, while nothing is decoded
_STEPS_ON_GPU = 32  # tokens of each row before anybody looks: as long as passing them on (log)
_SHARE_OF_CALLS = 0.1  # of the time that is left to those whose texts are being written
_MOST_ASKED = 64  # inputs of a task that are answered at once


class Cancelled(RegardError):
    """The client has gone, or the request has taken too long."""


@dataclass(eq=False)
class _Waiting:
    """A request in the queue."""

    pending: Pending[Any]
    since: float
    client: str
    generation: Generation | None = None
    task: tuple[str, PredictionOptions] | None = None
    inputs: list[str] | None = None
    function: Callable[[Model], Any] | None = None


class Engine:
    """Serves one model. Any thread may ask it; one of its own runs the model."""

    def __init__(self, model: Model, limits: Limits | None = None) -> None:
        self.model = model
        model.model.eval()
        self.limits = limits or Limits()
        self._queue: FairQueue[_Waiting] = FairQueue(self.limits)
        self._changed = threading.Condition()
        self._metrics = Metrics()
        self._draining = False
        self._closed = False
        self._steps_at_once = 1
        if model.device.type == "cuda":  # by one CUDA graph, while the last tokens are passed on
            self._steps_at_once = _STEPS_ON_GPU
        self._core: Generative | None = None
        self._batch: ContinuousBatch | None = None
        if isinstance(model.model, Generative) and model.model.writes:
            self._core = model.model
            self._batch = ContinuousBatch(self._core, self.limits.rows)
        self._to_read: list[Running] = []
        self._reading: tuple[list[Running], Prefill] | None = None
        self._running: list[Running] = []
        self._calling = False  # whether a function of the model is called
        self._next_call = 0.0
        self.last_used = time.monotonic()
        self._thread = threading.Thread(target=self._work, name="regard-engine", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------ what callers use

    def read(
        self, source: str | bytes | Sequence[int] | MediaInput, language: str | None = None
    ) -> Reading:
        """A text, a file of sound, or token ids, as the model reads it.

        `language` is the target language of a multilingual model.
        """
        model = self.model
        special_tokens = model.special_tokens
        prefix: list[int] = []
        if language is not None:
            prefix, special_tokens = model.target_language(language)
        if isinstance(source, bytes):
            source = model.read_medium(source)
        if isinstance(source, str | MediaInput):
            reading = read_input(model, source)
        else:
            reading = self._read_ids(source)
        if language is None:
            return reading
        inputs = torch.cat([torch.tensor([prefix], dtype=torch.long), reading.inputs.cpu()], dim=1)
        return replace(reading, inputs=inputs, tokens=None, special_tokens=special_tokens)

    def _read_ids(self, ids: Sequence[int]) -> Reading:
        size = next(iter(self.model.spec.embeddings.values())).vocabulary
        if not ids or not all(0 <= one < size for one in ids):
            raise SettingError(
                f"token ids must be numbers from 0 to {size - 1:,}, and there must be one",
                "pass the ids of this model's tokenizer",
            )
        return Reading(torch.tensor([[*ids]]), special_tokens=self.model.special_tokens)

    def submit(self, generation: Generation) -> Stream:
        """Takes up a generation."""
        if self._core is None or generation.reading.special_tokens is None:
            raise SettingError(
                "this model does not generate text", f"it can: {', '.join(self.model.tasks)}"
            )
        require_within(generation, self.limits, self.model.positions, self.room(generation))
        if generation.look is not None:
            looking.require(self.model, generation.look)
        stream = Stream()
        self._put(_Waiting(stream, time.monotonic(), generation.client, generation=generation))
        return stream

    def ask(
        self,
        task: str,
        inputs: Iterable[str],
        options: PredictionOptions | None = None,
        client: str = "",
    ) -> Pending[list[Any]]:
        """Takes up inputs of a task of the table (`evaluation.tasks.TASKS`): an answer to each."""
        options = options or PredictionOptions()
        asked = (chosen_task(self.model, task, options), options)
        check_options(self.model, task, options)
        pending: Pending[list[Any]] = Pending()
        self._put(_Waiting(pending, time.monotonic(), client, task=asked, inputs=[*inputs]))
        return pending

    def call(self, function: Callable[[Model], R], client: str = "") -> Pending[R]:
        """Takes up a function of the model, which changes nothing in it: steps go on beside it."""
        pending: Pending[R] = Pending()
        self._put(_Waiting(pending, time.monotonic(), client, function=function))
        return pending

    def room(self, generation: Generation) -> int | None:
        """How many tokens the output may have, by the model's positions; None where they have no
        end. The last token is not read."""
        assert self._core is not None
        if self._core.reads_target:
            start = decoder_start(generation.reading.special_tokens)
            return self._core.positions_left(len(start) + len(generation.prefix) - 1)
        positions = self.model.positions
        if positions is None:
            return None
        return positions - generation.source.shape[-1] - len(generation.prefix) + 1

    def metrics(self) -> Metrics:
        """The counters up to now."""
        with self._changed:
            rows = 0
            if self._batch is not None:
                rows = self._batch.most_rows - self._batch.free
            running = len(self._running) + len(self._unread) + self._calling
            return replace(self._metrics, waiting=len(self._queue), running=running, rows=rows)

    @property
    def busy(self) -> bool:
        counts = self.metrics()
        return counts.waiting + counts.running > 0

    def refuse(self) -> None:
        """Takes up nothing from now on."""
        with self._changed:
            self._draining = True
            self._changed.notify_all()

    def drain(self, seconds: float | None = None) -> bool:
        """Refuses what comes from now on, and waits until all that is there has been answered;
        whether it has been, after so many seconds at most. What is left then is cancelled."""
        self.refuse()
        self._thread.join(seconds)
        finished = not self._thread.is_alive()
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()
        return finished

    def _put(self, waiting: _Waiting) -> None:
        with self._changed:
            try:
                if self._draining:
                    raise QueueFull("the server is shutting down", 5.0)
                self._queue.put(waiting.client, waiting, self._retry_after())
            except QueueFull:
                self._count(refused=1)
                raise
            self._count(requests=1)
            self.last_used = time.monotonic()
            self._changed.notify_all()

    def _retry_after(self) -> float:
        """Seconds until a quarter of the queue has gone, at the rate so far."""
        mean = self._metrics.seconds / max(1, self._metrics.finished)
        rows = max(1, len(self._running))
        return min(60.0, max(1.0, mean * len(self._queue) / (4 * rows)))

    def _count(self, **more: float) -> None:
        with self._changed:
            values = {name: getattr(self._metrics, name) + value for name, value in more.items()}
            self._metrics = replace(self._metrics, **values)

    # ------------------------------------------------------------------ the thread

    def _work(self) -> None:
        while self._wait_for_work():
            try:
                with torch.inference_mode():
                    self._drop_gone()
                    self._take_up()
                    self._read_on()
                    self._step()
            except Exception as error:  # a fault of no request that is known
                self._fail_all(error)

    def _wait_for_work(self) -> bool:
        """Whether to go on; comes back when there is something to do."""
        with self._changed:
            while not (self._unread or self._running or self._queue.next(self._may_come)):
                if self._closed or (self._draining and not (self._queue or self._calling)):
                    break
                self._changed.wait(_IDLE_SECONDS)
            self.last_used = time.monotonic()
            if self._closed:
                self._cancel_all()
                return False
            return bool(self._queue or self._unread or self._running)

    @property
    def _unread(self) -> list[Running]:
        """Generations that were taken up, and whose prompts have not been read yet."""
        if self._reading is None:
            return self._to_read
        return [*self._reading[0], *self._to_read]

    def _cancel_all(self) -> None:
        for waiting in self._queue.take(lambda _: True):
            waiting.pending.fail(Cancelled("the server is shutting down", "try again"))
        self._fail_all(Cancelled("the server is shutting down", "try again"))

    def _fail_all(self, error: BaseException) -> None:
        """All that runs ends in error; what waits is taken up by a batch of its own."""
        for running in [*self._running, *self._unread]:
            running.fail(error)
            self._count(failed=1)
        self._running = []
        self._to_read = []
        self._reading = None
        if self._core is not None:
            self._batch = ContinuousBatch(self._core, self.limits.rows)

    # --- who leaves

    def _is_gone(self, pending: Pending[Any], since: float) -> bool:
        return pending.cancelled or time.monotonic() - since > self.limits.seconds

    def _drop_gone(self) -> None:
        """Cancelled requests, and those that took too long, leave wherever they are."""
        with self._changed:
            gone = self._queue.take(lambda one: self._is_gone(one.pending, one.since))
        for waiting in gone:
            waiting.pending.fail(Cancelled("the request was cancelled", "send it again"))
            self._count(cancelled=1)
        if self._reading is not None and len(self._reading[0]) == 1:
            [running] = self._reading[0]
            if self._is_gone(running.stream, running.since):
                self._reading = None
                self._finish(running, cancelled=True)
        # Who goes while several are read together leaves when that is done.
        for running in [*self._running, *self._to_read]:
            if self._is_gone(running.stream, running.since):
                self._finish(running, cancelled=True)

    def _finish(self, running: Running, *, cancelled: bool = False) -> None:
        """A generation is over: it leaves the batch and its stream ends."""
        for stage in (self._running, self._to_read):
            if running in stage:
                stage.remove(running)
        assert self._batch is not None
        self._batch.leave([one for one in running.job.searches if one.slots])
        usage = running.usage()
        goes_on = False
        counts: dict[str, float] = {"finished": 1, "seconds": usage.seconds}
        if running.job.error is not None:
            counts = {"failed": 1}
        elif cancelled:
            counts = {"cancelled": 1}
        elif running.generation.look is not None:
            counts = {}  # those of the call that records
            goes_on = True
        self._count(
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            seconds_waiting=usage.seconds_waiting,
            seconds_to_first_token=running.seconds_to_first_token,
            **counts,
        )
        if not goes_on:
            running.end()
            return
        client = running.generation.client
        recording = _Waiting(running.stream, running.since, client, function=running.look_at)
        with self._changed:
            self._queue.append(client, recording)

    # --- who comes

    def _take_up(self) -> None:
        """Requests whose turn it is, as far as there is room for them."""
        free = 0  # rows
        if self._batch is not None:
            free = self._batch.free - sum(running.job.rows for running in self._unread)
        while True:
            with self._changed:
                first = self._queue.next(self._may_come)
                if first is None:
                    return
                # No one passes a request that waits for room: wide beams would wait for ever.
                if first.generation is not None and first.generation.rows > free:
                    return
                self._queue.pop(first)
                alike = self._alike(first)
            if first.generation is not None:
                free -= first.generation.rows
                self._begin(first, first.generation)
            elif first.function is not None:
                self._call(first)
            else:
                self._answer([first, *alike])

    def _may_come(self, waiting: _Waiting) -> bool:
        """One call at a time, and they have a share of the time: whose texts are being written
        hardly feel it."""
        is_time = not self._running or time.monotonic() >= self._next_call
        return waiting.function is None or (is_time and not self._calling)

    def _call(self, waiting: _Waiting) -> None:
        """Calls a function: beside the steps; on a GPU between two, or it could not be captured."""

        def call() -> None:
            begin = time.monotonic()
            with torch.inference_mode():
                self._answer([waiting])
            with self._changed:
                end = time.monotonic()
                self._next_call = end + (end - begin) / _SHARE_OF_CALLS
                self._calling = False
                self._changed.notify_all()

        self._calling = True
        if self.model.device.type == "cpu":
            threading.Thread(target=call, name="regard-call", daemon=True).start()
        else:
            call()

    def _alike(self, first: _Waiting) -> list[_Waiting]:
        """Requests of the same task that wait, whoever's turn it is: they are one batch."""
        if first.task is None:
            return []
        return self._queue.take(lambda one: one.task == first.task, _MOST_ASKED - 1)

    def _begin(self, waiting: _Waiting, generation: Generation) -> None:
        assert self._core is not None
        try:
            room = self.room(generation)
            if room is not None:
                most = min(room, generation.max_new_tokens)
                generation = replace(generation, max_new_tokens=most)
            running = Running(self.model, generation, waiting.pending, waiting.since, self.limits)
            self._to_read.append(running)
        except Exception as error:
            waiting.pending.fail(error)
            self._count(failed=1)

    def _answer(self, asked: Sequence[_Waiting]) -> None:
        """Requests of one task in one batch; where that fails, each by itself."""
        try:
            results = self._answers(asked)
        except Exception as error:
            if len(asked) > 1:
                for one in asked:
                    self._answer([one])
                return
            asked[0].pending.fail(error)
            self._count(failed=1)
            return
        for one, result in zip(asked, results, strict=True):
            one.pending.finish(result)
            self._count(finished=1, seconds=time.monotonic() - one.since)

    def _answers(self, asked: Sequence[_Waiting]) -> list[Any]:
        first = asked[0]
        if first.function is not None:
            return [first.function(self.model)]
        assert first.task is not None
        name, options = first.task
        answer = task_with(self.model, name).answer
        assert answer is not None
        inputs = [one for request in asked for one in request.inputs or ()]
        answers = iter(answer(self.model, inputs, options))
        return [[next(answers) for _ in request.inputs or ()] for request in asked]

    # --- a step

    def _read_on(self) -> None:
        """Prompts, up to the budget between two steps; all of it where nobody waits for a step."""
        budget = self.limits.prefill_tokens * self._steps_at_once
        while self._unread and budget > 0:
            if self._reading is None:
                self._reading = self._next_to_read(budget)
            read, prefill = self._reading
            try:
                budget -= max(1, prefill())
                if not prefill.done:
                    continue
                assert self._batch is not None
                self._batch.join(prefill)
            except Exception as error:
                for running in read:
                    running.job.fail(error)
            self._reading = None
            self._running += read
            for running in read:
                self._begin_to_write(running, prefill)

    def _begin_to_write(self, running: Running, prefill: Prefill) -> None:
        if running.job.error is None:
            try:
                running.begin(prefill)
            except Exception as error:
                running.job.fail(error)
        if running.job.error is not None:
            self._finish(running)

    def _next_to_read(self, budget: int) -> tuple[list[Running], Prefill]:
        """The next prompt, with others of its padded length, as far as the budget goes."""
        assert self._core is not None
        read = self._to_read[:1]
        first = read[0].job
        if Prefill.can_share(self._core, first):
            alike = (
                running
                for running in self._to_read
                if running.job.padded_length == first.padded_length
                and Prefill.can_share(self._core, running.job)
            )
            read = [*islice(alike, max(1, budget // first.padded_length))]
        self._to_read = [running for running in self._to_read if running not in read]
        jobs = [running.job for running in read]
        return read, Prefill(self._core, jobs, self.limits.prefill_tokens)

    def _step(self) -> None:
        if not self._running:
            return
        assert self._batch is not None
        meanwhile = self._pass_on if self._steps_at_once > 1 else None
        searches = self._batch.step(self._steps_at_once, meanwhile)
        self._count(steps=1, step_rows=sum(len(one.slots) or 1 for one in searches))
        # On a GPU what has come is passed on while the next steps are computed.
        if self._steps_at_once == 1 or not (self._batch.owners and self._batch.looks_ahead):
            self._pass_on(in_step=False)

    def _pass_on(self, *, in_step: bool = True) -> None:
        """Passes new tokens on, and ends what is done; what takes part in a step that is under
        way stays."""
        assert self._batch is not None
        for running in [*self._running]:
            stopped = []
            try:
                stopped = running.go_on()
            except Exception as error:
                running.job.fail(error)
            is_over = running.job.error is not None or running.done
            if in_step and any(one.slots for one in running.job.searches):
                continue
            self._batch.leave([one for one in stopped if one.slots])
            if is_over:
                self._finish(running)
