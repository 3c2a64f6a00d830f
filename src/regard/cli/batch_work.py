"""Batch work: the inputs of a file through a model in windows, in their order, with progress.

Memory is that of one window. With --output, the job resumes after a crash where it stopped.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

import click

from regard.cli.texts_and_files import check_folder_exists, check_not_input
from regard.system.errors import SettingError

SECONDS_BETWEEN_LINES = 15.0  # of progress, where standard error is no terminal

output_option = click.option(
    "--output",
    type=click.Path(dir_okay=False),
    help="write to this file; after a crash, the same command resumes where it stopped",
)
column_option = click.option(
    "--text-column", help="text column of tables, or key in .jsonl  [text]"
)
INPUT_HELP = (
    "text files (.gz, .zst), .parquet, .arrow, a folder, a glob or a remote path (s3://…); "
    "separate several with commas"
)


def check_column(column: str | None, reads_files: bool) -> None:
    """Refuses --text-column where no file is read that could have one."""
    if column is not None and not reads_files:
        raise SettingError(
            "--text-column only applies to files", "leave it out, or give --input FILE"
        )


class BatchWork:
    """Windows of inputs: `answer(window, first_index)` gives the lines of output of each.

    `first_index` is the index of the window's first input. The output depends on `settings`.
    """

    def __init__(self, window: int, answer: Callable[[list[str], int], str]) -> None:
        self.window = window
        self.answer = answer

    def run_files(self, location: str, output: str | None, settings: Mapping[str, Any]) -> None:
        """Answers the lines of files, or of standard input ("-").

        `settings` has the `model` and, perhaps, the `text_column` of tables.
        """
        from regard.data.file_access import expand
        from regard.data.text_files import check_has_columns, count_lines, texts

        check_resumable(location, output)
        check_has_columns(expand(location), settings.get("text_column"))
        inputs = texts(location, settings.get("text_column"))
        if output is None:
            self.run(inputs, None, settings)
            return
        identity = {**input_identity(location), **model_identity(str(settings["model"]))}
        self.run(inputs, output, {**settings, **identity}, count_lines(location))

    def run(
        self,
        inputs: Iterator[str],
        output: str | None,
        settings: Mapping[str, Any],
        total: int | None = None,
    ) -> None:
        """Answers all inputs; a file is finished, standard output is flushed window by window."""
        if output is None:
            self._print(inputs, total)
            return
        from regard.data.resumable_output import ResumableOutput

        with ResumableOutput(output, settings) as file, Progress(total) as progress:
            if file.inputs_done:
                progress.say(f"{file.inputs_done:,} inputs already done: resuming after them")
            # What is done is read once more, and not computed.
            rest = islice(inputs, file.inputs_done, None)
            progress.done = file.inputs_done
            while window := list(islice(rest, self.window)):
                file.commit(self.answer(window, file.inputs_done), len(window))
                progress.update(file.inputs_done)

    def _print(self, inputs: Iterator[str], total: int | None) -> None:
        with Progress(total) as progress:
            done = 0
            while window := list(islice(inputs, self.window)):
                click.echo(self.answer(window, done), nl=False)
                # Whoever reads the pipe gets each window as soon as it is done.
                sys.stdout.flush()
                done += len(window)
                progress.update(done)


class Progress:
    """The progress of a job on standard error: a bar at a terminal, otherwise a line at times."""

    def __init__(self, total: int | None) -> None:
        self.done = 0
        self._total = total
        self._started = time.monotonic()
        self._first: int | None = None  # what was done before the first window of this process
        self._next_line = self._started + SECONDS_BETWEEN_LINES
        self._stack = ExitStack()
        self._bar: Any = None

    def __enter__(self) -> Progress:
        # A bar between lines that are printed to the same terminal could not be read.
        if sys.stderr.isatty() and not sys.stdout.isatty():
            self._start_bar()
        return self

    def _start_bar(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            TextColumn,
            TimeRemainingColumn,
        )
        from rich.progress import Progress as Bar

        self._bar = Bar(
            MofNCompleteColumn(),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            console=Console(file=sys.stderr),
        )
        self._stack.enter_context(self._bar)
        self._task = self._bar.add_task("inputs", total=self._total, rate="")

    def say(self, text: str) -> None:
        if self._bar is not None:
            self._bar.console.print(text)
        else:
            print(text, file=sys.stderr)

    def update(self, done: int) -> None:
        """`done` inputs have been answered, by this process and those before it."""
        before = self.done if self._first is None else self._first
        self._first = before
        self.done = done
        now = time.monotonic()
        rate = (done - before) / max(1e-9, now - self._started)
        if self._bar is not None:
            self._bar.update(self._task, completed=done, rate=f"{rate:,.0f}/s")
        elif now >= self._next_line:
            self._next_line = now + SECONDS_BETWEEN_LINES
            of = "" if self._total is None else f" of {self._total:,}"
            left = ""
            if self._total is not None and rate > 0:
                left = f", {max(0.0, (self._total - done) / rate / 60):,.1f} min left"
            self.say(f"{done:,}{of} inputs, {rate:,.1f} per second{left}")

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def check_resumable(location: str, output: str | None) -> None:
    """Refuses an output of what cannot be read again, and one that is its own input."""
    if output is None:
        return
    if location == "-":
        raise SettingError(
            "standard input cannot be read again, so its output cannot be resumed",
            "give the text as --input FILE, or leave out --output",
        )
    from regard.data.file_access import expand

    check_not_input("--output", output, expand(location))
    check_folder_exists("--output", output)


def input_identity(location: str) -> dict[str, Any]:
    """What says that a location still holds the same inputs: its files and their sizes."""
    from regard.data.file_access import expand, is_remote

    files = {}
    for file in expand(location):
        path = Path(file)
        files[file] = None if is_remote(file) or not path.is_file() else path.stat().st_size
    return {"input": files}


def model_identity(model: str) -> dict[str, Any]:
    """What says that a folder still holds the same model: sizes and times of its weights."""
    files = sorted(Path(model).glob("*.safetensors"))
    return {
        "weights": {file.name: [file.stat().st_size, file.stat().st_mtime_ns] for file in files}
    }
