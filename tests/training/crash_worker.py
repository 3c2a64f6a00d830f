"""A process that trains a small run in forks of itself, and kills them where it is told to.

Each line of standard input is a JSON object: `folder`, and `kill_at`, the number of an operation on
the disk counted from the begin of the second save, or `kill_after`, seconds; none of them lets the
run end. The answer is a line: the exit status of the fork, or minus the signal that ended it, and
the seconds that it took. A fork takes milliseconds where a new process would import PyTorch.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

from faults import killed_at
from regard.system.checkpoint import BackgroundSave
from regard.training.entry_points import train
from regard.training.objectives import causal_lm  # noqa: F401 (imported once, before the forks)
from regard.training.run import resume

SETTINGS: dict[str, Any] = {
    "preset": "tiny", "d_model": 16, "d_ff": 24, "heads": 2, "layers": 1, "dropout": 0.1,
    "batch_tokens": 64, "context": 16, "tokenizer": "characters", "steps": 40, "warmup_steps": 10,
    "validate_every": 8, "save_every": 5, "log_every": 3, "samples": 0, "threads": 1,
    "learning_rate": 0.002, "device": "cpu", "final_weights": "average:2", "objective": "causal",
}  # fmt: skip


def run(folder: Path, kill_at: int | None) -> None:
    """Begins the run, or resumes it."""
    if kill_at is not None:
        kill_in_save(folder, kill_at)
    if (folder / "state" / "recipe.json").is_file():
        resume(folder, quiet=True)
    else:
        text = folder.parent / "text.txt"
        train(SETTINGS | {"text": str(text)}, out=folder)


def kill_in_save(folder: Path, kill_at: int, mark: Path | None = None) -> None:
    """Counts operations from the second save of this process on; `mark` is made at the kill."""
    start = BackgroundSave.start
    saves = 0

    def counted(background: BackgroundSave, save: Callable[[], None]) -> None:
        nonlocal saves
        saves += 1
        start(background, save if saves < 2 else lambda: killed(save))

    def killed(save: Callable[[], None]) -> None:
        with killed_at(kill_at, folder, mark):
            save()

    BackgroundSave.start = counted  # type: ignore[method-assign, assignment]


def fork(job: dict[str, Any]) -> tuple[int, float]:
    started = time.perf_counter()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, 1)
            if not os.environ.get("SHOW"):
                os.dup2(null, 2)
            run(Path(job["folder"]), job.get("kill_at"))
            status = 0
        finally:
            os._exit(status)
    if "kill_after" in job:
        time.sleep(job["kill_after"])
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status), time.perf_counter() - started


def main() -> None:
    torch.set_num_threads(1)
    for line in sys.stdin:
        print(json.dumps(fork(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
