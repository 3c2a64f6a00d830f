"""What asynchronous saving costs, in one run.

python bench/saving.py [--preset small] [--steps 1001] [--every 500] [--rounds 3] [--device cpu]

The same translation run with a checkpoint every so many steps and without any, in turns. Three
numbers a round: the clock from the fifth step to the last but one, the processor time of the whole
process (the thread that writes and hashes included), and how long training itself waited in
`Loop.save`, where the state is copied. Both are stopped there; the checkpoint of that is not counted.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import regard
from regard.system.errors import TrainingInterrupted
from regard.training.engine.loop import Loop

NEVER = 10**9
FIRST = 5  # step from which on time is counted: before, memory is allocated


@dataclass
class Times:
    """Of one run, in seconds."""

    clock: float = 0.0
    processor: float = 0.0
    waiting: float = 0.0
    marks: list[tuple[float, float]] = field(default_factory=list)


def measure(settings: dict[str, Any], steps: int) -> Times:
    times = Times()
    save = Loop.save

    def timed_save(loop: Loop) -> None:
        started = time.perf_counter()
        save(loop)
        if loop.progress.step < steps - 1:
            times.waiting += time.perf_counter() - started

    def on_step(loop: Loop) -> None:
        if loop.progress.step in (FIRST, steps - 1):
            times.marks.append((time.perf_counter(), time.process_time()))
        if loop.progress.step == steps - 1:
            loop.request_stop()  # nothing is scored

    Loop.save = timed_save  # type: ignore[method-assign, assignment]
    try:
        # What a run says is not of interest here.
        with (
            tempfile.TemporaryDirectory() as folder,
            open(os.devnull, "w") as null,
            contextlib.redirect_stderr(null),
            contextlib.suppress(TrainingInterrupted),
        ):
            regard.train("builtin", out=Path(folder) / "run", on_step=on_step, **settings)
    finally:
        Loop.save = save  # type: ignore[method-assign]
    (clock, processor), (clock_end, processor_end) = times.marks
    times.clock = clock_end - clock
    times.processor = processor_end - processor
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="small")
    parser.add_argument("--steps", type=int, default=1001)
    parser.add_argument("--every", type=int, default=500, help="save_every; 500 is the default")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch-tokens", type=int, default=1024)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    settings: dict[str, Any] = {
        "preset": arguments.preset, "steps": arguments.steps, "validate_every": NEVER,
        "log_every": 100, "samples": 0, "threads": 1, "final_weights": "last", "builtin_lines": 4000,
        "batch_tokens": arguments.batch_tokens, "beam": 1, "test_lines": 10,
        "device": arguments.device, "warmup_steps": 10,
    }  # fmt: skip
    clock = []
    processor = []
    waiting = []
    for number in range(arguments.rounds):
        # In turns, and each first in every other round: caches and clocks of the machine drift.
        intervals = [NEVER, arguments.every]
        if number % 2:
            intervals.reverse()
        times = {
            interval: measure(settings | {"save_every": interval}, arguments.steps)
            for interval in intervals
        }
        off = times[NEVER]
        on = times[arguments.every]
        clock.append(on.clock / off.clock - 1)
        processor.append(on.processor / off.processor - 1)
        waiting.append(on.waiting / on.clock)
        print(
            f"round {number + 1}: {off.clock:.1f} s without, {on.clock:.1f} s with saving every "
            f"{arguments.every} steps; processor {off.processor:.1f} s, {on.processor:.1f} s; "
            f"waiting in save {on.waiting:.3f} s",
            flush=True,
        )
    print(
        f"cost, median of {arguments.rounds}: clock {statistics.median(clock):+.1%}, "
        f"processor {statistics.median(processor):+.1%}, "
        f"waiting {statistics.median(waiting):.2%} of the run"
    )


if __name__ == "__main__":
    main()
