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
    "--warmup",
    "50",
    "--save-every",
    "7",
    "--validate-every",
    "30",
    "--log-every",
    "5",
    "--weights",
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


@pytest.mark.slow
def test_killed_twenty_times_equals_never_killed(tmp_path: Path) -> None:
    began = time.perf_counter()
    assert regard("train", *FLAGS, "--out", "whole", cwd=tmp_path).wait() == 0
    alone = time.perf_counter() - began
    chance = random.Random(5)
    kills, hurt = 0, tmp_path / "hurt"
    process = regard("train", *FLAGS, "--out", "hurt", cwd=tmp_path)
    while kills < 20:
        # Moments over the whole life of a process: start, preparation, steps, saving, scoring.
        time.sleep(chance.uniform(0.3, 0.45 * alone))
        if process.poll() is not None:
            assert process.returncode == 0
            break
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        kills += 1
        again = (
            ["--resume", "hurt"]
            if (hurt / "state" / "recipe.json").exists()
            else [*FLAGS, "--out", "hurt"]
        )
        process = regard("train", *again, cwd=tmp_path)
    assert process.wait() == 0
    print(f"{kills} kills, {alone:.1f} s alone")
    assert kills >= 5
    assert log(hurt) == log(tmp_path / "whole")
    one, other = (
        load_file(hurt / "model.safetensors"),
        load_file(tmp_path / "whole" / "model.safetensors"),
    )
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    newest = [
        sorted((folder / "state" / "checkpoints").iterdir())[-1]
        for folder in (hurt, tmp_path / "whole")
    ]
    for name in ("weights", "optimizer"):
        first, second = (load_file(place / f"{name}.safetensors") for place in newest)
        assert all(torch.equal(first[key], second[key]) for key in second)


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
