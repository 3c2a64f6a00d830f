"""SST-2: one finished encoder fine-tuned whole, above frozen blocks, and by low-rank changes; accuracy on the test file.

python bench/sst2.py --model DIR --data DIR/sst2 [--ways whole frozen lora] [--examples N] [-- any flag of regard finetune]
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# Rates are larger than a large model would take; low-rank changes start at zero and have farther to go.
WAYS = {
    "whole": ["--learning-rate", "1e-4"],
    "frozen": ["--freeze", "4", "--learning-rate", "3e-4"],
    "lora": ["--lora", "8", "--lora-in", "all", "--learning-rate", "2e-3"],
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="a folder in Hugging Face's layout")
    parser.add_argument(
        "--data",
        required=True,
        help="the folder of sst2-train.tsv.gz, sst2-dev.tsv.gz, sst2-test.tsv.gz",
    )
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument(
        "--examples", type=int, default=None, help="only the first N of the training file"
    )
    parser.add_argument("flags", nargs="*", help="further flags of regard finetune")
    asked = parser.parse_args()
    data = Path(asked.data)
    print("way\taccuracy\tF1\tseconds of training\twall", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        train = Path(folder) / "train.tsv"
        with gzip.open(data / "sst2-train.tsv.gz", "rt", encoding="utf-8") as lines:
            train.write_text("".join(itertools.islice(lines, asked.examples)), encoding="utf-8")
        for way in asked.ways:
            began = time.perf_counter()
            command = [
                sys.executable,
                "-m",
                "regard",
                "finetune",
                asked.model,
                "--task",
                "classify",
                "--data",
                str(train),
            ]
            command += [
                "--valid",
                str(data / "sst2-dev.tsv.gz"),
                "--test",
                str(data / "sst2-test.tsv.gz"),
            ]
            command += [
                "--epochs",
                "1",
                "--out",
                str(Path(folder) / way),
                "--json",
                *WAYS[way],
                *asked.flags,
            ]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            result = json.loads(done.stdout)
            test, wall = result["test"], time.perf_counter() - began
            print(
                f"{way}\t{test['accuracy']:.2f} %\t{test['f1']:.2f}\t{result['seconds']:.0f} s\t{wall:.0f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
