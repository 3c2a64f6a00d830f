"""The progress bar of a run: live on a terminal and in a notebook, lines elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from html import escape
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

SECONDS_BETWEEN_LINES = 15.0
SECONDS_BETWEEN_DISPLAYS = 0.25  # in a notebook, which keeps every message it is sent


class ProgressBar:
    """Everything meant for people goes to standard error; standard output carries data only."""

    def __init__(self, steps: int, quiet: bool = False) -> None:
        self.console = Console(file=sys.stderr, highlight=False, soft_wrap=True)
        self.quiet = quiet
        self.notebook = None if quiet else notebook_bar()
        self.live = self.console.is_terminal and not quiet and self.notebook is None
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

    @contextlib.contextmanager
    def shown(self, step: int) -> Iterator[None]:
        """The bar, from this step on, for the duration of the block."""
        self.bar.update(self.task, completed=step)
        self.bar.start()
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                self.bar.stop()
            if self.notebook is not None:
                self.notebook.stop()

    def say(self, text: str) -> None:
        if self.notebook is not None:
            print(text)  # beside the bar; a notebook colours standard error as if it were a failure
            return
        if self.quiet:
            return
        # A terminal that was closed cannot be written to; the run is saved all the same.
        with contextlib.suppress(OSError):
            self.bar.console.print(text, markup=False)

    def update(self, step: int, note: str, elapsed: float, remaining: float) -> None:
        """`elapsed` and `remaining` are seconds of training."""
        with contextlib.suppress(OSError):
            self.bar.update(self.task, completed=step, note=note)
        if self.notebook is not None:
            self.notebook.update(step, self.steps, f"{note}  left {duration(remaining)}")
        elif not self.live and elapsed >= self._next_line:
            self._next_line = elapsed + SECONDS_BETWEEN_LINES
            self.say(f"step {step}/{self.steps}  {note}  left {duration(remaining)}")


# ------------------------------------------------------------------ notebooks


class NotebookBar:
    """An HTML progress bar that is redrawn in the output of its cell."""

    def __init__(self, display: Any, html: Any) -> None:
        self._display = display  # IPython's functions, which are not imported without a notebook
        self._html = html
        self._handle: Any = None
        self._next = 0.0  # when it may be drawn again
        self._content = ""

    def update(self, step: int, steps: int, note: str) -> None:
        self._content = (
            f'<progress value="{step}" max="{steps}" style="width:50%"></progress> '
            f"<code>step {step:,}/{steps:,}  {escape(note)}</code>"
        )
        if time.monotonic() >= self._next:
            self._draw()

    def stop(self) -> None:
        """Shows the last step, which may have come too soon after the one before it."""
        if self._content:
            self._draw()

    def _draw(self) -> None:
        self._next = time.monotonic() + SECONDS_BETWEEN_DISPLAYS
        content = self._html(self._content)
        if self._handle is None:
            self._handle = self._display(content, display_id=True)
        else:
            self._handle.update(content)


def notebook_bar() -> NotebookBar | None:
    """A bar for the notebook that this process is the kernel of, if it is one."""
    # Where there is a kernel, IPython has been imported.
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    # A terminal has another class of shell, and rich's bar.
    if type(shell).__name__ != "ZMQInteractiveShell":
        return None
    from IPython.display import HTML, display

    return NotebookBar(display, HTML)


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
