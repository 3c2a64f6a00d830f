"""kill -9 at random moments, then --resume: weights and logged losses are those of a run that
nobody touched.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from faults import process_environment

FLAGS = [
    "--preset",
    "tiny",
    "--d-model",
    "48",
    "--d-ff",
    "64",
    "--heads",
    "2",
    "--layers",
    "1",
    "--dropout",
    "0.2",
    "--attention-dropout",
    "0.1",
    "--batch-tokens",
    "256",
    "--steps",
    "420",
    "--warmup-steps",
    "50",
    "--save-every",
    "7",
    "--validate-every",
    "30",
    "--log-every",
    "5",
    "--final-weights",
    "average:3",
    "--builtin-lines",
    "2000",
    "--tokenizer",
    "bpe",
    "--vocabulary",
    "400",
    "--beam",
    "1",
    "--threads",
    "1",
    "--seed",
    "11",
    "--learning-rate",
    "0.002",
    "--samples",
    "1",
    "--device",
    "cpu",
]


def regard(*arguments: str, cwd: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "regard", *arguments],
        cwd=cwd,
        env=process_environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def log(folder: Path) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [
        {k: v for k, v in line.items() if k not in ("seconds", "tokens_per_second")}
        for line in lines
    ]


def killed_run(name: str, cwd: Path, chance: random.Random, longest: float, most: int) -> int:
    """A run that is killed until it ends by itself, or that many times; the number of kills."""
    kills = 0
    process = regard("train", *FLAGS, "--out", name, cwd=cwd)
    while kills < most:
        # Moments over the whole life of a process: start, preparation, steps, saving, scoring.
        time.sleep(chance.uniform(0.3, longest))
        if process.poll() is not None:
            break
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        kills += 1
        has_begun = (cwd / name / "state" / "recipe.json").exists()
        again = ["--resume", name] if has_begun else [*FLAGS, "--out", name]
        process = regard("train", *again, cwd=cwd)
    assert process.wait() == 0
    return kills


def assert_same_run(one: Path, other: Path) -> None:
    """Every logged number, the exported weights and the newest checkpoint are equal bit for bit."""
    assert log(one) == log(other)
    newest = [sorted((run / "state" / "checkpoints").iterdir())[-1] for run in (one, other)]
    for pair in (
        [run / "model.safetensors" for run in (one, other)],
        [checkpoint / "weights.safetensors" for checkpoint in newest],
        [checkpoint / "optimizer.safetensors" for checkpoint in newest],
    ):
        first, second = map(load_file, pair)
        assert first.keys() == second.keys()
        assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.slow
def test_killed_twenty_times_equals_never_killed(tmp_path: Path) -> None:
    began = time.perf_counter()
    assert regard("train", *FLAGS, "--out", "whole", cwd=tmp_path).wait() == 0
    alone = time.perf_counter() - began
    chance = random.Random(5)
    kills = 0
    runs = 0
    # How many kills a run meets before its end depends on the load of the machine.
    while kills < 20:
        name = f"hurt-{runs}"
        runs += 1
        kills += killed_run(name, tmp_path, chance, 0.45 * alone, 20 - kills)
        assert_same_run(tmp_path / name, tmp_path / "whole")
    print(f"{kills} kills in {runs} runs, {alone:.1f} s alone")


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_save_and_exit(tmp_path: Path, number: signal.Signals, code: int) -> None:
    process = regard("train", *FLAGS, "--save-every", "100000", "--out", "run", cwd=tmp_path)
    metrics = tmp_path / "run" / "metrics.jsonl"
    while not (metrics.exists() and metrics.stat().st_size):
        time.sleep(0.05)
        assert process.poll() is None
    process.send_signal(number)
    assert process.wait(180) == code
    assert len(list((tmp_path / "run" / "state" / "checkpoints").glob("step-*"))) == 1
    assert (tmp_path / "run" / "model.safetensors").exists()
