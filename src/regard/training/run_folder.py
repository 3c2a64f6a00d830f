"""The run folder: where a run's files are, and the recipe it was started with. No torch here."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
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


class RunFolder:
    """The paths of a run: a Hugging Face repository, plus `state/` for what only training needs."""

    def __init__(
        self, folder: Path, new_parents: Sequence[Path] = (), is_new: bool = False
    ) -> None:
        self.folder = folder
        self.new_parents = new_parents  # made for this run, innermost first
        self.is_new = is_new  # begun here and now
        self.weights = folder / "model.safetensors"
        self.metrics = folder / "metrics.jsonl"
        self.state = folder / "state"
        self.data = self.state / "data"
        self.checkpoints = self.state / "checkpoints"
        self.snapshots = self.state / "snapshots"
        self.recipe = self.state / "recipe.json"
        self.model = self.state / "model.json"  # the spec that the run began with
        self.base = self.state / "base"  # a model that was given to the run, as it was before
        # How it ended: finished with its scores, or failed and why; none while it runs.
        self.outcome = self.state / "outcome.json"

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
        repair = "leave `objective` out"
        if expected is not None:
            repair = f"resume it in Python: regard.resume(folder, objective={expected})"
        raise SettingError(
            f"{self.folder} was started with the objective {expected or 'of its recipe'}, "
            f"not {objective or 'that of its recipe'}",
            repair,
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
        return list(self.read_recipe().get(_UNSET, []))

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
        numbers = (path.name.removeprefix("step-") for path in self.checkpoints.glob("step-*"))
        done = max((int(number) for number in numbers if number.isdigit()), default=0)
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
    if recipe.tune.epochs is not None or recipe.tune.minutes is not None:
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
    with disk.disk_errors(str(folder)):
        exists = folder.exists()
    if "\0" in str(folder) or (exists and not folder.is_dir()):
        raise SettingError(f"{str(folder)!r} is a file, or no path", "choose another --out")
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
    run_folder = RunFolder(folder, parents, is_new=True)
    values = {"name": name, _OBJECTIVE_CLASS: objective, _UNSET: _unset_keys(recipe)}
    named = {key: value for key, value in values.items() if value}
    disk.write_json(run_folder.recipe, named | recipe.model_dump(mode="json"))
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
        for path in (*folder.iterdir(), *run_folder.state.iterdir()):
            if path not in (run_folder.state, run_folder.state / _LOCK):
                disk.remove(path)


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
    names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    return next(Path("runs", each) for each in names if not Path("runs", each).exists())
