"""The measurement of a training step: its time and its peak memory, beside the prediction."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from regard.data.batching import Batch
from regard.lab.measure.instruments import allocated_peak
from regard.lab.plan.subject import Subject
from regard.lab.plan.workload import Workload, modules, set_activation_checkpointing
from regard.training.engine.optimizer import ConstantRate, Optimizer, autocast
from regard.training.engine.train_step import Step

LEARNING_RATE = 1e-5  # small: weights must stay finite over all rounds
ROUNDS = 5  # odd, so that the median is one of them
WARM_UP = 3  # steps: one eager, one captured into a CUDA graph, one replayed


@dataclass(frozen=True)
class Measurement:
    """The median time of a step, and the bytes that training added at its peak."""

    seconds: float
    memory: int
    times: tuple[float, ...]


def step_clock(device: torch.device) -> Callable[[], float]:
    """Processor time where there is one thread: other processes on the machine do not change it."""
    if device.type == "cpu" and torch.get_num_threads() == 1:
        return time.process_time
    return time.perf_counter


class MeasuredStep:
    """A training step as `regard train` runs it, on random batches."""

    def __init__(self, subject: Subject, device: torch.device) -> None:
        workload = subject.workload
        settings = subject.settings
        self.device = device
        self.before = 0  # bytes that are in use already
        if device.type == "cuda":
            torch.cuda.empty_cache()
            # The peak is that of the process: earlier models must not count.
            torch.cuda.reset_peak_memory_stats(device)
            self.before = torch.cuda.memory_allocated(device)
        torch.manual_seed(0)
        self.core = core = modules(subject.description, subject.generator, real=True)
        core.to(device).train()
        set_activation_checkpointing(core, settings.recompute)
        self.step = Step(
            partial(_loss, core, workload),
            Optimizer(core.named_parameters(), ConstantRate(LEARNING_RATE, 1)),
            partial(autocast, settings.precision, device),
            # As in `Loop`: a recomputed forward cannot be captured.
            cuda_graphs=not settings.recompute and settings.accumulate == 1,
        )
        # The same batch again and again: its values do not change what is computed.
        batch = Batch(
            workload.create(torch.device("cpu")), workload.labels, np.zeros(1, dtype=np.int64)
        )
        self.batches = [batch.pin()] * settings.accumulate
        self._numbers = itertools.count(1)
        for _ in range(WARM_UP):
            self.time()
        self.memory = _peak_memory(self)

    def time(self) -> float:
        """The seconds of one step."""
        self._synchronize()
        clock = step_clock(self.device)
        start = clock()
        self.step(self.batches, next(self._numbers), 1)
        self._synchronize()
        return clock() - start

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def measure(step: MeasuredStep, rounds: int = ROUNDS) -> Measurement:
    """Runs more steps, and takes the median of their times."""
    times = tuple(step.time() for _ in range(rounds))
    return Measurement(statistics.median(times), step.memory, times)


def _loss(core: nn.Module, workload: Workload, tensors: Any) -> tuple[Tensor, Tensor]:
    loss = workload.loss(core, tensors)
    return loss, loss.detach()


def _peak_memory(step: MeasuredStep) -> int:
    """Bytes at the peak of a step, as PyTorch's allocator counts them."""
    if step.device.type == "cuda":
        return torch.cuda.max_memory_allocated(step.device) - step.before
    persistent = [*step.core.parameters(), *step.core.buffers()]
    persistent += step.step.optimizer.state().values()
    for batch in step.batches[:1]:
        persistent += batch.tensors.values()
    return allocated_peak(step.time) + sum(x.numel() * x.element_size() for x in persistent)
