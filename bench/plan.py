"""The planner's predictions beside measurements: peak memory and time of a training step.

python bench/plan.py [--device cpu] [--models NAME:ROWS:LENGTH …] [--precision float32] [--json OUT]

Each model has a process of its own (`regard plan NAME --measure`), so that none finds what another
has left. On a CPU, with one thread, times are processor time, which a busy machine does not change
much; memory is what PyTorch's allocator counts. On a GPU the step is a replayed CUDA graph, and
memory `torch.cuda.max_memory_allocated`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

# Model, rows, positions of a row.
ON_CPU = (
    ("transformer:small", 8, 64),
    ("transformer:base", 4, 64),
    ("gpt2:small", 1, 128),
    ("bert:base", 2, 128),
    ("t5:small", 4, 64),
    ("vit:tiny", 4, 197),
)
ON_GPU = (
    ("transformer:small", 64, 64),
    ("transformer:base", 64, 128),
    ("gpt2:small", 8, 1024),
    ("bert:base", 32, 512),
    ("t5:small", 32, 256),
    ("vit:base/16", 64, 197),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--models", nargs="+", help="NAME:SIZE:ROWS:LENGTH")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--json", help="a file for the results")
    options = parser.parse_args()
    cases: tuple[tuple[str, int, int], ...] = ON_CPU if options.device == "cpu" else ON_GPU
    if options.models:
        cases = tuple(_case(text) for text in options.models)
    results = []
    print("model              memory: predicted  measured  diff   time: predicted  measured  diff")
    for name, rows, length in cases:
        result = measured(name, rows, length, options)
        results.append(result)
        print(line(name, result), flush=True)
    if options.json:
        Path(options.json).write_text(json.dumps(results, indent=2))


def _case(text: str) -> tuple[str, int, int]:
    name, rows, length = text.rsplit(":", 2)
    return name, int(rows), int(length)


def measured(name: str, rows: int, length: int, options: argparse.Namespace) -> dict[str, Any]:
    """What `regard plan --measure --json` prints."""
    command = [sys.executable, "-m", "regard", "plan", name, "--batch", str(rows)]
    command += ["--length", str(length), "--device", options.device]
    command += ["--precision", options.precision, "--measure", "--json"]
    environment = dict(os.environ)
    if options.device == "cpu":
        environment.setdefault("OMP_NUM_THREADS", "1")
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def line(name: str, result: dict[str, Any]) -> str:
    memory = result["memory"]["peak"]
    memory_measured = result["measured"]["memory"]
    seconds = result["seconds"]
    seconds_measured = result["measured"]["seconds"]
    return (
        f"{name:<20} {memory / 1e6:>14,.0f} MB {memory_measured / 1e6:>8,.0f} "
        f"{100 * (memory / memory_measured - 1):>+5.1f} %  {1e3 * seconds:>12,.1f} ms "
        f"{1e3 * seconds_measured:>8,.1f} {100 * (seconds / seconds_measured - 1):>+5.1f} %"
    )


if __name__ == "__main__":
    main()
