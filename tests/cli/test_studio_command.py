"""regard studio: what is printed, and what is refused, before any page is served."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

import pytest

from forked_command import run_command

pytest.importorskip("starlette")


def regard(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run_command("studio", *arguments)


def test_mistakes_are_answered_in_two_lines(tmp_path: Path) -> None:
    missing = regard(str(tmp_path / "nothing"))
    assert missing.returncode == 2
    assert "there is no folder" in missing.stderr
    empty = regard(str(tmp_path))
    assert empty.returncode == 2
    assert "no model and no run found" in empty.stderr
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        busy = regard("--port", str(taken.getsockname()[1]))
    assert busy.returncode == 2
    assert "choose another --port" in busy.stderr
    assert all("Traceback" not in done.stderr for done in (missing, empty, busy))


def test_help_names_examples() -> None:
    done = regard("--help")
    assert done.returncode == 0
    assert "regard studio runs" in done.stdout
