"""The word about `regard daemon`: at a terminal, once, and only where one has waited."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from regard.cli.daemon_hint import HINT, mention_daemon


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)


@pytest.mark.usefixtures("terminal")
def test_it_is_said_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    for _ in range(3):
        mention_daemon(time.monotonic() - 1.2)
    assert capsys.readouterr().err.count(HINT) == 1


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize("seconds", [0.1, 60.0])
def test_a_quick_or_a_long_command_has_no_use_for_it(
    seconds: float, capsys: pytest.CaptureFixture[str]
) -> None:
    mention_daemon(time.monotonic() - seconds)
    assert HINT not in capsys.readouterr().err


def test_a_script_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path))
    mention_daemon(time.monotonic() - 1.2)
    assert HINT not in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("terminal")
def test_without_a_cache_nothing_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("REGARD_CACHE", str(file))
    mention_daemon(time.monotonic() - 1.2)
    assert HINT not in capsys.readouterr().err
