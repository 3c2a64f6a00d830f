"""A run's folder before torch is needed: where it is, what it holds, and the recipe it was started with."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

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
    def recipe(self) -> Path:
        return self.state / "recipe.json"

    @property
    def metrics(self) -> Path:
        return self.folder / "metrics.jsonl"

    @property
    def weights(self) -> Path:
        return self.folder / "model.safetensors"


def begin(recipe: Recipe, out: Path | None, name: str) -> RunFolder:
    """A new run folder with its recipe in it: from here on the run can be resumed, whatever happens."""
    folder = out if out is not None else _fresh(name)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SettingError(
            f"{folder} already exists and is not empty",
            f"go on with `regard train --resume {folder}`, or choose another --out",
        )
    place = RunFolder(folder)
    with disk.writing(str(folder)):
        place.state.mkdir(parents=True, exist_ok=True)
    disk.write_json(place.recipe, {"name": name, **recipe.model_dump(mode="json")})
    return place


def resume(folder: Path) -> tuple[RunFolder, Recipe, str]:
    """A run folder that was begun before, and the recipe it was begun with."""
    place = RunFolder(folder)
    if not place.recipe.is_file():
        raise CheckpointError(
            f"{folder} is not a run: it has no state/recipe.json",
            "give the folder that `regard train` printed, or start a new run",
        )
    try:
        values = json.loads(place.recipe.read_text(encoding="utf-8"))
        name = values.pop("name")
    except (ValueError, KeyError) as error:
        raise CheckpointError(
            f"{place.recipe} cannot be read: {error}", "start a new run"
        ) from None
    return place, parse(values), name


def _fresh(name: str) -> Path:
    number = 1
    while (folder := Path("runs") / (name if number == 1 else f"{name}-{number}")).exists():
        number += 1
    return folder
