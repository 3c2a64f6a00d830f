"""Speed of this checkout and another one, in turns: `python bench/versions.py OTHER [--gpu]`.

Each figure is a process of its own, `regard bench` with the source of one checkout; a round runs
every case in both, and the next round begins with the other. Printed are medians, their spread and
the ratio, this checkout to the other: above 1 this one is faster.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
CPU = {
    "train base": "train --model base --batches 2 --batch-tokens 1024 --rounds 2 --threads 1",
    "train gpt2": "train --model gpt2 --lengths equal --length 64 --batch-tokens 256 --batches 2 "
    "--rounds 2 --threads 1",
    "decode base": "decode --model base --batch 1,8 --beam 1,5 --new 24 --rounds 2 --threads 1",
    "decode gpt2": "decode --model gpt2 --batch 1 --new 24 --rounds 2 --threads 1",
}
GPU = {
    "train base": "train --model base --precision bf16 --compile --lengths equal --length 64 "
    "--batch-tokens 16384 --batches 8 --rounds 5",
    "train gpt2": "train --model gpt2 --precision bf16 --compile --lengths equal --length 1024 "
    "--batch-tokens 32768 --batches 8 --rounds 5",
    "decode base": "decode --model base --batch 1,64 --beam 1,4 --new 64 --rounds 5",
    "decode gpt2": "decode --model gpt2 --batch 1,32 --new 128 --given 16 --rounds 5",
}
STARTS = {
    "import regard": ["-c", "import regard"],
    "regard --help": ["-m", "regard", "--help"],
    "regard train --help": ["-m", "regard", "train", "--help"],
}


def python(checkout: Path, *arguments: str) -> str:
    path = os.pathsep.join([str(checkout / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": path},
        cwd="/",  # `python -m` would put this folder first
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def rates(checkout: Path, arguments: str) -> dict[str, float]:
    """Case and contender → rate in the unit of the report."""
    printed = python(checkout, "-m", "regard", "bench", *arguments.split(), "--json")
    reports = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    return {
        f"{report['case']}: {row['name']}": row["rate"]
        for report in reports
        for row in report["rows"]
    }


def starts(checkout: Path, arguments: list[str]) -> float:
    """Starts a second, of the fastest of seven."""
    seconds = []
    for _ in range(7):
        began = time.perf_counter()
        python(checkout, *arguments)
        seconds.append(time.perf_counter() - began)
    return 1 / min(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("other", type=Path)
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="cases whose names contain this")
    arguments = parser.parse_args()
    cases = GPU if arguments.gpu else CPU
    figures: dict[str, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    contenders = [(0, HERE), (1, arguments.other.resolve())]
    for round_number in range(arguments.rounds):
        for name, command in cases.items():
            for column, checkout in contenders[:: 1 if round_number % 2 else -1]:
                if arguments.only in name:
                    for case, rate in rates(checkout, command).items():
                        figures[case][column].append(rate)
        for name, start in STARTS.items():
            for column, checkout in contenders:
                if arguments.only in name:
                    figures[name][column].append(starts(checkout, start))
        print(f"round {round_number + 1} done", file=sys.stderr, flush=True)
    print("| case | other | this | ratio |\n|---|--:|--:|--:|")
    for case, (new, old) in figures.items():
        middle = [statistics.median(rates) for rates in (old, new)]
        spread = [
            (max(rates) - min(rates)) / 2 / m for rates, m in zip((old, new), middle, strict=True)
        ]
        cells = [f"{m:,.4g} ± {s:.0%}" for m, s in zip(middle, spread, strict=True)]
        print(f"| {case} | {cells[0]} | {cells[1]} | {middle[1] / middle[0]:.3f} |")


if __name__ == "__main__":
    main()
