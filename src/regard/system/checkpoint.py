"""Checkpoints: training state on disk, complete, hashed and committed by a rename.

A run resumes from the newest intact one.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import shutil
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from regard.system import disk
from regard.system.checkpoint_shards import merge
from regard.system.errors import CheckpointError

Tensors = dict[str, Tensor]

SHARD_TIMEOUT = 600  # seconds until another rank is taken for lost
_HASHES = "hashes.json"
_PROGRESS = "progress.json"
# A checkpoint that one of the same step is about to replace: read until that one is committed.
_REPLACED = ".replaced"
_NAME = re.compile(r"step-(\d{9,})(\.replaced)?")


@dataclass(frozen=True)
class Saved:
    """One checkpoint: named groups of tensors, and the progress of the run as plain data."""

    step: int
    groups: dict[str, Tensors]  # group (a file's stem) → its tensors by name
    progress: dict[str, Any]


# --- retention ---


@dataclass(frozen=True)
class Retention:
    """Retention policy: which checkpoints stay when a new one is committed.

    The `last` ones; the `best` ones by validation score; the first one of every `every` steps; and,
    for a roll-back, the newest that is at least `reach` steps old.
    """

    last: int = 2
    best: int = 0
    every: int = 0  # steps; 0 keeps none for that reason
    greater_is_better: bool = False  # of the score
    reach: int = 0

    def retained(self, scores: Mapping[int, float | None]) -> set[int]:
        """The steps that stay, of the steps on disk and their scores."""
        steps = sorted(scores)
        retained = set(steps[-self.last :])
        if self.best:
            finite = {step: s for step, s in scores.items() if s is not None and math.isfinite(s)}
            # Among equals the earliest: those after it have the score of the same validation.
            ranked = sorted(sorted(finite), key=finite.__getitem__, reverse=self.greater_is_better)
            retained.update(ranked[: self.best])
        if self.every:
            # Of 0, 500, 1000, … with 800: 0, 1000 (the first at or after 800), 2000 (after 1600).
            periods = {step // self.every: step for step in reversed(steps)}
            retained |= set(periods.values())
        if self.reach and steps:
            # The oldest one where none is old enough yet.
            old = [step for step in steps if step <= steps[-1] - self.reach]
            retained.add(old[-1] if old else steps[0])
        return retained


# --- checkpoints ---


class Checkpoints:
    """`state/checkpoints/step-N` folders, of which those that the retention policy names stay.

    A folder holds GROUP.safetensors, progress.json, and hashes.json with the SHA-256 of the others.
    """

    def __init__(self, folder: Path, retention: Retention | None = None) -> None:
        self.folder = folder
        self.retention = retention or Retention()
        self.ranks_lost = threading.Event()  # set: the files of other ranks will not come

    def save(
        self,
        step: int,
        groups: Mapping[str, Tensors],
        progress: Mapping[str, Any],
        shards: Sequence[str] = (),
    ) -> Path:
        """Commits a checkpoint; `shards` are groups of it that other ranks write."""
        checkpoint = self.folder / f"step-{step:09d}"
        with disk.atomic_folder(checkpoint) as temporary:
            for name, tensors in groups.items():
                disk.write_tensors(temporary / f"{name}.safetensors", tensors)
            self._take_shards(step, shards, temporary)
            (temporary / _PROGRESS).write_text(json.dumps(progress))
            # Last, when all other files are written.
            hashes = {path.name: disk.sha256(path) for path in sorted(temporary.iterdir())}
            (temporary / _HASHES).write_text(json.dumps(hashes))
            self._set_aside(checkpoint)
        # Only now: a crash before this line leaves one checkpoint too many, never one too few.
        self._delete_unretained(step)
        return checkpoint

    def write_shards(self, step: int, groups: Mapping[str, Tensors]) -> None:
        """Writes a rank's groups where the main rank takes them into the checkpoint."""
        for name, tensors in groups.items():
            path = self._shard(step, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            disk.replace_tensors(path, tensors)

    def _take_shards(self, step: int, shards: Sequence[str], folder: Path) -> None:
        """Moves the files of other ranks into the folder of a checkpoint, once they are there.

        Files and no message between processes: the thread that saves must not wait in line with
        the collective operations of training.
        """
        deadline = time.monotonic() + SHARD_TIMEOUT
        for name in shards:
            path = self._shard(step, name)
            while not path.exists():
                if self.ranks_lost.wait(0.01) or time.monotonic() > deadline:
                    raise CheckpointError(
                        f"another rank has not written {path.name}",
                        "let all ranks write to the same file system",
                    )
            path.rename(folder / f"{name}.safetensors")

    def _shard(self, step: int, name: str) -> Path:
        # The folder stays: a rank syncs it after its file may have been taken. A run that goes on
        # removes it with all that a killed process left.
        return self.folder / ".shards.tmp" / f"step-{step:09d}.{name}.safetensors"

    def load(self, step: int) -> Saved:
        """The checkpoint of a step, which another rank has found intact."""
        return self._load([path for path in self._folders() if step_of(path) == step][-1])

    def newest(self, say: Callable[[str], None], until: float = math.inf) -> Saved | None:
        """The newest intact checkpoint of this step or an earlier one; reports the damaged ones
        that it passes over."""
        checkpoints = [path for path in self._folders() if step_of(path) <= until]
        for checkpoint in reversed(checkpoints):
            problem = damage(checkpoint)
            if problem is None:
                return self._load(checkpoint)
            say(
                f"checkpoint {checkpoint.name} is damaged ({problem}); "
                "falling back to the one before it"
            )
        if checkpoints:
            raise CheckpointError(
                f"no checkpoint under {self.folder} is intact",
                "start the run again in another folder",
            )
        return None

    def before(self, step: int) -> Saved | None:
        """The oldest intact checkpoint of an earlier step."""
        for checkpoint in self._folders():
            # Loaded only then: a checkpoint may be large.
            if step_of(checkpoint) < step and damage(checkpoint) is None:
                return self._load(checkpoint)
        return None

    def progresses(self) -> list[dict[str, Any]]:
        """The progress of each checkpoint on disk: any of them may be the one to resume from."""
        return [_read_progress(checkpoint) for checkpoint in self._folders()]

    def _delete(self, checkpoint: Path) -> None:
        # By one rename: a crash in the middle leaves no half of it that looks damaged.
        removed = checkpoint.with_name(f".{checkpoint.name}.old")
        with contextlib.suppress(OSError):
            checkpoint.rename(removed)
        shutil.rmtree(removed, ignore_errors=True)

    def _set_aside(self, checkpoint: Path) -> None:
        """Moves a checkpoint of the same step away, under a name by which it is still found."""
        if not checkpoint.exists():
            return
        replaced = checkpoint.with_name(checkpoint.name + _REPLACED)
        shutil.rmtree(replaced, ignore_errors=True)
        checkpoint.rename(replaced)
        disk.sync(self.folder)

    def _delete_unretained(self, step: int) -> None:
        """Applies the retention policy after the commit of a step."""
        checkpoints = self._folders()
        scores: dict[int, float | None] = {}
        for checkpoint in checkpoints:
            # Later ones are damaged, or of updates that were rolled back: the run goes on from
            # here. They go first, so that none of them is resumed once older ones are gone.
            if step_of(checkpoint) > step or checkpoint.name.endswith(_REPLACED):
                self._delete(checkpoint)
            else:
                score = _read_progress(checkpoint).get("score")
                # A damaged one may have anything there.
                scores[step_of(checkpoint)] = score if isinstance(score, float) else None
        retained = self.retention.retained(scores)
        for checkpoint in checkpoints:
            if step_of(checkpoint) not in retained:
                self._delete(checkpoint)

    def _folders(self) -> list[Path]:
        """In the order of their steps; what is about to be replaced before its replacement."""
        if not self.folder.is_dir():
            return []
        folders = [path for path in self.folder.iterdir() if _NAME.fullmatch(path.name)]
        return sorted(folders, key=lambda path: (step_of(path), path.suffix != _REPLACED))

    def _load(self, checkpoint: Path) -> Saved:
        try:
            files = sorted(checkpoint.glob("*.safetensors"))
            groups = merge({path.stem: load_file(path) for path in files})
            progress = json.loads(disk.read_bytes(checkpoint / _PROGRESS))
        except (OSError, ValueError, RecursionError, MemoryError, SafetensorError) as error:
            raise CheckpointError(
                f"{checkpoint} cannot be read: {error}", "start the run again in another folder"
            ) from None
        return Saved(step_of(checkpoint), groups, progress)


def step_of(checkpoint: Path) -> int:
    """The step in the name of a checkpoint folder."""
    match = _NAME.fullmatch(checkpoint.name)
    return int(match[1]) if match else 0


def damage(checkpoint: Path) -> str | None:
    """What is wrong with a checkpoint folder, or None if it is intact."""
    try:
        hashes = disk.read_json_object(checkpoint / _HASHES, CheckpointError)
        names = {path.name for path in checkpoint.iterdir()} - {_HASHES}
    except (OSError, CheckpointError):
        return "its list of hashes is unreadable"
    if _PROGRESS not in hashes:
        return "its list of hashes is missing or incomplete"
    for name in sorted(names | hashes.keys()):
        if name not in hashes:
            return f"{name} has no hash"
        if name not in names or not (checkpoint / name).is_file():
            return f"{name} is missing"
        try:
            if disk.sha256(checkpoint / name) != hashes[name]:
                return f"{name} has changed"
        except OSError as error:
            return f"{name} cannot be read: {error.strerror}"
    return None


def check_tensors(tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Raises `CheckpointError` unless all names are there, with their shapes."""
    for name, tensor in expected.items():
        if name not in tensors or tensors[name].shape != tensor.shape:
            shape = list(tensors[name].shape) if name in tensors else "nothing"
            raise CheckpointError(
                f"the checkpoint has {shape} for {name}, and the model {list(tensor.shape)}",
                "resume with the recipe and the files that the run began with",
            )


def _read_progress(checkpoint: Path) -> dict[str, Any]:
    """The progress of a checkpoint; empty where it cannot be read."""
    with contextlib.suppress(CheckpointError):
        return disk.read_json_object(checkpoint / _PROGRESS, CheckpointError)
    return {}


# --- asynchronous saving ---


@dataclass(frozen=True)
class HostCopy:
    """Groups of tensors copied to host memory, so that the next update cannot change them."""

    groups: dict[str, Tensors]
    ready: torch.cuda.Event | None  # of the copies from a GPU, which are asynchronous

    @classmethod
    def of(cls, groups: Mapping[str, Mapping[str, Tensor]]) -> HostCopy:
        copies = {
            group: {name: _host_copy(tensor) for name, tensor in tensors.items()}
            for group, tensors in groups.items()
        }
        if not any(t.is_cuda for tensors in groups.values() for t in tensors.values()):
            return cls(copies, None)
        # On the stream of the training step: the next update waits for the copies, not the host.
        ready = torch.cuda.Event()
        ready.record()
        return cls(copies, ready)

    def wait(self) -> dict[str, Tensors]:
        """The groups, once the device has copied them."""
        if self.ready is not None:
            self.ready.synchronize()
        return self.groups


def _host_copy(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    if not tensor.is_cuda:
        return tensor.to("cpu", copy=True)
    # Pinned memory, for an asynchronous copy; PyTorch caches its blocks.
    copy = torch.empty_like(tensor, device="cpu", pin_memory=True)
    return copy.copy_(tensor, non_blocking=True)


class BackgroundSave:
    """Asynchronous saving: one thread that writes, with at most one save in flight.

    The error of a save is raised by the next call of any method; at the end of a `with` block that
    no other error ended, the last save is waited for.
    """

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="save")
        self._save: Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._executor.shutdown(wait=True)
        if error is None:
            self.wait()

    def start(self, save: Callable[[], None]) -> None:
        """Runs `save` in the thread, once the one before it is done."""
        self.wait()
        self._save = self._executor.submit(save)

    def check(self) -> None:
        """Raises the error of a save that has failed; waits for nothing."""
        if self._save is not None and self._save.done():
            self.wait()

    def wait(self) -> None:
        """Waits for the save in flight."""
        save = self._save
        self._save = None
        if save is not None:
            save.result()


# --- snapshots of weights ---


class Snapshots:
    """`state/snapshots/step-N.safetensors`: weights alone, for checkpoint averaging or the best."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, step: int) -> Path:
        return self.folder / f"step-{step:09d}.safetensors"

    def write(self, step: int, weights: Tensors) -> None:
        path = self.path(step)
        with disk.disk_errors(path.name):
            disk.make_folder(self.folder)
        disk.replace_tensors(path, weights)

    def damage(self, step: int, expected: Mapping[str, Tensor]) -> str | None:
        """What is wrong with a snapshot of tensors like the `expected` ones, or None."""
        path = self.path(step)
        try:
            if disk.is_altered(path):
                return f"{path.name} has changed"
            check_tensors(load_file(path), expected)
        except (OSError, MemoryError, SafetensorError):  # a huge hole cannot be mapped
            return f"{path.name} is missing or damaged"
        except CheckpointError as error:
            return f"{path.name}: {error.problem}"
        return None

    def mean(self, steps: list[int]) -> Tensors:
        """Checkpoint averaging: the mean of these snapshots, summed in float64."""
        total: dict[str, Any] = defaultdict(int)
        for step in steps:
            for name, tensor in load_file(self.path(step)).items():
                total[name] = total[name] + tensor.double()
        return {name: (tensor / len(steps)).float() for name, tensor in total.items()}

    def delete_all_but(self, steps: set[int], until: int | None = None) -> None:
        """Deletes the snapshots of other steps.

        With `until`, those after it stay: they belong to a checkpoint that is still to be saved.
        """
        names = {self.path(step).name for step in steps}
        for path in self.folder.glob("step-*.safetensors"):
            is_pending = until is not None and path.name > self.path(until).name
            if path.name not in names and not is_pending:
                path.unlink(missing_ok=True)
