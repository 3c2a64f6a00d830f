"""A rank of the tests of distributed training: `torchrun … parallel_worker.py JOBS.json`.

Each job trains or resumes a run, one after the other in the same processes.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import regard
from regard.data.batching import Batch
from regard.errors import TrainingInterrupted
from regard.training.engine.loop import Loop
from regard.training.engine.train_step import Step
from regard.training.parallel.ranks import Ranks
from regard.training.run import go_on

RANK = int(os.environ.get("RANK", "0"))


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


@contextmanager
def injected(nan: dict[str, int] | None) -> Iterator[None]:
    """Makes the loss of one rank NaN in one step."""
    backward = Step._backward
    calls = 0

    def poisoned(self: Step, tensors: Mapping[str, Tensor], weight: float = 1.0) -> Tensor:
        nonlocal calls
        calls += 1
        if nan is not None and nan["rank"] == RANK and calls == nan["step"]:
            weight = float("nan")
        return backward(self, tensors, weight)

    Step._backward = poisoned  # type: ignore[method-assign]
    try:
        yield
    finally:
        Step._backward = backward  # type: ignore[method-assign]


def run_job(job: dict[str, Any]) -> None:
    out = Path(job["out"])

    def on_step(loop: Loop) -> None:
        if loop.progress.step == job.get("stop_at"):
            loop.request_stop()

    rows = out.with_name(f"{out.name}.rows-{RANK}.json")
    with recorded_rows(rows), injected(job.get("nan")):
        try:
            if job.get("resume"):
                go_on(out, steps=job.get("steps"), quiet=True)
            else:
                regard.train(out=out, on_step=on_step, **job["settings"])
        except TrainingInterrupted:
            pass
        except regard.errors.RegardError as error:
            out.with_name(f"{out.name}.error-{RANK}").write_text(error.problem)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for each in json.loads(Path(sys.argv[1]).read_text()):
        run_job(each)
