"""Spoken digits: the three recipes of sound, by seeds, one run after the other.

python bench/spoken_digits.py --data-dir DIR [--recipes …] [--seeds 0 1 2] [-- any flag of regard train]

DIR/speech is what scripts/spoken_digits writes. A recording counts as right if its class, or its
whole transcript, is. Next to the clock stands what the processor did, which a busy machine leaves
alone.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# Each recipe with the score that says how many of the test recordings are right.
RECIPES = {
    "spoken_digits": "accuracy",
    "spoken_digits_ctc": "exact_match",
    "spoken_digits_transcribe": "exact_match",
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", required=True, help="the data root, with speech/ in it")
    parser.add_argument("--recipes", nargs="+", default=list(RECIPES), choices=RECIPES)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("flags", nargs="*", help="further flags of regard train")
    options = parser.parse_args()
    print("recipe\tseed\tright\twall\tprocessor", flush=True)
    for recipe in options.recipes:
        for seed in options.seeds:
            with tempfile.TemporaryDirectory() as folder:
                command = [sys.executable, "-m", "regard", "train", recipe, "--seed", str(seed)]
                command += [
                    "--data-dir",
                    options.data_dir,
                    "--out",
                    str(Path(folder) / "run"),
                    "--json",
                ]
                print(f"{recipe}\t{seed}\t{_measure([*command, *options.flags], RECIPES[recipe])}")
                sys.stdout.flush()


def _measure(command: list[str], metric: str) -> str:
    """Runs a training; its score, seconds from the command to the score, and seconds of cores."""
    start = time.perf_counter()
    before = _processor_seconds()
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    right = json.loads(done.stdout)["test"][metric]
    wall = time.perf_counter() - start
    return f"{right:.1f} %\t{wall:.0f} s\t{_processor_seconds() - before:.0f} s"


def _processor_seconds() -> float:
    """Of all processes that were started here and have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
