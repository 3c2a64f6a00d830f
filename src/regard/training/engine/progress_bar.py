"""The progress bar of a run: a live bar on a terminal, a line every 15 seconds elsewhere."""

from __future__ import annotations

import contextlib
import sys

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

SECONDS_BETWEEN_LINES = 15.0


class ProgressBar:
    """Everything meant for people goes to standard error; standard output carries data only."""

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
        self._next_line = 0.0  # seconds of training at which the next line is due

    def set_steps(self, steps: int) -> None:
        """For a run whose steps are counted once its data is prepared."""
        self.steps = steps
        self.bar.update(self.task, total=steps)

    def start(self, step: int) -> None:
        self.bar.update(self.task, completed=step)
        self.bar.start()

    def say(self, text: str) -> None:
        if self.quiet:
            return
        # A terminal that was closed cannot be written to; the run is saved all the same.
        with contextlib.suppress(OSError):
            self.bar.console.print(text, markup=False)

    def update(self, step: int, note: str, elapsed: float, remaining: float) -> None:
        """`elapsed` and `remaining` are seconds of training."""
        with contextlib.suppress(OSError):
            self.bar.update(self.task, completed=step, note=note)
        if not self.live and elapsed >= self._next_line:
            self._next_line = elapsed + SECONDS_BETWEEN_LINES
            self.say(f"step {step}/{self.steps}  {note}  left {duration(remaining)}")

    def stop(self) -> None:
        with contextlib.suppress(OSError):
            self.bar.stop()


def duration(seconds: float) -> str:
    """A time as one says it: 45 s, 10 min 49 s, 5 h 59 min, 3 d 4 h."""
    minutes, rest = divmod(round(seconds), 60)
    if minutes == 0:
        return f"{rest} s"
    hours, minutes = divmod(minutes, 60)
    if hours == 0:
        return f"{minutes} min {rest:02d} s"
    days, hours = divmod(hours, 24)
    if days == 0:
        return f"{hours} h {minutes:02d} min"
    return f"{days} d {hours} h"
