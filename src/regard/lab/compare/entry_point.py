"""`regard.compare` and `regard compare`: from names of models to their comparison."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from regard.lab.compare import experiment
from regard.lab.compare.contenders import (
    check_settings_are_read,
    parse_contenders,
)
from regard.lab.compare.report import Comparison, scene
from regard.lab.measure.budget import UNITS, Budget
from regard.look import drawing
from regard.system import disk
from regard.system.errors import SettingError
from regard.training.recipe import loading
from regard.training.recipe.objectives import DATA_KEYS

DEFAULT_STEPS = 1000


def compare(
    models: str | Sequence[str],
    recipe: str | Path | Mapping[str, Any] | None = None,
    *,
    seeds: int = 1,
    parameters: int | None = None,
    out: str | Path | None = None,
    data_dir: str | None = None,
    say: Callable[[str], None] = print,
    **changes: Any,
) -> Comparison:
    """Compares models with equal data, parameters and budget.

    Example:
        `regard.compare(["gpt2", "llama"], data="notes.txt", steps=200)`.

    Args:
        models: Names as `regard compare --models` takes them: an architecture with its size or
            attention, and `@key=value` for settings of its own; or files of specs.
        recipe: Name of a built-in recipe, path of a TOML file, or a mapping of settings.
        seeds: Runs per model.
        parameters: Approximate parameter count of every model; by default that of the recipe's.
        out: Folder of the runs; by default `runs/compare-NAME`. What is finished in it is kept.
        data_dir: Folder of a recipe's files.
        say: Receives the lines of progress.
        **changes: The budget of every model, as `steps=`, `minutes=` or `flops=` (by default 1,000
            steps), and single settings, which override the recipe, as in `regard.train`.
    """
    if isinstance(recipe, Mapping):
        changes = {**recipe, **changes}
        recipe = None
    changes |= {key: str(value) for key, value in changes.items() if isinstance(value, Path)}
    contenders = parse_contenders(models if isinstance(models, str) else ",".join(models))
    if "budget" in changes:
        raise SettingError(
            "there is no setting 'budget'", "use steps=N, minutes=N or flops=N instead"
        )
    amounts = {unit: changes.pop(unit) for unit in UNITS & changes.keys()}
    budget = Budget(**amounts or {"steps": DEFAULT_STEPS})
    if recipe is None and {"data", "generated", *DATA_KEYS.values()} & changes.keys():
        # The user's data with the defaults: the objective is that of the first model.
        named = contenders[0].changes
        first = changes | {key: named[key] for key in ("model", "spec") if key in named}
        changes.setdefault("objective", loading.choose(None, first)[0].objective)
    base_recipe, name = loading.choose(recipe, changes, data_dir)
    folder = Path(out) if out else Path("runs") / f"compare-{name}"
    for contender in contenders:
        contender.recipe(base_recipe)  # reports a wrong setting before anything is trained
    check_settings_are_read(contenders, base_recipe, changes)
    result = experiment.compare(
        base_recipe,
        name,
        contenders,
        budget,
        # From 1 on, the default seed of `regard train`: it repeats the first run.
        range(1, seeds + 1),
        folder,
        parameters=parameters,
        say=say,
    )
    disk.write_file(folder / "compare.svg", drawing.svg(scene(result), f"comparison on {name}"))
    say(f"figure: {folder / 'compare.svg'}; numbers: {folder / 'compare.json'}")
    return result
