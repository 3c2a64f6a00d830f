"""Multi30k en→de: several seeds of a packaged recipe, their test BLEU, and what they took.

python bench/multi30k.py --data DIR [--recipe multi30k_raw] [--seeds 1 2 3] [-- any flag of regard train]
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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", required=True, help="a folder with multi30k/ in it")
    parser.add_argument("--recipe", default="multi30k")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--keep", help="a folder for the runs; without it they are thrown away")
    parser.add_argument("flags", nargs="*", help="further flags of regard train")
    asked = parser.parse_args()
    scores = []
    with (
        contextlib.nullcontext(asked.keep)
        if asked.keep
        else tempfile.TemporaryDirectory() as folder
    ):
        for seed in asked.seeds:
            began = time.perf_counter()
            command = [
                sys.executable,
                "-m",
                "regard",
                "train",
                asked.recipe,
                "--data",
                asked.data,
                "--seed",
                str(seed),
            ]
            command += ["--out", str(Path(folder) / str(seed)), "--json", *asked.flags]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            result = json.loads(done.stdout)
            scores.append(result["test"]["bleu"])
            wall = time.perf_counter() - began
            print(
                f"seed {seed}: BLEU {scores[-1]:.2f}  training {result['seconds'] - result['compiling']:.0f} s  "
                f"compiling {result['compiling']:.0f} s  wall {wall:.0f} s",
                flush=True,
            )
    spread = statistics.stdev(scores) if len(scores) > 1 else 0.0
    print(
        f"mean of {len(scores)}: BLEU {statistics.mean(scores):.2f} ± {spread:.2f}  {result['test']['signature']}"
    )


if __name__ == "__main__":
    main()
