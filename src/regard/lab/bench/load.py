"""Loading time: a fresh Python, the import, the model, and one translation with a beam of four."""

from __future__ import annotations

import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch

from regard.lab.bench.models import benchmark_model
from regard.lab.bench.report import BenchmarkReport, machine_name, timing_row
from regard.lab.bench.subprocesses import time_first_output
from regard.lab.bench.timing import Timing

TEXT = "w10 w11 w12 w13 w14 w15 w16 w17"


@dataclass(frozen=True)
class LoadingCase:
    """A model that is opened and writes `new` tokens."""

    model: str = "base"
    new: int = 16
    rounds: int = 5

    def __str__(self) -> str:
        return f"load {self.model}: import, open, first translation of {self.new} tokens"


def run(case: LoadingCase, against: list[str], command: str) -> BenchmarkReport:
    """Times a fresh process for each round of each contender."""
    names = ("regard", *against)
    times: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as folder:
        path = benchmark_model(case.model).write(Path(folder))
        for turn in range(case.rounds + 1):
            for name in names:
                seconds = time_first_output(path, name, TEXT, case.new)
                if turn:  # the first round reads the files from disk, for all
                    times[name].append(seconds)
    rows = [
        timing_row(
            name,
            Timing(tuple(one["whole"] for one in rounds), 1.0),  # one start a round
            peak=int(max(one["peak"] for one in rounds)),
        )
        for name, rounds in times.items()
    ]
    machine = machine_name(torch.device("cpu"))
    notes = {}
    for name, rounds in times.items():
        # The median seconds of each part, such as `0.90+0.31+0.20 s`.
        medians = (
            statistics.median_high(one[part] for one in rounds)
            for part in ("import", "load", "translate")
        )
        notes[name] = "+".join(map("{:.2f}".format, medians)) + " s"
    return BenchmarkReport(command, str(case), machine, "times/s", tuple(rows), notes)
