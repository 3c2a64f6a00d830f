"""Batch work: the inputs of a file through a model in windows, in their order, with progress.

Memory is that of one window. With --output, the job resumes after a crash where it stopped.
"""

from __future__ import annotations

import io
import json
import os
import select
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import click

from regard.cli.shared_options import FILE, option, refuse_flags
from regard.cli.texts_and_files import check_output
from regard.system.errors import SettingError

PATIENCE = 0.05  # seconds after which what came through a pipe is answered without the rest
SECONDS_BETWEEN_LINES = 15.0  # of progress, where standard error is no terminal

output_option = option(
    "--output", "write to this file; after a crash, the same command resumes where it stopped", FILE
)
column_option = option("--text-column", "text column of tables, or key in .jsonl  [text]")
INPUT_HELP = (
    "text files (.gz, .zst), .parquet, .arrow, a folder, a glob or a remote path (s3://…); "
    "separate several with commas"
)


# Where no file is read that could have a column.
refuse_column = partial(
    refuse_flags, ("text_column",), "only applies to files", "leave it out, or give --input FILE"
)


def check_input(argument: str, path: str | None) -> None:
    """Refuses an argument beside --input, and --output without it."""
    if path is not None:
        refuse_flags((argument,), "cannot be combined with --input", "give one of them")
    else:
        refuse_flags(("output",), "needs --input", "give the texts as --input FILE")


class BatchWork:
    """Windows of inputs: `answer(window, first_index)` gives the lines of output of each.

    `first_index` is the index of the window's first input. The output depends on `settings`.
    """

    def __init__(self, window: int, answer: Callable[[list[str], int], str]) -> None:
        self.window = window
        self.answer = answer

    def run_files(self) -> None:
        """Answers the lines of the files that --input names, or of standard input ("-").

        The output depends on all that the command was given.
        """
        from regard.data.file_access import expand
        from regard.data.text_files import check_has_columns, count_lines, texts

        context = click.get_current_context()
        # As they are read back: tuples become lists.
        settings = json.loads(json.dumps({"command": context.info_name, **context.params}))
        location = settings.pop("path")
        output = settings.pop("output")
        files = expand(location)
        check_has_columns(files, settings["text_column"])
        inputs = texts(location, settings["text_column"])
        if output is None:
            self.run(inputs, None, {})
            return
        _check_resumable(files, output)
        weights = sorted(map(str, Path(settings["model"]).glob("*.safetensors")))
        identity = {"input": _versions(files), "weights": _versions(weights)}
        self.run(inputs, output, settings | identity, count_lines(location))

    def run(
        self,
        inputs: Iterator[str],
        output: str | None,
        settings: Mapping[str, Any],
        total: int | None = None,
    ) -> None:
        """Answers all inputs; a file is finished, standard output is flushed window by window."""
        if output is None:
            self._print(inputs)
            return
        from regard.data.resumable_output import ResumableOutput

        with (
            ResumableOutput(output, settings) as file,
            Progress(total, file.inputs_done) as progress,
        ):
            # What is done is read once more, and not computed.
            rest = islice(inputs, file.inputs_done, None)
            while window := list(islice(rest, self.window)):
                file.commit(self.answer(window, file.inputs_done), len(window))
                progress.update(file.inputs_done)

    def _print(self, inputs: Iterator[str]) -> None:
        pipe = _Pipe.of_standard_input()
        done = 0
        with Progress(None) as progress:
            while window := self._next_window(inputs, pipe, done):
                click.echo(self.answer(window, done), nl=False)
                # Whoever reads the pipe gets each window as soon as it is done.
                sys.stdout.flush()
                done += len(window)
                progress.update(done)

    def _next_window(self, inputs: Iterator[str], pipe: _Pipe | None, done: int) -> list[str]:
        """The next inputs; of a pipe, those that have come, since its writer may wait for us."""
        window: list[str] = []
        while len(window) < self.window and (line := next(inputs, None)) is not None:
            window.append(line)
            if pipe is not None and pipe.is_waiting(done + len(window)):
                break
        return window


class _Pipe(io.RawIOBase):
    """Standard input that counts the lines that have come through it."""

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self.lines = 0

    @classmethod
    def of_standard_input(cls) -> _Pipe | None:
        """Takes the place of `sys.stdin` if that is a pipe."""
        with suppress(OSError):  # in a test it has no number
            handle = sys.stdin.fileno()
            if stat.S_ISFIFO(os.fstat(handle).st_mode):
                pipe = cls(handle)
                sys.stdin = io.TextIOWrapper(io.BufferedReader(pipe))
                return pipe
        return None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = os.read(self.handle, len(buffer))
        self.lines += data.count(b"\n")
        buffer[: len(data)] = data
        return len(data)

    def is_waiting(self, lines: int) -> bool:
        """Whether all lines that have come are read, and no more follow for now."""
        return lines >= self.lines and not select.select([self.handle], [], [], PATIENCE)[0]


class Progress:
    """The progress of a job on standard error: a bar at a terminal, otherwise a line at times."""

    def __init__(self, total: int | None, done: int = 0) -> None:
        if done:
            print(f"{done:,} inputs already done: resuming after them", file=sys.stderr)
        self._total = total
        self._first = done  # before this process
        self._started = time.monotonic()
        self._next_line = self._started + SECONDS_BETWEEN_LINES
        self._bar: Any = None

    def __enter__(self) -> Progress:
        # A bar between lines that are printed to the same terminal could not be read.
        if sys.stderr.isatty() and not sys.stdout.isatty():
            from rich import progress
            from rich.console import Console

            self._bar = progress.Progress(
                progress.MofNCompleteColumn(),
                progress.BarColumn(bar_width=None),
                progress.TextColumn("{task.fields[rate]}"),
                progress.TimeRemainingColumn(),
                console=Console(file=sys.stderr),
            )
            self._task = self._bar.add_task("inputs", total=self._total, rate="")
            self._bar.start()
        return self

    def update(self, done: int) -> None:
        """`done` inputs have been answered, by this process and those before it."""
        now = time.monotonic()
        rate = (done - self._first) / max(1e-9, now - self._started)
        if self._bar is not None:
            self._bar.update(self._task, completed=done, rate=f"{rate:,.0f}/s")
        elif now >= self._next_line:
            self._next_line = now + SECONDS_BETWEEN_LINES
            text = f"{done:,} inputs, {rate:,.1f} per second"
            if self._total is not None:
                minutes = max(0.0, (self._total - done) / max(rate, 1e-9) / 60)
                text = f"{done:,} of {self._total:,} inputs, {rate:,.1f} per second"
                text += f", {minutes:,.1f} min left"
            print(text, file=sys.stderr)

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()


def _check_resumable(files: list[str], output: str) -> None:
    """Refuses an output of what cannot be read again, and one that is its own input."""
    for file in files:
        path = Path(file)
        if file == "-" or (path.exists() and not path.is_file() and not path.is_dir()):
            name = "standard input" if file == "-" else file
            raise SettingError(
                f"{name} cannot be read again, so its output cannot be resumed",
                "give the text as --input FILE, or leave out --output",
            )
    check_output("--output", output, files)


def _versions(files: list[str]) -> dict[str, list[int]]:
    """What says that files are still the same: their sizes and times; nothing of remote ones."""
    stats = {name: os.stat(name) for name in files if os.path.isfile(name)}
    return {name: [of_file.st_size, of_file.st_mtime_ns] for name, of_file in stats.items()}
