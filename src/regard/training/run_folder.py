"""The run folder: where a run's files are, and the recipe it was started with. No torch here."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any

from regard.system import disk
from regard.system.errors import CheckpointError, SettingError
from regard.training.recipe.consistency import parse
from regard.training.recipe.schema import Recipe

# The settings that follow from the size of the data unless they are given.
_SIZED = ("steps", "warmup_steps", "batch_tokens", "validate_every", "save_every")
# The key of state/recipe.json for those of them that are still to follow from the data.
_UNSET = "unset"
_LOCK = "lock"  # a file of state/, locked by the process that trains
_OBJECTIVE_CLASS = "objective_class"  # the key of an objective from outside the package


@dataclass(frozen=True)
class RunFolder:
    """The paths of a run: a Hugging Face repository, plus `state/` for what only training needs."""

    folder: Path
    new_parents: tuple[Path, ...] = ()  # made for this run, innermost first
    is_new: bool = False  # begun here and now

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
    def base(self) -> Path:
        """The model that was given to the run, as it was before."""
        return self.state / "base"

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
            file = disk.open_to_append(self.state / _LOCK)
        with file:
            if not disk.lock(file):
                raise SettingError(
                    f"another process is training in {self.folder}",
                    "wait for it or stop it; a new run needs another --out",
                )
            yield

    def delete_unfinished(self) -> None:
        """Removes what a killed process was writing. For the process that holds the lock."""
        for folder in (self.folder, self.state, self.snapshots, self.checkpoints):
            disk.delete_unfinished(folder)

    def check_objective(self, objective: str | None) -> None:
        """Refuses to resume with another objective class than that from outside it began with."""
        values = self.read_recipe()
        expected = values.get(_OBJECTIVE_CLASS)
        if objective == expected:
            return
        if expected is None:
            raise SettingError(
                f"{self.folder} was started with the objective of its recipe",
                "leave `objective` out",
            )
        raise SettingError(
            f"{self.folder} was started with the objective {expected}, "
            f"not {objective or 'that of its recipe'}",
            f"resume it in Python: regard.resume(folder, objective={expected})",
        )

    def read_recipe(self) -> dict[str, Any]:
        """The content of state/recipe.json."""
        values = disk.read_json_object(self.recipe, CheckpointError)
        unset = values.get(_UNSET, [])
        is_sound = isinstance(unset, list) and all(isinstance(key, str) for key in unset)
        if not is_sound or not isinstance(values.get("name"), str):
            raise CheckpointError(f"{self.recipe} is damaged", "start a new run")
        return values

    def unset_settings(self) -> list[str]:
        """The settings that are still to follow from the data, once it is prepared."""
        unset: list[str] = self.read_recipe().get(_UNSET, [])
        return unset

    def store(self, recipe: Recipe, unset: Sequence[str] = ()) -> None:
        """Writes the recipe of the run; `unset` are its settings that follow from the data."""
        values = self.read_recipe() | recipe.model_dump(mode="json") | {_UNSET: list(unset)}
        if not unset:
            del values[_UNSET]
        disk.write_json(self.recipe, values)

    def with_steps(self, recipe: Recipe, steps: int) -> Recipe:
        """The recipe with another number of steps, which is stored: the run is trained longer."""
        # Checked as if it were in the recipe: a wrong number must not be stored.
        values = recipe.model_dump()
        recipe = parse({**values, "train": {**values["train"], "steps": steps}})
        # By the names of the checkpoints: what reads them needs torch.
        names = [path.name for path in self.checkpoints.glob("step-*")]
        steps_done = [int(name[len("step-") :]) for name in names if name[len("step-") :].isdigit()]
        done = max(steps_done, default=0)
        if recipe.train.steps <= done:
            raise SettingError(
                f"the run in {self.folder} is already at step {done:,}",
                f"give a larger number: --steps {2 * max(done, 1)}",
            )
        self.store(recipe, [key for key in self.unset_settings() if key != "steps"])
        return recipe

    def remove(self) -> None:
        """Removes the folder, and the parents that were made for it if nothing else is in them."""
        # A folder that cannot be removed itself, such as the current one, is emptied.
        shutil.rmtree(self.folder, ignore_errors=True)
        with suppress(OSError):  # not empty
            for parent in self.new_parents:
                parent.rmdir()

    def never_trained(self) -> bool:
        """Whether a run began here and ended before its first step: nothing in it is of value."""
        if not self.recipe.is_file() or self.weights.exists() or self.checkpoints.exists():
            return False
        if self.metrics.exists() and self.metrics.stat().st_size > 0:
            return False
        try:
            data = self.read_recipe()["data"]
            # A copy of standard input cannot be read again.
            return "-" not in (data["text"], data["pairs"])
        except (CheckpointError, KeyError, TypeError):
            return False


def _unset_keys(recipe: Recipe) -> list[str]:
    """The settings that nobody gave, and that follow from the data."""
    named = recipe.train.model_fields_set
    if recipe.tune.epochs is not None:
        return ["steps", *(key for key in (*_SIZED, "log_every") if key not in named | {"steps"})]
    # Whoever gives the steps expects the intervals of the help text.
    keys = ("warmup_steps", "batch_tokens") if "steps" in named else _SIZED
    return [key for key in keys if key not in named]


def begin(
    recipe: Recipe,
    out: Path | None,
    name: str,
    objective: str | None = None,
    *,
    overwrite: bool = False,
) -> RunFolder:
    """A new run folder with its recipe in it: from here on the run can be resumed.

    `objective` names a class from outside the package. `overwrite` removes a run that is there.
    """
    folder = out if out is not None else _unused_folder(name)
    if "\0" in str(folder):
        raise SettingError(
            "the name of the run folder has a zero byte in it", "choose another --out"
        )
    with disk.disk_errors(str(folder)):
        exists = folder.exists()
    if exists and not folder.is_dir():
        raise SettingError(f"{folder} is a file, not a folder", "choose another --out")
    starting_points = [Path(name) for name in (recipe.tune.base, recipe.train.teacher) if name]
    if overwrite and folder.resolve() in [path.resolve() for path in starting_points]:
        raise SettingError(f"{folder} holds the model to start from", "choose another --out")
    run_folder = RunFolder(folder)
    if exists and any(folder.iterdir()):
        _take_again(run_folder, overwrite)
    # First of all: a full or read-only disk is reported before hours of work.
    with disk.disk_errors(str(folder)):
        new = disk.make_folder(run_folder.state)
    parents = tuple(path for path in new if path in folder.parents)
    run_folder = replace(run_folder, new_parents=parents, is_new=True)
    values = {"name": name, **recipe.model_dump(mode="json")}
    if unset := _unset_keys(recipe):
        values[_UNSET] = unset
    if objective is not None:
        values[_OBJECTIVE_CLASS] = objective
    disk.write_json(run_folder.recipe, values)
    return run_folder


def _take_again(run_folder: RunFolder, overwrite: bool) -> None:
    """Empties a folder whose run ended before its first step; any other one only if asked to."""
    folder = run_folder.folder
    is_run = run_folder.recipe.is_file()
    if not run_folder.never_trained() and not (overwrite and is_run):
        repair = "choose another --out"
        if is_run:
            resume = f"regard train --resume {quote(str(folder))}"
            repair = f"continue with `{resume}`, remove it with --overwrite, or {repair}"
        raise SettingError(f"{folder} already exists and is not empty", repair)
    # Not under the feet of a process that is preparing its data there.
    with run_folder.locked():
        for path in folder.iterdir():
            if path != run_folder.state:
                remove(path)
        for path in run_folder.state.iterdir():
            if path.name != _LOCK:
                remove(path)


def remove(path: Path) -> None:
    """Removes a file, or a folder with all that is in it."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def read_run(folder: Path, steps: int | None = None) -> tuple[RunFolder, Recipe, str]:
    """An existing run folder, with the recipe and the name it was started with.

    `steps` trains it to another number of steps than that of its recipe.
    """
    run_folder = RunFolder(folder)
    if not run_folder.recipe.is_file():
        raise CheckpointError(
            f"{folder} is not a run: it has no state/recipe.json",
            "give the folder that `regard train` printed, or start a new run",
        )
    values = run_folder.read_recipe()
    name = values.pop("name")
    for key in (_UNSET, _OBJECTIVE_CLASS):
        values.pop(key, None)
    recipe = parse(values)
    if steps is not None:
        recipe = run_folder.with_steps(recipe, steps)
    return run_folder, recipe, name


def _unused_folder(name: str) -> Path:
    """runs/NAME, or runs/NAME-2 and so on if that exists."""
    folder = Path("runs") / name
    number = 1
    while folder.exists():
        number += 1
        folder = Path("runs") / f"{name}-{number}"
    return folder
