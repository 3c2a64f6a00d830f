"""The command line in a fork of this process: all that a process of its own has, without its start.

Importing torch takes a second, and a fork has it already. What counts for a command is its own:
file descriptors, folder, environment, exit code.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import traceback
import warnings
from pathlib import Path
from typing import NoReturn

import torch

from regard import cli


def run_command(
    *arguments: str,
    cwd: Path | None = None,
    text: str | bytes = b"",
    environment: dict[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """`regard` with these arguments, as `subprocess.run` would have run it."""
    command = [sys.executable, "-m", "regard", *arguments]
    data = text.encode() if isinstance(text, str) else text
    # libgomp's threads do not survive a fork; torch starts none where it has one thread.
    if torch.get_num_threads() > 1:
        everything = {**os.environ, **(environment or {})}
        done = subprocess.run(command, cwd=cwd, input=data, capture_output=True, env=everything)
        return subprocess.CompletedProcess(
            command, done.returncode, done.stdout.decode(), done.stderr.decode()
        )
    with (
        tempfile.TemporaryFile() as stdin,
        tempfile.TemporaryFile() as stdout,
        tempfile.TemporaryFile() as stderr,
    ):
        stdin.write(data)
        stdin.seek(0)
        child = os.fork()
        if not child:
            for number, file in enumerate((stdin, stdout, stderr)):
                os.dup2(file.fileno(), number)
            _become(list(arguments), cwd, environment or {})
        _, status = os.waitpid(child, 0)
        outputs = []
        for file in (stdout, stderr):
            file.seek(0)
            outputs.append(file.read().decode())
    return subprocess.CompletedProcess(command, os.waitstatus_to_exitcode(status), *outputs)


def _become(arguments: list[str], cwd: Path | None, environment: dict[str, str]) -> NoReturn:
    """The command, in the forked process, which never returns to pytest."""
    try:
        # pytest has put its own in the place of these.
        sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False)
        warnings.resetwarnings()
        if cwd is not None:
            os.chdir(cwd)
        os.environ.update(environment)
        sys.argv = ["regard", *arguments]
        cli.main()
    except SystemExit as end:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(end.code if isinstance(end.code, int) else 0)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(70)
