"""Checkpoints: the old one or the new one, never something between."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch

from regard.system import disk
from regard.system.checkpoint import Checkpoints, Retention, Snapshots, damage
from regard.system.errors import CheckpointError, DiskError


def _save(checkpoints: Checkpoints, step: int) -> Path:
    return checkpoints.save(step, {"weights": {"w": torch.full((4,), float(step))}}, {"step": step})


def test_round_trip_keeps_the_last_ones(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, Retention(2))
    for step in (5, 10, 15):
        _save(checkpoints, step)
    assert [p.name for p in sorted(tmp_path.iterdir())] == ["step-000000010", "step-000000015"]
    saved = checkpoints.newest(print)
    assert saved is not None
    assert saved.step == saved.progress["step"] == 15
    assert saved.groups["weights"]["w"].tolist() == [15.0] * 4


@pytest.mark.parametrize("harm", ["flip", "truncate", "remove", "hashes"])
def test_a_damaged_one_is_passed_over_and_named(tmp_path: Path, harm: str) -> None:
    checkpoints = Checkpoints(tmp_path)
    _save(checkpoints, 5)
    newest = _save(checkpoints, 10)
    victim = newest / ("hashes.json" if harm == "hashes" else "weights.safetensors")
    content = bytearray(victim.read_bytes())
    if harm == "remove":
        victim.unlink()
    else:
        content[-3] ^= 1
        victim.write_bytes(content[:-2] if harm in ("truncate", "hashes") else content)
    assert damage(newest)
    said: list[str] = []
    saved = checkpoints.newest(said.append)
    assert saved is not None
    assert saved.step == 5
    assert "step-000000010" in said[0]
    assert "damaged" in said[0]


def test_none_intact_is_an_error(tmp_path: Path) -> None:
    (_save(Checkpoints(tmp_path), 5) / "weights.safetensors").unlink()
    with pytest.raises(CheckpointError, match="intact"):
        Checkpoints(tmp_path).newest(lambda _: None)
    assert Checkpoints(tmp_path / "nowhere").newest(print) is None


@pytest.mark.parametrize("moment", range(8))
def test_a_full_disk_leaves_the_old_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    """fsync is where a full disk shows at the latest: whichever call it is, the old checkpoint stays the newest."""
    checkpoints = Checkpoints(tmp_path)
    _save(checkpoints, 5)
    calls, padding_mask = iter(range(100)), os.fsync

    def full(handle: int) -> None:
        if next(calls) == moment:
            raise OSError(errno.ENOSPC, "No space left on device")
        padding_mask(handle)

    monkeypatch.setattr(os, "fsync", full)
    try:
        _save(checkpoints, 10)
    except DiskError as error:
        assert "full" in str(error)
        assert "free some space" in str(error)
    monkeypatch.undo()
    saved = checkpoints.newest(print)
    assert saved is not None
    assert saved.step in (5, 10)
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]


def test_a_full_disk_inside_safetensors(tmp_path: Path) -> None:
    """The real thing: a file that may not grow."""
    script = (
        "import resource, signal, torch, sys\n"
        "from pathlib import Path\n"
        "from regard.system.errors import DiskError\n"
        "from regard.system.checkpoint import Checkpoints\n"
        "c = Checkpoints(Path(sys.argv[1]))\n"
        "c.save(1, {'weights': {'w': torch.zeros(4)}}, {'step': 1})\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))\n"
        "try: c.save(2, {'weights': {'w': torch.zeros(100000)}}, {'step': 2})\n"
        "except DiskError as e: print('refused', c.newest(print).step)\n"
    )
    import subprocess
    import sys

    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True
    )
    assert done.stdout.strip() == "refused 1", done.stderr


def test_snapshots_average(tmp_path: Path) -> None:
    snapshots = Snapshots(tmp_path)
    for step in (1, 2, 3):
        snapshots.write(step, {"w": torch.full((2,), float(step))})
    assert snapshots.mean([1, 2, 3])["w"].tolist() == [2.0, 2.0]
    snapshots.delete_all_but({2})
    assert [p.name for p in tmp_path.iterdir()] == [snapshots.path(2).name]


def test_replacing_keeps_the_old_file_when_the_block_fails(tmp_path: Path) -> None:
    file = tmp_path / "f"
    disk.write_file(file, "old")
    with pytest.raises(ValueError, match="broken"), disk.atomic_file(file) as temporary:
        temporary.write_text("new")
        raise ValueError("broken")
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]
