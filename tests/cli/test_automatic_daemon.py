"""At a terminal the first command leaves PyTorch imported for the next; nowhere else does one."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import regard
from command_line import SHOWS_TORCH
from regard.cli import automatic_daemon, fork_server

DEMO = Path(regard.__file__).parent / "studio/demo"
SENTENCE = "The dog sees a cat."
ANSWER = "Der Hund sieht eine Katze."
pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="the daemon requires Linux"
)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A user who has never called a command."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(automatic_daemon.SWITCH)  # set for all tests by conftest.py
    yield tmp_path
    fork_server.ask("stop")


def at_a_terminal(*arguments: str) -> str:
    """What a command prints where standard input, output and error are a terminal."""
    keyboard, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", SHOWS_TORCH, *arguments],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
    )
    os.close(terminal)
    printed = b""
    with contextlib.suppress(OSError):  # the other end was closed
        while part := os.read(keyboard, 4096):
            printed += part
    os.close(keyboard)
    assert process.wait() == 0, printed
    return printed.decode().replace("\r\n", "\n")


def wait_for_server() -> dict[str, object]:
    for _ in range(600):
        status = fork_server.ask("status")
        if status is not None:
            return status
        time.sleep(0.1)
    raise AssertionError("no daemon was started")


def test_the_next_sentence_does_not_import_torch(home: Path) -> None:
    first = at_a_terminal("translate", str(DEMO), SENTENCE)
    assert first == f"{ANSWER}\n{automatic_daemon.NOTE}\nTrue\n"
    assert wait_for_server()["automatic"]
    # Told once; the answer is the same.
    assert at_a_terminal("translate", str(DEMO), SENTENCE) == f"{ANSWER}\nFalse\n"


def test_one_by_name_takes_the_place_of_an_automatic_one(home: Path) -> None:
    automatic_daemon.launch(automatic_daemon.IDLE_MINUTES)
    first = wait_for_server()
    command = [sys.executable, "-m", "regard", "daemon", "start", "--minutes", "5"]
    subprocess.run(command, check=True, capture_output=True)
    second = wait_for_server()
    assert second["process"] != first["process"]
    assert not second["automatic"]
    assert second["idle"] == 300


def test_two_at_once_are_one(home: Path) -> None:
    """Both are started before either listens: one ends, and does not take the socket with it."""
    started = [automatic_daemon.launch(1.0), automatic_daemon.launch(1.0)]
    status = wait_for_server()
    (other,) = [process for process in started if process.pid != status["process"]]
    assert other.wait(timeout=60) == 0
    assert wait_for_server()["process"] == status["process"]


def test_other_settings_are_no_matter_for_words(home: Path) -> None:
    automatic_daemon.launch(1.0)
    wait_for_server()
    threads = str(1 + int(os.environ.get("OMP_NUM_THREADS", "1")))
    command = [sys.executable, "-m", "regard", "translate", str(DEMO), SENTENCE]
    environment = {**os.environ, "OMP_NUM_THREADS": threads}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (done.stdout, done.stderr) == (f"{ANSWER}\n", "")


@pytest.mark.parametrize(
    ("is_terminal", "switch", "seconds", "is_launched"),
    [
        (True, "", 1.2, True),
        (False, "", 1.2, False),  # a script, a service, a test
        (True, "off", 1.2, False),
        (True, "", 0.1, False),  # it was quick
        (True, "", 60.0, False),  # the import was the least of it
    ],
)
def test_where_a_daemon_is_left(
    is_terminal: bool,
    switch: str,
    seconds: float,
    is_launched: bool,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    launched: list[float] = []
    monkeypatch.setenv(automatic_daemon.SWITCH, switch)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal, raising=False)
    monkeypatch.setattr(automatic_daemon, "launch", launched.append)
    automatic_daemon.launch_for_next_command(time.monotonic() - seconds)
    assert launched == [automatic_daemon.IDLE_MINUTES] * is_launched
    assert (automatic_daemon.NOTE in capsys.readouterr().err) is is_launched


def test_a_folder_of_others_gets_no_socket(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = fork_server.socket_path().parent
    folder.mkdir()
    folder.chmod(0o777)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    automatic_daemon.launch_for_next_command(time.monotonic() - 1.2)
    assert capsys.readouterr().err == ""
