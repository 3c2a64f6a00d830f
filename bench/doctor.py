"""The doctor on sick and healthy runs: the cause that was planted, and what it names first.

Run it: python bench/doctor.py [--seed N] [--only TEXT]. With $REGARD_DATA, runs of real data too.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

import doctor_blind_cases
import doctor_cases
import doctor_held_out_cases
import doctor_unseen_cases
import doctor_wider_cases
from doctor_cases import examine_case, is_right


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="of sizes, data and severities")
    parser.add_argument("--only", default="", help="cases whose name has one of these texts: A|B")
    parser.add_argument("--verbose", action="store_true", help="print all findings")
    arguments = parser.parse_args()
    cases = [
        *doctor_cases.HEALTHY,
        *doctor_wider_cases.HEALTHY,
        *doctor_cases.SICK,
        *doctor_wider_cases.SICK,
        *doctor_unseen_cases.SICK,
        *doctor_unseen_cases.AFTER,
    ]
    if "REGARD_DATA" in os.environ:
        cases += doctor_blind_cases.HEALTHY
        cases += doctor_blind_cases.SICK + doctor_held_out_cases.SICK
    counts = {"sick": [0, 0], "healthy": [0, 0]}
    print(f"{'run':40} {'planted':24} {'first finding':26} right  seconds")
    for case in cases:
        if not any(part in case.name for part in arguments.only.split("|")):
            continue
        started = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            report = examine_case(case, Path(folder), arguments.seed)
        right = is_right(case, report)
        group = counts["sick" if case.planted else "healthy"]
        group[0] += right
        group[1] += 1
        first = report.findings[0].check if report.findings else "–"
        planted = case.planted[0] if case.planted else "–"
        seconds = time.perf_counter() - started
        print(f"{case.name:40} {planted:24} {first:26} {'yes' if right else 'NO':5} {seconds:8.1f}")
        noticed = [] if report.log is None else report.log.findings
        if not case.planted and noticed:
            print(f"    while training: {', '.join(finding.check for finding in noticed)}")
        if arguments.verbose or not right:
            for finding in report.findings:
                print(f"    {finding.line()}")
            for problem in report.problems:
                print(f"    ({problem})")
        sys.stdout.flush()
    for name, (count, total) in counts.items():
        if total:
            print(f"{name}: {count} of {total} right ({100 * count / total:.0f} %)")


if __name__ == "__main__":
    main()
