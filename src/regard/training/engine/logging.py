"""What a run says: metrics.jsonl for programs, a progress bar for people, TensorBoard if asked."""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class MetricsLog:
    """metrics.jsonl: one object a line, appended and flushed; a resumed run cuts it back to where its checkpoint was."""

    def __init__(self, path: Path, tensorboard: Path | None = None) -> None:
        self.path = path
        self.file = path.open("ab")
        self.board = _board(tensorboard) if tensorboard else None

    def write(self, record: dict[str, Any]) -> None:
        # JSON has no infinities; a number that is not finite is written as its name rather than as invalid JSON.
        safe = {key: _plain(value) for key, value in record.items()}
        self.file.write(json.dumps(safe, ensure_ascii=False).encode() + b"\n")
        self.file.flush()
        if self.board is not None:
            for key, value in record.items():
                if isinstance(value, (int, float)) and key not in ("step", "epoch"):
                    self.board.add_scalar(key, value, record["step"])

    def position(self) -> int:
        os.fsync(self.file.fileno())
        return self.file.tell()

    def cut(self, position: int) -> None:
        self.file.truncate(position)
        self.file.seek(position)

    def close(self) -> None:
        self.file.close()
        if self.board is not None:
            self.board.close()


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _board(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        from regard.errors import SettingError

        raise SettingError(
            "tensorboard = true needs the package tensorboard", "pip install tensorboard"
        ) from None
    return SummaryWriter(folder)  # type: ignore[no-untyped-call]


class ProgressLog:
    """Everything meant for people, on standard error: a bar on a terminal, a line now and then elsewhere."""

    def __init__(self, steps: int, quiet: bool = False) -> None:
        self.console = Console(file=sys.stderr, highlight=False, soft_wrap=True)
        self.quiet = quiet
        self.live = self.console.is_terminal and not quiet
        self.steps = steps
        self.bar = Progress(
            TextColumn("step"),
            MofNCompleteColumn(),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[note]}"),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self.console,
            disable=not self.live,
        )
        self.task = self.bar.add_task("train", total=steps, note="")
        self._next_line = 0.0

    def start(self, done: int) -> None:
        self.bar.update(self.task, completed=done)
        self.bar.start()

    def say(self, text: str) -> None:
        if not self.quiet:
            self.bar.console.print(text, markup=False)

    def step(
        self, step: int, loss: float, rate: float, unit: str, elapsed: float, left: float
    ) -> None:
        note = f"loss {loss:.3f}  {rate:,.0f} {unit}/s"
        self.bar.update(self.task, completed=step, note=note)
        if not self.live and elapsed >= self._next_line:
            self._next_line = elapsed + 15.0
            self.say(f"step {step}/{self.steps}  {note}  left {_clock(left)}")

    def stop(self) -> None:
        self.bar.stop()


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
