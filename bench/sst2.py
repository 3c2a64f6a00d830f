"""SST-2: one finished encoder fine-tuned fully, above frozen blocks, and with LoRA.

python bench/sst2.py --model DIR --data DIR/sst2 [--ways whole frozen lora] [--examples N]
    [-- any flag of regard finetune]

Accuracy and F1 are those on the test file.
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

# Learning rates are higher than for a large model; LoRA starts at zero and has farther to go.
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
    options = parser.parse_args()
    data = Path(options.data)
    print("way\taccuracy\tF1\tseconds of training\twall", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        train = Path(folder) / "train.tsv"
        with gzip.open(data / "sst2-train.tsv.gz", "rt", encoding="utf-8") as lines:
            train.write_text("".join(itertools.islice(lines, options.examples)), encoding="utf-8")
        for way in options.ways:
            start = time.perf_counter()
            command = [sys.executable, "-m", "regard", "finetune", options.model]
            command += ["--task", "classify", "--data", str(train), "--epochs", "1"]
            command += ["--valid", str(data / "sst2-dev.tsv.gz")]
            command += ["--test", str(data / "sst2-test.tsv.gz")]
            command += ["--out", str(Path(folder) / way), "--json", *WAYS[way], *options.flags]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            result = json.loads(done.stdout)
            test = result["test"]
            wall = time.perf_counter() - start
            print(
                f"{way}\t{test['accuracy']:.2f} %\t{test['f1']:.2f}\t{result['seconds']:.0f} s\t"
                f"{wall:.0f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
