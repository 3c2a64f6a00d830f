"""kill -9 at random moments and inside the save: the resumed run is the one that nobody killed."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from faults import process_environment

pytestmark = pytest.mark.thorough

WORKER = Path(__file__).parent / "crash_worker.py"
MOST_OPERATIONS = 60  # more than one save has


class Worker:
    """The process of crash_worker.py."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        text = "".join(f"{i} and {i * i % 97} make {i + i * i % 97}.\n" for i in range(300))
        (folder / "text.txt").write_text(text)
        self.process = subprocess.Popen(
            [sys.executable, str(WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=process_environment(),
        )

    def run(self, name: str, **kill: Any) -> tuple[int, float]:
        """The exit status of a run that begins or goes on, and its seconds."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps({"folder": str(self.folder / name), **kill}), file=self.process.stdin)
        self.process.stdin.flush()
        status, seconds = json.loads(self.process.stdout.readline())
        return status, seconds

    def result(self, name: str) -> dict[str, Any]:
        """Weights, state and log of a finished run, without clocks."""
        folder = self.folder / name
        newest = sorted((folder / "state" / "checkpoints").iterdir())[-1]
        lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
        clocks = ("seconds", "tokens_per_second")
        return {
            "log": [{k: v for k, v in line.items() if k not in clocks} for line in lines],
            "weights": load_file(folder / "model.safetensors"),
            "state": load_file(newest / "weights.safetensors"),
            "optimizer": load_file(newest / "optimizer.safetensors"),
        }


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    worker = Worker(tmp_path_factory.mktemp("kills"))
    status, _ = worker.run("whole")
    assert status == 0
    yield worker
    worker.process.stdin.close()  # type: ignore[union-attr]
    worker.process.wait()


def assert_equal(result: dict[str, Any], expected: dict[str, Any]) -> None:
    assert result["log"] == expected["log"]
    for part in ("weights", "state", "optimizer"):
        assert result[part].keys() == expected[part].keys()
        assert all(torch.equal(result[part][name], t) for name, t in expected[part].items())


def finish(worker: Worker, name: str) -> None:
    status, _ = worker.run(name)
    assert status == 0
    assert_equal(worker.result(name), worker.result("whole"))
    # Nothing of what the killed processes were writing is left.
    assert not list((worker.folder / name).rglob(".*.tmp"))
    assert not list((worker.folder / name).rglob(".*.old"))


def kill_inside_saves(worker: Worker, numbers: list[int]) -> int:
    """One run, killed in its saves again and again; returns how many kills there were."""
    kills = 0
    for number in numbers:
        status, _ = worker.run("aimed", kill_at=number)
        if status == 0:
            break
        assert status == -signal.SIGKILL
        kills += 1
    finish(worker, "aimed")
    return kills


def kill_at_random(worker: Worker, count: int, seed: int) -> int:
    """One run after the other, each killed until it is done."""
    chance = random.Random(seed)
    _, seconds = worker.run("timed")
    kills = 0
    runs = 0
    while kills < count:
        name = f"random-{seed}-{runs}"
        runs += 1
        while kills < count:
            # Over the whole life of a process: preparation, steps, saving, scoring.
            status, _ = worker.run(name, kill_after=chance.uniform(0, 0.7 * seconds))
            if status == 0:
                break
            kills += 1
        finish(worker, name)
    return kills


def test_killed_inside_the_save(worker: Worker) -> None:
    """Each process gets to its second save: the run advances, and ends after some kills."""
    assert kill_inside_saves(worker, [1, 14, 25]) >= 3


@pytest.mark.slow
def test_killed_at_random_moments(worker: Worker) -> None:
    assert kill_at_random(worker, 3, seed=0) == 3


@pytest.mark.slow
def test_killed_at_fifty_random_moments(worker: Worker) -> None:
    assert kill_at_random(worker, 50, seed=1) == 50


@pytest.mark.slow
@pytest.mark.parametrize("first", range(5))
def test_killed_at_every_operation_of_a_save(worker: Worker, first: int) -> None:
    """Operations 0 to MOST_OPERATIONS: those that a save does not have let the run end."""
    kills = 0
    for number in range(first, MOST_OPERATIONS, 5):
        name = f"operation-{number}"
        status, _ = worker.run(name, kill_at=number)
        kills += status == -signal.SIGKILL
        finish(worker, name)
    assert kills >= 4
