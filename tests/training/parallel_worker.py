"""A rank of the tests of distributed training: `torchrun … parallel_worker.py JOBS.json`.

Each job trains or resumes a run, one after the other in the same processes.
"""

from __future__ import annotations

import json
import math
import os
import random
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from test_graphs import rings_and_stars
from test_loss_spikes import Spiking
from torch import Tensor, nn
from torch.nn import functional

import regard
from regard.core.linear import Linear
from regard.data.batching import Batch
from regard.system.errors import TrainingInterrupted
from regard.training.engine.loop import Loop
from regard.training.engine.optimizer import Optimizer
from regard.training.engine.train_step import Part, Step
from regard.training.objectives.causal_lm import CausalLM
from regard.training.parallel.ranks import Ranks
from regard.training.run import resume

RANK = int(os.environ.get("RANK", "0"))


class Indivisible(CausalLM):
    """An objective that ranks cannot share."""

    @property
    def indivisible(self) -> str | None:
        return "its rows read each other"


OBJECTIVES: dict[str, type[CausalLM]] = {"spiking": Spiking, "indivisible": Indivisible}


class GraphSource:
    """Rings and stars, told apart by their edges."""

    def splits(self) -> dict[str, Any]:
        return {"train": lambda: iter([rings_and_stars()])}


SOURCES = {"graphs": GraphSource}


def without_noise(logits: Tensor, hard: bool) -> Tensor:
    """Gumbel softmax without its noise, which ranks draw apart as they draw dropout."""
    shares = logits.softmax(dim=-1)
    choice = functional.one_hot(logits.argmax(dim=-1), logits.shape[-1]).to(logits.dtype)
    return choice - shares.detach() + shares


@contextmanager
def recorded_rows(path: Path) -> Iterator[None]:
    """Writes the rows that this rank computes, step by step."""
    sharded = Ranks.sharded
    rows: list[list[int]] = []

    @contextmanager
    def recording(self: Ranks, batch: Batch) -> Iterator[Batch]:
        with sharded(self, batch) as part:
            counted = part.rows if self.weight else part.rows[:0]
            rows.append([int(row) for row in counted])
            yield part

    Ranks.sharded = recording  # type: ignore[method-assign]
    try:
        yield
    finally:
        Ranks.sharded = sharded  # type: ignore[method-assign]
    path.write_text(json.dumps(rows))


class Injection:
    """Puts a bad number into the loss, an activation or a gradient of one rank, by a plan.

    The plan has for a step the rank, the place and the number. `skipped` notes the steps whose
    update this rank did not make.
    """

    def __init__(self, plan: Mapping[str, Sequence[Any]], seed: int = 0) -> None:
        self.plan = plan
        self.chance = random.Random(seed)
        self.step = 0
        self.place = ""  # of this step, on this rank
        self.number = 0.0
        self.skipped: list[int] = []

    def begin(self, step: int) -> None:
        rank, place, number = self.plan.get(str(step), (-1, "", 0.0))
        self.step = step
        self.place = place if rank == RANK else ""
        self.number = float(number)

    def end(self, optimizer: Optimizer, norm: Tensor, is_skipped: Tensor) -> None:
        if is_skipped.item():
            self.skipped.append(self.step)

    def after_sum(self, optimizer: Optimizer) -> None:
        """A gradient that is spoiled where it lies, when ranks have summed it already."""
        if self.place != "summed gradient":
            return
        gradients = [p.grad for _, p in optimizer.named if p.grad is not None and p.grad.numel()]
        self._spoil(self.chance.choice(gradients))

    def hook(self, linear: Linear, inputs: Any, out: Tensor) -> Tensor:
        """Spoils what a linear map computes, or its gradient; once a step."""
        if self.place == "activation":
            self.place = ""
            # −∞ before a ReLU is a plain zero after it: only NaN always reaches the loss.
            self.number = math.nan
            return self._spoil(out.clone())
        if self.place == "gradient" and out.requires_grad:
            self.place = ""
            out.register_hook(lambda gradient: self._spoil(gradient.clone()))
        return out

    def _spoil(self, tensor: Tensor) -> Tensor:
        tensor.view(-1)[self.chance.randrange(tensor.numel())] = self.number
        return tensor


@contextmanager
def injected(injection: Injection) -> Iterator[None]:
    """Patches the training step and the linear maps of this process."""
    call = Step.__call__
    accumulated = Step._update
    update = Optimizer.update

    def called(self: Step, batches: Sequence[Batch], step: int, seed: int) -> Tensor:
        injection.begin(step)
        return call(self, batches, step, seed)

    def poisoned(self: Step, parts: Iterable[Part]) -> Tensor:
        is_loss = injection.place == "loss"
        return accumulated(
            self, ((part, injection.number if is_loss else weight) for part, weight in parts)
        )

    def updated(self: Optimizer, loss: Tensor) -> tuple[Tensor, Tensor]:
        injection.after_sum(self)
        norm, is_skipped = update(self, loss)
        injection.end(self, norm, is_skipped)
        return norm, is_skipped

    def hooked(module: nn.Module, inputs: Any, out: Any) -> Any:
        if isinstance(module, Linear) and module.training:
            return injection.hook(module, inputs, out)
        return out

    handle = nn.modules.module.register_module_forward_hook(hooked)
    with (
        mock.patch.object(Step, "__call__", called),
        mock.patch.object(Step, "_update", poisoned),
        mock.patch.object(Optimizer, "update", updated),
    ):
        try:
            yield
        finally:
            handle.remove()


def run_job(job: dict[str, Any]) -> None:
    out = Path(job["out"])

    def on_step(loop: Loop) -> None:
        if loop.progress.step == job.get("stop_at"):
            loop.request_stop()

    rows = out.with_name(f"{out.name}.rows-{RANK}.json")
    objective = OBJECTIVES.get(job.get("objective", ""))
    injection = Injection(job.get("injected", {}))
    source = SOURCES.get(job.get("source", ""))
    data = None if source is None else source()
    noise = mock.patch.object(functional, "gumbel_softmax", without_noise)
    # Not without a plan: reading `is_skipped` ends the capture of a CUDA graph with an error.
    spoiled: AbstractContextManager[None] = nullcontext()
    if injection.plan:
        spoiled = injected(injection)
    with recorded_rows(rows), spoiled, noise:
        try:
            if job.get("resume"):
                resume(out, steps=job.get("steps"), quiet=True, objective=objective)
            else:
                settings = job["settings"]
                regard.train(settings, out=out, on_step=on_step, objective=objective, data=data)
        except TrainingInterrupted:
            pass
        except regard.system.errors.RegardError as error:
            out.with_name(f"{out.name}.error-{RANK}").write_text(error.problem)
    out.with_name(f"{out.name}.skipped-{RANK}.json").write_text(json.dumps(injection.skipped))


if __name__ == "__main__":
    torch.set_num_threads(1)
    for each in json.loads(Path(sys.argv[1]).read_text()):
        run_job(each)
