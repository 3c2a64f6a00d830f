"""Data at scale: preparing a corpus on one core and on two, memory by size, and time to resume.

    python bench/data.py                     about fifteen minutes on two quiet cores
    python bench/data.py --sizes 100000 1000000 --rounds 5

Each case runs in a process of its own. Its peak memory is sampled, over it and its workers
together: what they hold themselves (anonymous), without the pages of mapped files, which the system
takes back when it needs them. One core and two are measured in turns; of the rounds the median
counts, and next to the clock stands what the processor did, which a busy machine leaves alone.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

SIZES = (100_000, 1_000_000, 10_000_000)
PREPARED = 300_000  # pairs, for the comparison of one core with two
LENGTHS = (5, 40)  # tokens of generated rows
VOCABULARY = 8000


# --- cases, each in its process -------------------------------------------------------------------


def prepare(folder: Path, size: int, cores: int) -> dict[str, Any]:
    """Tokenizes pairs of the built-in language, each with a number, into a corpus."""
    from regard.data.corpus import Corpus
    from regard.data.corpus import prepare as prepare_corpus
    from regard.data.text.tokenizer_training import train_tokenizer

    if sys.platform.startswith("linux"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    sentences = list(_pairs(5000))
    tokenizer = train_tokenizer((text for pair in sentences for text in pair), "bpe", 4000)
    start = time.perf_counter()
    before = _processor_seconds()
    prepare_corpus(_numbered(sentences, size), tokenizer, tokenizer, folder / "c", max_length=256)
    seconds = time.perf_counter() - start
    # Workers have ended, and count.
    own, workers = (after - b for after, b in zip(_processor_seconds(), before, strict=True))
    return {
        "seconds": seconds,
        "pairs_per_second": size / seconds,
        "own": own,
        "workers": workers,
        "fingerprint": Corpus.open(folder / "c").fingerprint,
    }


def train(folder: Path, size: int, cores: int) -> dict[str, Any]:
    """Makes a corpus of random ids and reads batches from the middle of its second epoch."""
    from regard.data.batching import BatchSampler, collate, corpus_sampler
    from regard.data.corpus import Corpus

    _write_random(folder / "c", size)
    start = time.perf_counter()
    corpus = Corpus.open(folder / "c")
    sampler = corpus_sampler(corpus, 4096, seed=1)
    if isinstance(sampler, BatchSampler):
        middle = len(sampler.batches(1)) // 2
    else:
        middle = _middle(sampler, size)
    opened = time.perf_counter()
    batches = sampler.iterate(1, middle)
    _, _, rows = next(batches)
    collate(corpus, rows, source_pad=0, target_pad=0, start=1)
    first = time.perf_counter()
    for _, (_, _, rows) in zip(range(3000), batches, strict=False):
        collate(corpus, rows, source_pad=0, target_pad=0, start=1)
    return {
        "resume_seconds": first - opened,
        "opening_seconds": opened - start,
        "batches_per_second": 3000 / (time.perf_counter() - first),
    }


def _middle(sampler: Any, size: int) -> int:
    """A position between two batches near the middle of the epoch."""
    block = size // 2 // sampler.block_rows
    first = len(sampler.block(1, block)[0])
    return int(block * sampler.block_rows + first)


def _pairs(count: int) -> Iterator[tuple[str, str]]:
    from itertools import islice

    from regard.data.generated import builtin

    for sentence in islice(builtin.sentences("train"), count):
        yield sentence.source, sentence.target


def _numbered(pairs: list[tuple[str, str]], size: int) -> Iterator[tuple[str, str]]:
    for i in range(size):
        source, target = pairs[i % len(pairs)]
        yield f"{source} {i % 997}", f"{target} {i % 997}"


def _write_random(folder: Path, size: int) -> None:
    from regard.data.corpus import RowChunk, order_notes, write_chunks

    chance = np.random.default_rng(0)

    def chunks() -> Iterator[tuple[RowChunk, ...]]:
        for start in range(0, size, 100_000):
            rows = min(100_000, size - start)
            yield tuple(_random_rows(chance, rows) for _ in range(2))

    write_chunks(chunks(), ["source", "target"], ["uint16", "uint16"], folder,
                 about=lambda: order_notes({"": size}, None))  # fmt: skip


def _random_rows(chance: np.random.Generator, rows: int) -> Any:
    from regard.data.corpus import RowChunk

    lengths = chance.integers(*LENGTHS, size=rows)
    ids = chance.integers(4, VOCABULARY, size=int(lengths.sum()), dtype=np.uint16)
    return RowChunk(ids, lengths)


def _processor_seconds() -> tuple[float, float]:
    """Of this process, and of its workers that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    own, workers = (usage.ru_utime + usage.ru_stime for usage in usages)
    return own, workers


def _anonymous_memory(pid: int) -> float:
    """RssAnon of a process and of its children, in MB; what forks share counts for each."""
    total = 0
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:  # it has ended
        return 0.0
    for number in (str(pid), *children):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            status = Path(f"/proc/{number}/status").read_text()
            total += sum(map(int, re.findall(r"RssAnon:\s+(\d+)", status)))  # a zombie has none
    return total / 1024


# --- all of them ----------------------------------------------------------------------------------


def measure(case: str, size: int, cores: int = 2) -> dict[str, Any]:
    folder = tempfile.mkdtemp(prefix="regard-bench-")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if cores == 1:
        environment["TOKENIZERS_PARALLELISM"] = "false"
    command = [sys.executable, __file__, "--case", case, str(size), str(cores), folder]
    peak = 0.0
    try:
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        while process.poll() is None:
            peak = max(peak, _anonymous_memory(process.pid))
            time.sleep(0.05)
        output, _ = process.communicate()
        if process.returncode:
            raise SystemExit(process.returncode)
    finally:
        shutil.rmtree(folder)
    result: dict[str, Any] = json.loads(output.splitlines()[-1])
    return {**result, "peak_mb": peak}


def compare_cores(size: int, rounds: int) -> None:
    """Prepares the same pairs on one core and on two, in turns."""
    speedups = []
    shares = []
    for number in range(rounds):
        cores = [1, 2] if number % 2 == 0 else [2, 1]
        results = {count: measure("prepare", size, count) for count in cores}
        one = results[1]
        two = results[2]
        assert one["fingerprint"] == two["fingerprint"], "the bytes depend on the processes"
        speedups.append(one["seconds"] / two["seconds"])
        # Two cores need at least half of all work, and as long as this process works by itself.
        least = max((two["own"] + two["workers"]) / 2, two["own"])
        shares.append((one["own"] + one["workers"]) / least)
        print(f"round {number + 1}: preparing {size:,} pairs, {one['pairs_per_second']:,.0f} "
              f"pairs/s on one core, {two['pairs_per_second']:,.0f} on two: {speedups[-1]:.2f} ×; "
              f"by processor time {shares[-1]:.2f} ×", flush=True)  # fmt: skip
    print(f"two cores, median of {rounds}: {statistics.median(speedups):.2f} × by the clock, "
          f"{statistics.median(shares):.2f} × by processor time; the same bytes")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", nargs=4, metavar=("CASE", "SIZE", "CORES", "FOLDER"))
    parser.add_argument("--sizes", nargs="*", type=int, default=SIZES)
    parser.add_argument("--prepared", type=int, default=PREPARED)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    if arguments.case:
        name, size, cores, folder = arguments.case
        result = {"prepare": prepare, "train": train}[name](Path(folder), int(size), int(cores))
        print(json.dumps(result))
        return
    compare_cores(arguments.prepared, arguments.rounds)
    for size in arguments.sizes:
        peak_mb = measure("prepare", size)["peak_mb"]
        print(f"preparing {size:>11,} pairs: peak {peak_mb:,.0f} MB", flush=True)
    for size in arguments.sizes:
        result = measure("train", size)
        print(f"training on {size:>11,} pairs: peak {result['peak_mb']:,.0f} MB; "
              f"resumed in {result['resume_seconds']:.3f} s; "
              f"{result['batches_per_second']:,.0f} batches/s", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
