"""Speed of this checkout and another one, in turns: `python bench/versions.py OTHER [--gpu]`.

Each figure is a process of its own, `regard bench` with the source of one checkout. On a CPU they run one
after the other, the other checkout first in every second round. On a GPU all warm up at once (most of
the time is compilation), wait for each other, and then take turns round by round. Printed are medians,
their spread and the ratio, this checkout to the other: above 1 this one is faster.
"""

from __future__ import annotations

import argparse
import fcntl
import importlib
import json
import os
import runpy
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).resolve().parents[1]
CPU = {
    "train base": "train --model base --batches 2 --batch-tokens 1024 --rounds 2 --threads 1",
    "train gpt2": "train --model gpt2 --lengths equal --length 64 --batch-tokens 256 --batches 2 "
    "--rounds 2 --threads 1",
    "decode base": "decode --model base --batch 1,8 --beam 1,5 --new 24 --rounds 2 --threads 1",
    "decode gpt2": "decode --model gpt2 --batch 1 --new 24 --rounds 2 --threads 1",
}
COMPILED = "train --precision bf16 --compile --lengths equal --batches 8"
GPU = {
    "train base": f"{COMPILED} --model base --length 64 --batch-tokens 16384",
    "train gpt2": f"{COMPILED} --model gpt2 --length 1024 --batch-tokens 32768",
    "decode base greedy 1": "decode --model base --batch 1 --beam 1 --new 64",
    "decode base greedy 64": "decode --model base --batch 64 --beam 1 --new 64",
    "decode base beam 1": "decode --model base --batch 1 --beam 4 --new 64",
    "decode base beam 64": "decode --model base --batch 64 --beam 4 --new 64",
    "decode gpt2 1": "decode --model gpt2 --batch 1 --new 128 --given 16",
    "decode gpt2 32": "decode --model gpt2 --batch 32 --new 128 --given 16",
}
STARTS = {
    "import regard": ["-c", "import regard"],
    "regard --help": ["-m", "regard", "--help"],
    "regard train --help": ["-m", "regard", "train", "--help"],
}
WARM_UP = 180  # seconds after which nobody waits for a contender that has not come

Figures = dict[str, tuple[list[float], list[float]]]


def environment(checkout: Path) -> dict[str, str]:
    path = os.pathsep.join([str(checkout / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path}


def python(checkout: Path, *arguments: str) -> str:
    return subprocess.run(
        [sys.executable, *arguments],
        env=environment(checkout),
        cwd="/",  # `python -m` would put this folder first
        stdout=subprocess.PIPE,
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


def one_after_the_other(
    contenders: list[tuple[int, Path]], rounds: int, only: str
) -> Iterator[tuple[str, int, float]]:
    """Case, column and rate of every process, on a CPU."""
    for round_number in range(rounds):
        for name, command in CPU.items():
            for column, checkout in contenders[:: 1 if round_number % 2 else -1]:
                if only in name:
                    for case, rate in rates(checkout, command).items():
                        yield case, column, rate
        for name, start in STARTS.items():
            for column, checkout in contenders:
                if only in name:
                    yield name, column, starts(checkout, start)
        print(f"round {round_number + 1} done", file=sys.stderr, flush=True)


def in_turns(
    contenders: list[tuple[int, Path]], rounds: int, only: str
) -> Iterator[tuple[str, int, float]]:
    """Case, column and rate of every round, on a GPU."""
    cases = {name: command for name, command in GPU.items() if only in name}
    expected = str(len(cases) * len(contenders))
    with tempfile.TemporaryDirectory() as meeting:
        processes = {
            (name, column): subprocess.Popen(
                [sys.executable, __file__, "--contender", meeting, command],
                env={**environment(checkout), "ROUNDS": str(rounds), "EXPECTED": expected},
                cwd="/",
                stdout=subprocess.PIPE,
                text=True,
            )
            for name, command in cases.items()
            for column, checkout in contenders
        }
        for (name, column), process in processes.items():
            for line in process.communicate()[0].splitlines():
                if line.startswith("{"):
                    row = json.loads(line)
                    for rate in row["rates"]:
                        yield f"{name}: {row['name']}", column, rate


def contend(meeting: Path, command: str) -> None:
    """One process of `in_turns`: the benchmark's own contenders, timed while no other computes."""

    expected = int(os.environ["EXPECTED"])

    def time_in_turns(timed: dict[str, Callable[[], float]], *_rest: Any) -> None:
        for _round in range(
            3
        ):  # kernels are compiled in the first, CUDA graphs captured in the second
            for contender in timed.values():
                contender()
                torch.cuda.synchronize()
        (meeting / str(os.getpid())).touch()
        latest = time.monotonic() + WARM_UP
        while len(list(meeting.iterdir())) < expected and time.monotonic() < latest:
            time.sleep(0.2)
        reached: dict[str, list[float]] = defaultdict(list)
        with (meeting.parent / f"{meeting.name}.lock").open("w") as turn:
            for _turn in range(int(os.environ["ROUNDS"])):
                for name, contender in timed.items():
                    time.sleep(0.3)  # so that others have their turns
                    fcntl.flock(turn, fcntl.LOCK_EX)
                    began = time.perf_counter()
                    amount = contender()
                    torch.cuda.synchronize()
                    reached[name].append(amount / (time.perf_counter() - began))
                    fcntl.flock(turn, fcntl.LOCK_UN)
        for name, found in reached.items():
            print(json.dumps({"name": name, "rates": found}), flush=True)
        raise SystemExit  # what follows would measure the machine, beside the others' turns

    try:
        bench = importlib.import_module(f"regard.lab.bench.{command.split()[0]}")
    except ModuleNotFoundError:  # before there were rooms
        bench = importlib.import_module(f"regard.bench.{command.split()[0]}")
    bench.time_in_turns = time_in_turns  # type: ignore[attr-defined]
    sys.argv = ["regard", "bench", *command.split()]
    runpy.run_module("regard", run_name="__main__", alter_sys=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("other", type=Path, nargs="?")
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="cases whose names contain this")
    parser.add_argument("--contender", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.contender:
        contend(Path(arguments.contender[0]), arguments.contender[1])
        return
    figures: Figures = defaultdict(lambda: ([], []))
    contenders = [(0, HERE), (1, arguments.other.resolve())]
    measure = in_turns if arguments.gpu else one_after_the_other
    for case, column, rate in measure(contenders, arguments.rounds, arguments.only):
        figures[case][column].append(rate)
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
