"""The run folder: where a run's files are, and the recipe it was started with. No torch here."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard import disk
from regard.errors import CheckpointError, SettingError
from regard.training.recipe.schema import Recipe, parse


@dataclass(frozen=True)
class RunFolder:
    """The paths of a run: a Hugging Face repository, plus `state/` for what only training needs."""

    folder: Path

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def data(self) -> Path:
        return self.state / "data"

    @property
    def checkpoints(self) -> Path:
        return self.state / "checkpoints"

    @property
    def snapshots(self) -> Path:
        return self.state / "snapshots"

    @property
    def recipe(self) -> Path:
        return self.state / "recipe.json"

    @property
    def model(self) -> Path:
        """The spec of a model that was given to the run in place of a recipe's sizes."""
        return self.state / "model.json"

    @property
    def metrics(self) -> Path:
        return self.folder / "metrics.jsonl"

    @property
    def weights(self) -> Path:
        return self.folder / "model.safetensors"


def begin(recipe: Recipe, out: Path | None, name: str) -> RunFolder:
    """A new run folder with its recipe in it: from here on the run can be resumed."""
    folder = out if out is not None else _unused_folder(name)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SettingError(
            f"{folder} already exists and is not empty",
            f"go on with `regard train --resume {folder}`, or choose another --out",
        )
    run_folder = RunFolder(folder)
    # First of all: a full or read-only disk is reported before hours of work.
    with disk.disk_errors(str(folder)):
        run_folder.state.mkdir(parents=True, exist_ok=True)
    disk.write_json(run_folder.recipe, {"name": name, **recipe.model_dump(mode="json")})
    return run_folder


def resume(folder: Path) -> tuple[RunFolder, Recipe, str]:
    """An existing run folder, with the recipe and the name it was started with."""
    run_folder = RunFolder(folder)
    if not run_folder.recipe.is_file():
        raise CheckpointError(
            f"{folder} is not a run: it has no state/recipe.json",
            "give the folder that `regard train` printed, or start a new run",
        )
    try:
        values = json.loads(run_folder.recipe.read_text(encoding="utf-8"))
        name = values.pop("name")
    except (ValueError, KeyError) as error:
        raise CheckpointError(
            f"{run_folder.recipe} cannot be read: {error}", "start a new run"
        ) from None
    return run_folder, parse(_in_todays_words(values, folder)), name


def _in_todays_words(values: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The recipe of a run that an earlier version may have begun.

    There `longformer` was what `global` is now: without projections of its own.
    """
    model = values.get("model") or {}
    kind, colon, size = str(model.get("attention")).partition(":")
    config = folder / "config.json"
    if kind != "longformer" or not config.is_file():
        return values
    if '"projection": "global"' in config.read_text(encoding="utf-8"):
        return values
    return {**values, "model": {**model, "attention": f"global{colon}{size}"}}


def _unused_folder(name: str) -> Path:
    """runs/NAME, or runs/NAME-2 and so on if that exists."""
    folder = Path("runs") / name
    number = 1
    while folder.exists():
        number += 1
        folder = Path("runs") / f"{name}-{number}"
    return folder
