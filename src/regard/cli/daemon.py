"""regard daemon"""

from __future__ import annotations

import sys
import tempfile
import time
from typing import Any

import click

from regard.cli import automatic_daemon, fork_server
from regard.cli.number_types import MINUTES
from regard.errors import SettingError

SECONDS_TO_START = 120.0  # on a machine that is busy, from a disk that is slow

EXAMPLES = """\b
Examples:
  regard daemon start                   commands in the next hour skip importing PyTorch
  regard daemon start --minutes 480
  regard daemon status
  regard daemon stop
"""


@click.command(epilog=EXAMPLES, context_settings={"max_content_width": 110})
@click.argument("action", type=click.Choice(["start", "stop", "status", "run"]))
@click.option(
    "--minutes",
    type=MINUTES,
    default=60.0,
    show_default=True,
    help="stop after this long without a command",
)
@click.option("--automatic", is_flag=True, hidden=True)
def command(action: str, minutes: float, automatic: bool) -> None:
    """Keep a background process with PyTorch already imported.

    Inference commands (translate, generate, predict, classify, embed, evaluate, look) then run in a
    fork of it, in a fraction of the time. Nothing else changes: same output, exit codes and
    signals. It accepts only this user, on a socket in XDG_RUNTIME_DIR (or /tmp), and stops when
    files of the package change. At a terminal, the first such command starts one automatically for
    15 minutes; set REGARD_DAEMON=off to disable this. ACTION is start, stop or status; run stays
    in the foreground.
    """
    if not sys.platform.startswith("linux"):
        raise SettingError("the daemon requires Linux", "not needed: all commands work without it")
    match action:
        case "start":
            _start(minutes)
        case "stop":
            print(f"stopped: process {_ask('stop')['process']}")
            if sys.stderr.isatty():
                note = f"the next command starts a new one, unless {automatic_daemon.SWITCH}=off"
                print(note, file=sys.stderr)
        case "status":
            status = _ask("status")
            since = time.strftime("%H:%M", time.localtime(status["started"]))
            idle = f"{status['idle'] / 60:g} minutes"
            print(f"process {status['process']} since {since}; stops {idle} after its last command")
        case _:
            from regard.cli import run_here

            fork_server.prepare_folder()
            fork_server.ForkServer(run_here, 60 * minutes, automatic).serve()


def _ask(question: str) -> dict[str, Any]:
    reply = fork_server.ask(question)
    if reply is None:
        raise SettingError("no daemon is running", "start one: regard daemon start")
    return reply


def _start(minutes: float) -> None:
    running = fork_server.ask("status")
    if running is not None and not running["automatic"]:
        raise SettingError(
            f"a daemon is already running (process {running['process']})",
            "stop it: regard daemon stop",
        )
    if running is not None:
        fork_server.ask("stop")
    with tempfile.TemporaryFile() as messages:
        process = automatic_daemon.launch(minutes, messages)
        deadline = time.monotonic() + SECONDS_TO_START
        while not _is_served_by(process.pid):
            if process.poll() is not None or time.monotonic() > deadline:
                process.kill()
                messages.seek(0)
                raise SettingError(
                    f"the daemon did not start: {messages.read().decode()[-500:]}",
                    "try `regard daemon run`, which stays in the foreground",
                )
            time.sleep(0.05)
    print(f"started: process {process.pid}; `regard daemon stop` stops it", file=sys.stderr)


def _is_served_by(process: int) -> bool:
    status = fork_server.ask("status")
    return status is not None and status["process"] == process
