"""From nothing to the first translation: a fresh Python, the import, the model, one sentence with a beam of four."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch

from regard.bench import subprocesses
from regard.bench.models import measured
from regard.bench.report import Report, machine, row
from regard.bench.timing import Timing


@dataclass(frozen=True)
class Case:
    model: str = "base"
    new: int = 16
    rounds: int = 5

    def __str__(self) -> str:
        return f"load {self.model}: import, open, first translation of {self.new} tokens"


def run(case: Case, against: list[str], command: str) -> Report:
    names = ["regard", *(name for name in against if name == "transformers")]
    found: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as folder:
        home = measured(case.model).write(Path(folder))
        for turn in range(case.rounds + 1):
            for name in names:
                one = subprocesses.first_output(
                    home, name, "w10 w11 w12 w13 w14 w15 w16 w17", case.new
                )
                if turn:  # the first reads the disk for all
                    found[name].append(one)
    rows = [
        row(
            name, Timing(tuple(one["whole"] for one in each), 1.0), ours=name == "regard",
            peak=int(max(one["peak"] for one in each)),
        )
        for name, each in found.items()
    ]  # fmt: skip
    notes = {
        name: "+".join(
            f"{sorted(one[part] for one in each)[len(each) // 2]:.2f}"
            for part in ("import", "load", "translate")
        )
        + " s"
        for name, each in found.items()
    }
    return Report(command, str(case), machine(torch.device("cpu")), "times/s", tuple(rows), notes)
