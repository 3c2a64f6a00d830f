"""The end of a process: fast, and yet nothing is lost that was to be done at its end."""

from __future__ import annotations

import os
import subprocess
import sys

AT_EXIT = """
import atexit, sys
atexit.register(print, "at exit")
sys.argv = ["regard", {argument!r}]
from regard.cli import run
run()
"""

THREAD = """
import sys, threading, time
from regard.cli import run  # first: on a busy machine it takes longer than the thread sleeps
def write():
    time.sleep(0.5)
    print("written")
threading.Thread(target=write).start()
sys.argv = ["regard", "--version"]
run()
"""


def _run(code: str) -> subprocess.CompletedProcess[str]:
    # Buffered, as it is by default: what is not flushed would be lost.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


def test_handlers_of_the_exit_run_and_what_they_print_arrives() -> None:
    done = _run(AT_EXIT.format(argument="--version"))
    assert done.returncode == 0
    assert done.stdout.startswith("regard")
    assert done.stdout.endswith("at exit\n")


def test_an_error_has_its_status_and_its_message() -> None:
    done = _run(AT_EXIT.format(argument="nosuch"))
    assert done.returncode == 2
    assert "there is no command 'nosuch'" in done.stderr
    assert done.stdout == "at exit\n"


def test_a_thread_that_is_still_writing_is_waited_for() -> None:
    done = _run(THREAD)
    assert done.returncode == 0
    assert done.stdout.endswith("written\n")
