"""Training state on disk: complete, hashed, committed by a rename; the newest intact one is what a run goes on from."""

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
    groups: dict[str, Tensors]
    progress: dict[str, Any]


class Checkpoints:
    """`state/checkpoints/step-N` folders; the last `keep` of them stay."""

    def __init__(self, folder: Path, keep: int = 2) -> None:
        self.folder = folder
        self.keep = keep

    def save(self, step: int, groups: Mapping[str, Tensors], progress: Mapping[str, Any]) -> Path:
        place = self.folder / f"step-{step:09d}"
        self.folder.mkdir(parents=True, exist_ok=True)
        with disk.committing(place) as temporary:
            for name, tensors in groups.items():
                disk.write_tensors(temporary / f"{name}.safetensors", tensors)
            (temporary / "progress.json").write_text(json.dumps(progress))
            hashes = {path.name: disk.sha256(path) for path in sorted(temporary.iterdir())}
            (temporary / "hashes.json").write_text(json.dumps(hashes))
        for old in self._folders()[: -self.keep]:
            shutil.rmtree(old, ignore_errors=True)
        return place

    def newest(self, say: Callable[[str], None]) -> Saved | None:
        """The newest checkpoint that is whole; says which damaged ones it passed over."""
        found = self._folders()
        for place in reversed(found):
            problem = damage(place)
            if problem is None:
                return self._load(place)
            say(
                f"checkpoint {place.name} is damaged ({problem}); falling back to the one before it"
            )
        if found:
            raise CheckpointError(
                f"no checkpoint under {self.folder} is intact",
                "start the run again in another folder",
            )
        return None

    def progresses(self) -> list[dict[str, Any]]:
        """What the checkpoints on disk say of their runs' progress: any of them may be the one to go on from."""
        return [
            json.loads(path.read_text())
            for place in self._folders()
            if (path := place / "progress.json").is_file()
        ]

    def _folders(self) -> list[Path]:
        return sorted(self.folder.glob("step-*")) if self.folder.is_dir() else []

    def _load(self, place: Path) -> Saved:
        groups = {path.stem: _current(load_file(path)) for path in place.glob("*.safetensors")}
        return Saved(
            int(place.name.removeprefix("step-")),
            groups,
            json.loads((place / "progress.json").read_text()),
        )


def _current(tensors: Tensors) -> Tensors:
    """Tensors that an earlier version may have stored, under the names they have now."""
    return {current_name(name): tensor for name, tensor in tensors.items()}


def damage(place: Path) -> str | None:
    """What is wrong with a checkpoint folder, or None."""
    try:
        hashes = json.loads((place / "hashes.json").read_text())
    except (OSError, ValueError):
        return "its list of hashes is missing or unreadable"
    for name, expected in hashes.items():
        path = place / name
        if not path.is_file():
            return f"{name} is missing"
        if disk.sha256(path) != expected:
            return f"{name} has changed"
    return None


class Snapshots:
    """`state/snapshots/step-N.safetensors`: weights kept for the best score and for averaging."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, step: int) -> Path:
        return self.folder / f"step-{step:09d}.safetensors"

    def write(self, step: int, weights: Tensors) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with disk.writing(self.path(step).name), disk.replacing(self.path(step)) as temporary:
            disk.write_tensors(temporary, weights)

    def mean(self, steps: list[int]) -> Tensors:
        """The average of these snapshots, summed in float64."""
        total: Tensors = {}
        for step in steps:
            for name, tensor in _current(load_file(self.path(step))).items():
                total[name] = total[name] + tensor.double() if name in total else tensor.double()
        return {name: (tensor / len(steps)).float() for name, tensor in total.items()}

    def forget_all_but(self, steps: set[int]) -> None:
        kept = {self.path(step).name for step in steps}
        for path in self.folder.glob("step-*.safetensors"):
            if path.name not in kept:
                path.unlink(missing_ok=True)
