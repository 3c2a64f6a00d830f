"""Checkpoints: training state on disk, complete, hashed and committed by a rename.

A run resumes from the newest intact one.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from regard import disk
from regard.errors import CheckpointError
from regard.tensor_names import current_name

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Saved:
    """One checkpoint: named groups of tensors, and the progress of the run as plain data."""

    step: int
    groups: dict[str, Tensors]  # group (a file's stem) → its tensors by name
    progress: dict[str, Any]


# --- checkpoints ---


class Checkpoints:
    """`state/checkpoints/step-N` folders, of which the last `keep` stay.

    A folder holds GROUP.safetensors, progress.json, and hashes.json with the SHA-256 of the others.
    """

    def __init__(self, folder: Path, keep: int = 2) -> None:
        self.folder = folder
        self.keep = keep

    def save(self, step: int, groups: Mapping[str, Tensors], progress: Mapping[str, Any]) -> Path:
        checkpoint = self.folder / f"step-{step:09d}"
        self.folder.mkdir(parents=True, exist_ok=True)
        with disk.atomic_folder(checkpoint) as temporary:
            for name, tensors in groups.items():
                disk.write_tensors(temporary / f"{name}.safetensors", tensors)
            (temporary / "progress.json").write_text(json.dumps(progress))
            # Last, when all other files are written.
            hashes = {path.name: disk.sha256(path) for path in sorted(temporary.iterdir())}
            (temporary / "hashes.json").write_text(json.dumps(hashes))
        # Only now: a crash before this line leaves one checkpoint too many, never one too few.
        for old in self._folders()[: -self.keep]:
            shutil.rmtree(old, ignore_errors=True)
        return checkpoint

    def newest(self, say: Callable[[str], None]) -> Saved | None:
        """The newest intact checkpoint; reports the damaged ones that it passes over."""
        checkpoints = self._folders()
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

    def load(self, step: int) -> Saved:
        """The checkpoint of a step, which another rank has found intact."""
        return self._load(self.folder / f"step-{step:09d}")

    def before(self, step: int) -> Saved | None:
        """The oldest intact checkpoint of an earlier step."""
        for checkpoint in self._folders():
            # Loaded only then: a checkpoint may be large.
            if int(checkpoint.name.removeprefix("step-")) < step and damage(checkpoint) is None:
                return self._load(checkpoint)
        return None

    def progresses(self) -> list[dict[str, Any]]:
        """The progress of each checkpoint on disk: any of them may be the one to resume from."""
        paths = [checkpoint / "progress.json" for checkpoint in self._folders()]
        return [json.loads(path.read_text()) for path in paths if path.is_file()]

    def _folders(self) -> list[Path]:
        if not self.folder.is_dir():
            return []
        return sorted(self.folder.glob("step-*"))  # nine digits: by name is by step

    def _load(self, checkpoint: Path) -> Saved:
        return Saved(
            step=int(checkpoint.name.removeprefix("step-")),
            groups={path.stem: _load_tensors(path) for path in checkpoint.glob("*.safetensors")},
            progress=json.loads((checkpoint / "progress.json").read_text()),
        )


def damage(checkpoint: Path) -> str | None:
    """What is wrong with a checkpoint folder, or None if it is intact."""
    try:
        hashes = json.loads((checkpoint / "hashes.json").read_text())
    except (OSError, ValueError):
        return "its list of hashes is missing or unreadable"
    for name, expected in hashes.items():
        path = checkpoint / name
        if not path.is_file():
            return f"{name} is missing"
        if disk.sha256(path) != expected:
            return f"{name} has changed"
    return None


def _load_tensors(path: Path) -> Tensors:
    """The tensors of a file under their present names, whichever version wrote it."""
    return {current_name(name): tensor for name, tensor in load_file(path).items()}


# --- snapshots of weights ---


class Snapshots:
    """`state/snapshots/step-N.safetensors`: weights alone, for checkpoint averaging or the best."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, step: int) -> Path:
        return self.folder / f"step-{step:09d}.safetensors"

    def write(self, step: int, weights: Tensors) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.path(step)
        with disk.disk_errors(path.name), disk.atomic_file(path) as temporary:
            disk.write_tensors(temporary, weights)

    def mean(self, steps: list[int]) -> Tensors:
        """Checkpoint averaging: the mean of these snapshots, summed in float64."""
        total: Tensors = {}
        for step in steps:
            for name, tensor in _load_tensors(self.path(step)).items():
                if name in total:
                    total[name] = total[name] + tensor.double()
                else:
                    total[name] = tensor.double()
        return {name: (tensor / len(steps)).float() for name, tensor in total.items()}

    def delete_all_but(self, steps: set[int]) -> None:
        names = {self.path(step).name for step in steps}
        for path in self.folder.glob("step-*.safetensors"):
            if path.name not in names:
                path.unlink(missing_ok=True)
