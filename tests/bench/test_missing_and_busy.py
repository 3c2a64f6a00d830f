"""A benchmark without its peer, and one on a busy machine."""

from __future__ import annotations

import importlib.util
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from command_line import Command
from regard.lab.bench import machine_load


def test_a_missing_peer_is_one_error(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec

    def without_peers(name: str, package: str | None = None) -> ModuleSpec | None:
        missing = name in ("ctranslate2", "transformers")
        return None if missing else find(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", without_peers)
    flags = ["--model", "tiny", "--rounds", "1"]
    done = command("bench", "decode", *flags, "--against", "ctranslate2")
    done.refused("pip install ctranslate2")
    command("bench", "forward", "--against", "transformers").refused("pip install transformers")


def test_a_busy_machine_is_noticed_and_said(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(machine_load, "busy_cores", lambda: 1.7)
    monkeypatch.setattr(machine_load.os, "cpu_count", lambda: 2)  # type: ignore[attr-defined]
    page = tmp_path / "results.md"
    flags = ["--model", "tiny", "--rounds", "1", "--batches", "1", "--batch-tokens", "64"]
    done = command("bench", "train", *flags, "--device", "cpu", "--results", page)
    assert done.code == 0, done.err
    assert "this machine is busy: other processes used 1.7 of 2 cores" in done.err
    # Figures outlive the messages of their run.
    assert "other processes used 1.7 of 2 cores" in done.out
    assert "other processes used 1.7 of 2 cores" in page.read_text()


def test_load_is_a_share_of_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = iter([[100, 0, 0, 100, 0, 0, 0, 0], [175, 0, 0, 125, 0, 0, 0, 0]])
    monkeypatch.setattr(machine_load, "_cpu_times", lambda: next(samples))
    monkeypatch.setattr(machine_load.os, "cpu_count", lambda: 4)  # type: ignore[attr-defined]
    assert machine_load.busy_cores(0.0) == pytest.approx(3.0)
    monkeypatch.setattr(machine_load, "busy_cores", lambda: 0.1)
    assert machine_load.load_note() is None
