"""Faults while a checkpoint is saved: the old one or the new one is found, never a wrong one."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from faults import crash_states, full_disk_at, intercepted, recorded, tree, write_tree
from regard.system import disk
from regard.system.checkpoint import BackgroundSave, Checkpoints, HostCopy, Retention, damage
from regard.system.errors import CheckpointError, DiskError

OLD, NEW = 10, 20


@pytest.fixture
def fast_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """fsync does nothing, where no loss of power is played: it takes most of the time."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


def groups(step: int) -> dict[str, dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(step)
    weights = {"w": torch.randn(40, 3, generator=generator), "b": torch.full((5,), float(step))}
    moments = {f"exp_avg/{name}": tensor * 2 for name, tensor in weights.items()}
    return {"weights": weights, "optimizer": moments}


def save(checkpoints: Checkpoints, step: int) -> None:
    checkpoints.save(step, groups(step), {"step": step, "score": 1 / step})


def is_right(checkpoints: Checkpoints, steps: tuple[int, ...] = (OLD, NEW)) -> int:
    """The step of the checkpoint that is found; its content must be that of this step."""
    saved = checkpoints.newest(lambda _: None)
    assert saved is not None, "neither the old nor the new one"
    assert saved.step in steps
    assert saved.progress["step"] == saved.step
    expected = groups(saved.step)
    assert saved.groups.keys() == expected.keys()
    for group, tensors in expected.items():
        assert saved.groups[group].keys() == tensors.keys()
        assert all(torch.equal(saved.groups[group][name], tensors[name]) for name in tensors)
    return saved.step


# --- a full disk ----------------------------------------------------------------------------------


def operations_of_a_save(folder: Path) -> int:
    checkpoints = Checkpoints(folder, Retention(1))
    save(checkpoints, OLD)
    seen: list[Any] = []
    with intercepted(seen.append, folder):
        save(checkpoints, NEW)
    return len(seen)


@pytest.mark.usefixtures("fast_disk")
def test_a_full_disk_at_every_operation(tmp_path: Path) -> None:
    count = operations_of_a_save(tmp_path / "count")
    assert count > 15
    for number in range(count):
        folder = tmp_path / str(number)
        checkpoints = Checkpoints(folder, Retention(1))
        save(checkpoints, OLD)
        refused = False
        with full_disk_at(number, folder) as operations:
            try:
                save(checkpoints, NEW)
            except DiskError as error:
                refused = True
                assert "full" in error.problem
        step = is_right(checkpoints)
        # An error says that nothing was written; only once it is committed may it be there.
        committed = any(o.kind == "rename" and o.target.endswith("20") for o in operations[:number])
        assert step == OLD or committed or not refused
        assert not list(folder.glob(".*.tmp"))
        # With space again, the run goes on.
        save(checkpoints, NEW)
        assert is_right(checkpoints) == NEW


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Files of this process may not grow beyond a size: the kernel's own refusal."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.usefixtures("fast_disk")
def test_a_full_disk_at_every_byte(tmp_path: Path) -> None:
    """120 limits on the size of a file, from nothing to more than the largest."""
    refusals = 0
    largest = 0
    for limit in range(0, 1200, 10):
        folder = tmp_path / str(limit)
        checkpoints = Checkpoints(folder)
        save(checkpoints, OLD)
        largest = max(p.stat().st_size for p in folder.rglob("*.*"))
        with file_size_limit(limit):
            try:
                save(checkpoints, NEW)
            except DiskError:
                refusals += 1
                assert is_right(checkpoints) == OLD
        is_right(checkpoints)
        assert not list(folder.glob(".*"))
        shutil.rmtree(folder)
    assert largest < 1200
    assert 50 < refusals < 120


@pytest.mark.slow
def test_a_full_file_system(tmp_path: Path) -> None:
    """A small tmpfs, filled up to each of 120 levels before the save."""
    mounted = tmp_path / "small"
    mounted.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=128k", "none", str(mounted)]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("mounting needs the right to do so")
    refusals = 0
    try:
        for pages in range(30):
            for inner in range(4):
                folder = mounted / f"{pages}-{inner}"
                checkpoints = Checkpoints(folder)
                save(checkpoints, OLD)
                free = shutil.disk_usage(mounted).free
                filler = mounted / "filler"
                filler.write_bytes(bytes(max(0, free - pages * 4096 - inner * 1024)))
                try:
                    save(checkpoints, NEW)
                except DiskError as error:
                    refusals += 1
                    assert "full" in error.problem
                    assert is_right(checkpoints) == OLD
                is_right(checkpoints)
                filler.unlink()
                shutil.rmtree(folder)
    finally:
        subprocess.run(["umount", str(mounted)], check=True)
    assert 10 < refusals < 120


# --- damage ---------------------------------------------------------------------------------------


def flip_bytes(folder: Path, count: int, seed: int) -> None:
    """One byte changed in each of so many checkpoints, in any file: the older one is found."""
    chance = random.Random(seed)
    checkpoints = Checkpoints(folder)
    save(checkpoints, OLD)
    save(checkpoints, NEW)
    files = sorted((folder / f"step-{NEW:09d}").iterdir())
    for _ in range(count):
        path = chance.choice(files)
        content = path.read_bytes()
        place = chance.randrange(len(content))
        changed = bytearray(content)
        changed[place] ^= chance.randrange(1, 256)
        path.write_bytes(changed)
        step = is_right(checkpoints)
        # The list of hashes may say the same with another space.
        assert step == OLD or path.name == "hashes.json"
        path.write_bytes(content)
    assert is_right(checkpoints) == NEW


@pytest.mark.usefixtures("fast_disk")
def test_a_changed_byte_is_seen(tmp_path: Path) -> None:
    flip_bytes(tmp_path, 100, seed=0)


@pytest.mark.slow
@pytest.mark.usefixtures("fast_disk")
def test_a_changed_byte_in_each_of_a_thousand_checkpoints(tmp_path: Path) -> None:
    flip_bytes(tmp_path, 1000, seed=1)


def test_files_that_nobody_hashed_are_damage(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, OLD)
    checkpoint = tmp_path / f"step-{OLD:09d}"
    (checkpoint / "carry.safetensors").write_bytes(b"")
    assert damage(checkpoint) == "carry.safetensors has no hash"
    (checkpoint / "carry.safetensors").unlink()
    for text in ("{}", "[]", "null", '{"x": 1}'):
        (checkpoint / "hashes.json").write_text(text)
        assert damage(checkpoint)
    with pytest.raises(CheckpointError):
        checkpoints.newest(lambda _: None)


# --- prefixes of the recorded operations ----------------------------------------------------------


@pytest.mark.usefixtures("fast_disk")
@pytest.mark.parametrize("keep", [1, 2])
@pytest.mark.parametrize("again", [False, True], ids=["new step", "same step"])
def test_every_prefix_of_a_save_leaves_a_checkpoint(tmp_path: Path, keep: int, again: bool) -> None:
    """After a kill or a loss of power at any point: the old one or the new one, and it is right."""
    original = tmp_path / "original"
    checkpoints = Checkpoints(original, Retention(keep))
    save(checkpoints, OLD)
    before = tree(original)
    step = OLD if again else NEW
    with recorded(original) as operations:
        save(checkpoints, step)
    assert sum(operation.kind == "fsync" for operation in operations) >= 6
    found: list[int] = []
    states = 0
    for end in range(len(operations) + 1):
        for number, state in enumerate(crash_states(original, before, operations[:end])):
            copy = tmp_path / "copy"
            write_tree(state, original, copy)
            found.append(is_right(Checkpoints(copy, Retention(keep))))
            states += 1
            if number == 0:  # and the run goes on from there
                disk.delete_unfinished(copy)
                save(Checkpoints(copy, Retention(keep)), NEW + 10)
                assert is_right(Checkpoints(copy, Retention(keep)), (NEW + 10,)) == NEW + 10
                assert not list(copy.glob(".*"))
            shutil.rmtree(copy)
    assert states > 2 * len(operations)
    assert found[0] == OLD
    assert found[-1] == step


# --- asynchronous saving --------------------------------------------------------------------------


def test_the_copy_does_not_change_with_the_state() -> None:
    state = {"weights": {"w": torch.arange(4.0), "t": torch.arange(6.0).view(2, 3).t()}}
    copy = HostCopy.of(state)
    for tensor in state["weights"].values():
        tensor.add_(1)
    assert copy.wait()["weights"]["w"].tolist() == [0, 1, 2, 3]
    assert copy.wait()["weights"]["t"].tolist() == [[0, 3], [1, 4], [2, 5]]


def test_one_save_at_a_time_and_in_order() -> None:
    order: list[str] = []

    def job(name: str) -> Callable[[], None]:
        def write() -> None:
            order.append(f"begin {name}")
            order.append(f"end {name}")

        return write

    with BackgroundSave() as background:
        for name in ("a", "b", "c"):
            background.start(job(name))
    assert order == [f"{word} {name}" for name in "abc" for word in ("begin", "end")]


def test_an_error_of_a_save_is_raised_by_the_next_call() -> None:
    def fail() -> None:
        raise DiskError("the disk is full", "free some space")

    for call in ("start", "wait", "end"):
        with pytest.raises(DiskError, match="full"), BackgroundSave() as background:
            background.start(fail)
            if call == "start":
                background.start(lambda: None)
            elif call == "wait":
                background.wait()
    # Another error is not hidden by it.
    with pytest.raises(KeyError), BackgroundSave() as background:
        background.start(fail)
        raise KeyError("another")


# --- retention ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (Retention(last=1), {900}),
        (Retention(last=3), {700, 800, 900}),
        (Retention(last=1, best=2), {300, 500, 900}),
        (Retention(last=1, best=1, greater_is_better=True), {100, 900}),
        (Retention(last=1, every=250), {100, 300, 500, 800, 900}),
        (Retention(last=1, reach=250), {600, 900}),
        (Retention(last=1, reach=5000), {100, 900}),
    ],
)
def test_which_checkpoints_stay(policy: Retention, expected: set[int]) -> None:
    scores: dict[int, float | None] = {step: 5 - step / 1000 for step in range(100, 1000, 100)}
    scores |= {300: 1.0, 500: 0.5, 600: None, 700: float("nan")}
    assert policy.retained(scores) == expected


@pytest.mark.usefixtures("fast_disk")
def test_the_policy_holds_in_whichever_order_runs_are_resumed(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, Retention(last=1, best=1, every=30, greater_is_better=True))
    for step in range(10, 100, 10):
        save(checkpoints, step)
        checkpoints = Checkpoints(tmp_path, checkpoints.retention)
    assert sorted(int(path.name[5:]) for path in tmp_path.iterdir()) == [10, 30, 60, 90]
    # After a roll-back to step 30, the later ones are of updates that were undone.
    save(checkpoints, 40)
    assert sorted(int(path.name[5:]) for path in tmp_path.iterdir()) == [10, 30, 40]
