"""The run folder: where a run's files are, and the recipe it was started with. No torch here."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard import disk
from regard.errors import CheckpointError, SettingError
from regard.training.recipe.schema import Recipe, parse

_COUNTED = ("steps", "warmup", "validate_every", "save_every", "log_every")
# The key of state/recipe.json for those of them that are still to be counted.
_INTERVALS = "intervals_to_count"
_OBJECTIVE_CLASS = "objective_class"  # the key of an objective from outside the package


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
    def outcome(self) -> Path:
        """How the run ended: finished with its scores, or failed and why; none while it runs."""
        return self.state / "outcome.json"

    @property
    def weights(self) -> Path:
        return self.folder / "model.safetensors"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One process trains in a folder at a time.

        The system releases the lock of a process that is killed.
        """
        with disk.disk_errors(str(self.folder)):
            file = (self.state / "lock").open("a")
        with file:
            if not disk.lock(file):
                raise SettingError(
                    f"another process is training in {self.folder}",
                    "wait for it or stop it, or choose another --out",
                )
            yield

    def check_objective(self, objective: str | None) -> None:
        """Refuses to resume with another objective class than that from outside it began with."""
        values = json.loads(self.recipe.read_text(encoding="utf-8"))
        expected = values.get(_OBJECTIVE_CLASS)
        if objective != expected:
            raise SettingError(
                f"{self.folder} was begun with the objective {expected or 'of its recipe'}, "
                f"not {objective or 'that of its recipe'}",
                "resume it in Python: regard.training.run.go_on(folder, objective=…)",
            )

    def with_counted_steps(self, recipe: Recipe, batches_per_epoch: Callable[[], int]) -> Recipe:
        """The recipe of a run of epochs with its steps, once its batches can be counted.

        It is written back, so that a resumed run goes on with the same numbers.
        """
        values = json.loads(self.recipe.read_text(encoding="utf-8"))
        intervals = values.pop(_INTERVALS, None)
        if recipe.tune.epochs is None or intervals is None:
            return recipe
        updates = math.ceil(batches_per_epoch() / recipe.train.accumulate)
        steps = max(1, math.ceil(recipe.tune.epochs * updates))
        counted = {
            "steps": steps,
            "warmup": max(1, int(recipe.tune.warm_up * steps)),
            "validate_every": min(updates, steps),
            "save_every": min(updates, steps),
            "log_every": min(10, updates),
        }
        # What the user set stands.
        changes = {key: counted[key] for key in intervals}
        recipe = recipe.model_copy(update={"train": recipe.train.model_copy(update=changes)})
        disk.write_json(self.recipe, {**values, **recipe.model_dump(mode="json")})
        return recipe


def begin(recipe: Recipe, out: Path | None, name: str, objective: str | None = None) -> RunFolder:
    """A new run folder with its recipe in it: from here on the run can be resumed.

    `objective` names a class from outside the package.
    """
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
    values = {"name": name, **recipe.model_dump(mode="json")}
    if recipe.tune.epochs is not None:
        # The intervals that follow from the number of batches, which is not known yet.
        fixed = recipe.train.model_fields_set - {"steps"}
        values[_INTERVALS] = [key for key in _COUNTED if key not in fixed]
    if objective is not None:
        values[_OBJECTIVE_CLASS] = objective
    disk.write_json(run_folder.recipe, values)
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
        for key in (_INTERVALS, _OBJECTIVE_CLASS):
            values.pop(key, None)
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
