"""The doctor on sick and healthy runs: the cause that was planted, and what it names first.

Run it: python bench/doctor.py [--seed N] [--only TEXT] [--processes N]. With $REGARD_DATA, runs of
real data too.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections import Counter
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import doctor_blind_cases
import doctor_cases
import doctor_fresh_cases
import doctor_held_out_cases
import doctor_unseen_cases
import doctor_wider_cases
import torch
from doctor_cases import Case, examine_case, is_right

from regard.lab.doctor.examination import TRIAL_SECONDS

GROUPS: dict[str, list[Case]] = {
    "own": [
        *doctor_cases.HEALTHY,
        *doctor_wider_cases.HEALTHY,
        *doctor_cases.SICK,
        *doctor_wider_cases.SICK,
        *doctor_unseen_cases.SICK,
        *doctor_unseen_cases.AFTER,
    ],
    # of real data
    "fresh": [*doctor_fresh_cases.SICK, *doctor_fresh_cases.HEALTHY],
    "held_out": doctor_held_out_cases.SICK,
    "blind": [*doctor_blind_cases.HEALTHY, *doctor_blind_cases.SICK],
}


class Row(NamedTuple):
    """What came of a case."""

    group: str
    case: str
    planted: str
    first: str
    right: bool
    seconds: float
    live: list[str]  # findings while it trained
    notes: list[str]

    def __str__(self) -> str:
        text = (
            f"{self.group:9} {self.case:40} {self.planted:24} {self.first:26} "
            f"{'yes' if self.right else 'NO':5} {self.seconds:8.1f}  {' '.join(self.live)}"
        )
        return "\n".join([text.rstrip(), *(f"    {note}" for note in self.notes)])


def examined(job: tuple[str, int], seed: int, verbose: bool, trial_seconds: float) -> Row:
    """The row of a case, by its group and number."""
    torch.set_num_threads(1)
    group, number = job
    case = GROUPS[group][number]
    started = time.perf_counter()
    planted = case.planted[0] if case.planted else "–"
    with tempfile.TemporaryDirectory() as folder:
        try:
            report = examine_case(case, Path(folder), seed, trial_seconds=trial_seconds)
        except Exception as error:  # of one case of many: the others go on
            seconds = time.perf_counter() - started
            note = f"{type(error).__name__}: {error}"
            return Row(group, case.name, planted, "(error)", False, seconds, [], [note])
    right = is_right(case, report)
    first = report.findings[0].check if report.findings else "–"
    live = [] if report.log is None else [finding.check for finding in report.log.findings]
    notes = []
    if verbose or not right:
        notes += [finding.line() for finding in report.findings]
        notes += [f"({problem})" for problem in report.problems]
    seconds = time.perf_counter() - started
    return Row(group, case.name, planted, first, right, seconds, live, notes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="of sizes, data and severities")
    parser.add_argument("--only", default="", help="cases whose name has one of these texts: A|B")
    parser.add_argument("--groups", default="", help=f"of {', '.join(GROUPS)}, by commas")
    parser.add_argument("--processes", type=int, default=1, help="cases at a time")
    parser.add_argument("--trial-seconds", type=float, default=TRIAL_SECONDS, help="0: no trials")
    parser.add_argument("--verbose", action="store_true", help="print all findings")
    arguments = parser.parse_args()
    usual = ",".join(GROUPS) if "REGARD_DATA" in os.environ else "own"
    jobs = [
        (group, number)
        for group in (arguments.groups or usual).split(",")
        for number, case in enumerate(GROUPS[group])
        if any(part in case.name for part in arguments.only.split("|"))
    ]
    how = {"verbose": arguments.verbose, "trial_seconds": arguments.trial_seconds}
    work = partial(examined, seed=arguments.seed, **how)
    rows: list[Row] = []
    print(f"{'group':9} {'run':40} {'planted':24} {'first finding':26} right  seconds  live")
    # Spawned: a fork would share the state of PyTorch's threads.
    with get_context("spawn").Pool(arguments.processes, maxtasksperchild=8) as pool:
        for row in pool.imap_unordered(work, jobs):
            rows.append(row)
            print(row, flush=True)
    right = Counter((row.group, row.planted == "–") for row in rows if row.right)
    for key, total in sorted(Counter((row.group, row.planted == "–") for row in rows).items()):
        group, healthy = key
        kind = "healthy" if healthy else "sick"
        count = right[key]
        print(f"{group}, {kind}: {count} of {total} right ({100 * count / total:.0f} %)")


if __name__ == "__main__":
    main()
