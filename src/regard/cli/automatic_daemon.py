"""The daemon that a command at a terminal leaves behind, for those that follow it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import IO

from regard.cache_folder import cache_folder
from regard.cli import fork_server
from regard.errors import SettingError

SWITCH = "REGARD_DAEMON"  # an environment variable: "off" for never
IDLE_MINUTES = 15.0  # without a command; one that was started by name stays longer
MARKER = "daemon_mentioned"  # in the cache folder: a user is told once
QUICK = 0.5  # seconds that nobody minds
LONG = 10.0  # seconds of which the import is no longer the most
NOTE = (
    "note: PyTorch stays loaded in the background for 15 minutes so that the next commands start "
    f"instantly (stop it: `regard daemon stop`; disable: {SWITCH}=off; shown only once)"
)


def launch(minutes: float, messages: IO[bytes] | None = None) -> subprocess.Popen[bytes]:
    """Starts a server in a session of its own, so that it outlives the terminal.

    `messages`: the file for what it has to say; None for one that nobody has asked for.
    """
    fork_server.prepare_folder()
    command = [sys.executable, "-m", "regard", "daemon", "run", "--minutes", str(minutes)]
    if messages is None:
        command.append("--automatic")
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=messages or subprocess.DEVNULL,
        start_new_session=True,
    )


def launch_for_next_command(started: float) -> None:
    """After a command that waited for the import of PyTorch since `started`: the next need not.

    At a terminal alone, where a person waits: scripts, services and tests get no process that
    stays. Whoever has started a daemon, or wants none, keeps what they have.
    """
    seconds = time.monotonic() - started
    is_worth_it = QUICK < seconds < LONG and sys.platform.startswith("linux")
    if not is_worth_it or not sys.stderr.isatty() or os.environ.get(SWITCH) == "off":
        return
    if fork_server.ask("status") is not None:
        return
    try:
        launch(IDLE_MINUTES)
    # No more processes, or no folder for the socket: the next command takes as long as this one.
    except (OSError, SettingError):
        return
    _mention_once()


def _mention_once() -> None:
    marker = cache_folder() / MARKER
    try:
        marker.parent.mkdir(parents=True, exist_ok=True)
        marker.touch(exist_ok=False)
    except OSError:  # it was said; or it cannot be kept that it was
        return
    print(NOTE, file=sys.stderr)
