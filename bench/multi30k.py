"""Multi30k en→de: several seeds of a packaged recipe, their test BLEU, and what they took.

python bench/multi30k.py --data-dir DIR [--recipe multi30k_raw] [--seeds 1 2 3]
    [-- any flag of regard train]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", required=True, help="a folder with multi30k/ in it")
    parser.add_argument("--recipe", default="multi30k")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--keep", help="a folder for the runs; without it they are thrown away")
    parser.add_argument("flags", nargs="*", help="further flags of regard train")
    options = parser.parse_args()
    scores: list[float] = []
    with contextlib.ExitStack() as stack:
        folder = options.keep or stack.enter_context(tempfile.TemporaryDirectory())
        for seed in options.seeds:
            start = time.perf_counter()
            result = train(options, seed, Path(folder) / str(seed))
            wall = time.perf_counter() - start
            scores.append(result["test"]["bleu"])
            training = result["seconds"] - result["compiling"]
            print(
                f"seed {seed}: BLEU {scores[-1]:.2f}  training {training:.0f} s  "
                f"compiling {result['compiling']:.0f} s  wall {wall:.0f} s",
                flush=True,
            )
    mean = statistics.mean(scores)
    spread = statistics.stdev(scores) if len(scores) > 1 else 0.0
    signature = result["test"]["signature"]
    print(f"mean of {len(scores)}: BLEU {mean:.2f} ± {spread:.2f}  {signature}")


def train(options: argparse.Namespace, seed: int, folder: Path) -> dict[str, Any]:
    """Trains one seed in a process of its own; what `regard train --json` prints."""
    command = [sys.executable, "-m", "regard", "train", options.recipe]
    command += ["--data-dir", options.data_dir, "--seed", str(seed), "--out", str(folder), "--json"]
    command += options.flags
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


if __name__ == "__main__":
    main()
