"""Recipes from files, flags and Python: packaged ones by name, defaults, and paths.

Flags override the recipe, and the recipe overrides the defaults of `sections`.
"""

from __future__ import annotations

import importlib.resources
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regard.data.file_access import below
from regard.system import disk
from regard.system.errors import SettingError, did_you_mean
from regard.training.recipe.consistency import STARTING_POINT, check_changes
from regard.training.recipe.objectives import (
    DATA_KEYS,
    OBJECTIVES,
    TASKS,
    objective_of,
    objective_settings,
)
from regard.training.recipe.options import parse_generated_task
from regard.training.recipe.schema import (
    FILE_KEYS,
    KEYS,
    SECTIONS,
    Recipe,
    parse,
    repair_of_unknown,
)
from regard.training.recipe.sections import TRANSFORMER_ONLY, ModelSettings
from regard.training.recipe.settings import is_baseline

# The usual recipe of fine-tuning: AdamW at a small rate, a tenth of the steps to warm up, then
# linear decay.
FINETUNING_DEFAULTS: dict[str, Any] = {
    "optimizer": "adamw",
    "schedule": "linear",
    "learning_rate": 3e-5,
    "weight_decay": 0.01,
    "betas": (0.9, 0.999),
    "adam_eps": 1e-8,
    "max_grad_norm": 1.0,
    "label_smoothing": 0.0,
    "batch_tokens": 1024,
}
FINETUNING_EPOCHS = 3.0
# Settings that mean something only where there are weights to start from.
FINETUNING_ONLY = ("freeze", "layer_decay", "lora", "lora_alpha", "lora_dropout", "lora_in")
LORA_LEARNING_RATE = 5e-4  # few parameters, which start at zero, have farther to go
LINEAR_FORECASTERS = ("dlinear", "nlinear")
SIDES = ("source", "target")  # of pairs in two files


def packaged() -> dict[str, Path]:
    """The recipes that come with the package, by name."""
    folder = importlib.resources.files("regard") / "training" / "recipes"
    paths = [Path(str(file)) for file in folder.iterdir() if file.name.endswith(".toml")]
    return {path.stem: path for path in paths}


def load(
    name: str | Path | None, changes: Mapping[str, Any], data_root: str | None = None
) -> Recipe:
    """A recipe by name or TOML file, with `changes` (plain keys, as flags have them) on top.

    File names in a recipe are relative to the data root: `data_root`, else $REGARD_DATA, else the
    recipe's folder.
    """
    values: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    if name is not None:
        for section, entries in _read(name).items():
            if section not in SECTIONS:
                raise _no_section(name, section)
            if not isinstance(entries, dict):
                raise SettingError(
                    f"{name}: {section} is a section, not a value or a list",
                    f"write [{section}], and its settings on the lines below",
                )
            values[section].update(entries)
        _check_read_first(values)
        _resolve_paths(values, name, data_root)
    # `--model gru` on a recipe of a Transformer: its heads and the like do not apply.
    values["model"] = applicable_settings(values["model"], changes.get("model"))
    _choose_size(values["model"], changes)
    values["data"] = _without_replaced_pairs(values["data"], changes)
    # Keys are unique across sections, so a flag needs no section.
    for key, value in changes.items():
        if key not in KEYS:
            raise SettingError(f"there is no setting {key!r}", repair_of_unknown(key, KEYS))
        values[KEYS[key]][key] = value
    _check_read_first(values)
    _check_not_ignored(values, changes)
    if values["data"].get("generated") is not None:
        _add_generated_defaults(values)
    _add_objective(values)
    if values["tune"].get("base") is not None:
        _add_finetuning_defaults(values)
    # Only now, with all values in place: some checks compare sections.
    recipe = parse(values)
    check_changes(recipe, changes)
    return recipe


def _check_no_sizes_with_spec(model: Mapping[str, Any], changes: Mapping[str, Any]) -> None:
    """A spec decides all of the architecture; one that is a flag replaces what a recipe has."""
    if model.get("spec") is None:
        return
    named = changes if changes.get("spec") is not None else {**model, **changes}
    # That `model` names another one is checked where all settings are.
    sizes = ModelSettings.model_fields.keys() - {*STARTING_POINT, "spec", "model"}
    for key, value in named.items():
        if key in sizes and value not in (None, False):
            flag = "--" + key.replace("_", "-")
            raise SettingError(f"{key} is decided by the spec", f"leave {flag} or --spec out")


def _check_not_ignored(values: Mapping[str, Mapping[str, Any]], changes: Mapping[str, Any]) -> None:
    """Refuses settings of a new run that others would leave without effect."""
    _check_no_sizes_with_spec(values["model"], changes)
    data = {key for key, value in values["data"].items() if value is not None}
    for before in ("", "valid_", "test_"):
        sides = [f"{before}{side}" for side in SIDES if f"{before}{side}" in data]
        if f"{before}pairs" in data and sides:
            raise SettingError(
                f"{before}pairs and {sides[0]} both name pairs", "give one file, or both sides"
            )
    if "text_column" in data and "text" not in data:
        raise SettingError("text_column only applies to `text` files", "leave it out")
    if changes.get("steps") is not None and changes.get("epochs") is not None:
        raise SettingError("steps and epochs cannot be combined", "give one of them")
    if values["tune"].get("base") is None:
        for key in FINETUNING_ONLY:
            if values["tune"].get(key):
                raise SettingError(
                    f"{key} is a setting of fine-tuning", "give the model to start from: --base"
                )


def _no_section(name: str | Path, section: str) -> SettingError:
    """The error of a recipe's unknown section, or of a setting that stands in none."""
    if section in KEYS:
        return SettingError(
            f"{name}: the setting {section!r} is outside any section",
            f"it belongs in [{KEYS[section]}]",
        )
    return SettingError(f"{name}: there is no section [{section}]", did_you_mean(section, SECTIONS))


# Settings that the defaults of others depend on: they are read before all values are checked.
_READ_FIRST = ("model", "preset", "generated", "objective", "task", "base")


def _check_read_first(values: dict[str, dict[str, Any]]) -> None:
    """Refuses numbers, lists and tables where a word decides which defaults hold."""
    _check_words({key: values[KEYS[key]].get(key) for key in _READ_FIRST})


def _check_words(settings: Mapping[str, Any]) -> None:
    for key in _READ_FIRST:
        value = settings.get(key)
        if value is not None and not isinstance(value, str | Path):
            raise SettingError(
                f"{key} = {value!r} is not a string", f'write it in quotes: {key} = "…"'
            )


def _choose_size(model: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """`--preset` replaces the size in a recipe's NAME:SIZE; with `--model` it must agree."""
    size = changes.get("preset")
    if size is None:
        return
    name, _, named_size = str(changes.get("model") or "").partition(":")
    if named_size and named_size != size:
        raise SettingError(
            f"{name} cannot be both {named_size!r} and {size!r}", "give its size once: NAME:SIZE"
        )
    if "model" in model:
        model["model"] = model["model"].partition(":")[0]


def _without_replaced_pairs(data: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The data of a recipe without its two files where a flag names one, or the reverse."""
    replaced = set()
    for before in ("", "valid_", "test_"):
        sides = [f"{before}{side}" for side in SIDES]
        if f"{before}pairs" in changes:
            replaced.update(sides)
        elif any(side in changes for side in sides):
            replaced.add(f"{before}pairs")
    return {key: value for key, value in data.items() if key not in replaced}


def _add_generated_defaults(values: dict[str, dict[str, Any]]) -> None:
    """Words as tokens, and classes where the task has them, below what is set."""
    # The tokens of these tasks have spaces between them.
    values["tokens"].setdefault("tokenizer", "words")
    if parse_generated_task(values["data"]["generated"]).kind == "classify":
        values["train"].setdefault("objective", "classify")


def _add_objective(values: dict[str, dict[str, Any]]) -> None:
    """Where no objective is named, that of the model."""
    if "objective" in values["train"]:
        return
    task = values["tune"].get("task")
    if task is not None:
        values["train"]["objective"] = TASKS.get(task, task)
        return
    model = values["model"].get("model")
    if model is not None:
        has_text = values["data"].get("text") is not None
        values["train"]["objective"] = objective_of_model(model, has_text)


def objective_of_model(model: str, has_text: bool) -> str:
    """The objective of a run that names NAME[:SIZE] only; `has_text` where its data is one text."""
    # Imported late: the families come with torch.
    from regard.families import presets

    return objective_of(model.partition(":")[0], presets.about(model).kind, has_text)


def _add_finetuning_defaults(values: dict[str, dict[str, Any]]) -> None:
    """The defaults of fine-tuning, below what is set."""
    objective = values["train"].get("objective")
    if objective is None:
        raise SettingError(
            "fine-tuning needs an objective",
            f"give --objective: {', '.join(OBJECTIVES)}",
        )
    defaults: dict[str, Any] = {
        **FINETUNING_DEFAULTS,
        "metric": objective_settings(objective).finetuning_metric,
    }
    if values["tune"].get("lora"):
        defaults["learning_rate"] = LORA_LEARNING_RATE
    values["train"] = {**defaults, **values["train"]}
    if "steps" not in values["train"]:
        values["tune"].setdefault("epochs", FINETUNING_EPOCHS)


def applicable_settings(settings: Mapping[str, Any], model: str | None) -> dict[str, Any]:
    """The model settings of a recipe that another model than the recipe's can take.

    A baseline takes what it shares with a Transformer, and nothing else.
    """
    name = (model or "").partition(":")[0]
    if name in LINEAR_FORECASTERS:
        return {key: value for key, value in settings.items() if key in ("horizon", "forecast")}
    if not is_baseline(name) or is_baseline(settings.get("model")):
        return dict(settings)
    return {key: value for key, value in settings.items() if key not in TRANSFORMER_ONLY}


def choose(
    recipe: str | Path | None, changes: Mapping[str, Any], data_root: str | None = None
) -> tuple[Recipe, str]:
    """The recipe a user asked for, and a name for the run.

    Without a recipe: the user's files with the defaults, or a recipe that generates its data.
    """
    if recipe == "":
        raise SettingError("the name of the recipe is empty", "give one, or leave it out")
    _check_words(changes)
    if data_root is not None and not recipe:
        raise SettingError(
            "--data-dir is the folder of a recipe's files, but no recipe is given",
            "name one; your own files are given by --data, --text, --pairs, --images and the like",
        )
    if (data := changes.get("data")) is not None:
        key = data_key(recipe, changes)
        if changes.get(key) is not None:
            raise SettingError(f"`data` and `{key}` are both training data", "give one of them")
        changes = {name: value for name, value in changes.items() if name != "data"} | {key: data}
    name: str | Path | None = recipe
    data_keys = {*DATA_KEYS.values(), "source", "files", "generated"}
    has_files = any(key in changes for key in data_keys)
    if not name and not has_files:
        name = _recipe_without_files(changes)
    if not name:
        return load(None, changes, data_root), "run"
    return load(name, changes, data_root), Path(name).stem


def data_key(recipe: str | Path | None, changes: Mapping[str, Any]) -> str:
    """The setting that names the training data of a run, by what its objective learns from."""
    objective = changes.get("objective")
    if objective is None and recipe:
        section = _read(recipe).get("train")
        objective = section.get("objective") if isinstance(section, dict) else None
    if objective is None and changes.get("model") is not None:
        # A text is the simplest data: what the model learns from it decides.
        objective = objective_of_model(changes["model"], has_text=True)
    return "pairs" if objective is None else DATA_KEYS[objective_settings(objective).data]


def _recipe_without_files(changes: Mapping[str, Any]) -> str | None:
    """The recipe that generates what a run learns; None where the defaults do, or a file lacks."""
    objective = changes.get("objective")
    model = changes.get("model")
    if objective is None and model is not None:
        objective = objective_of_model(model, has_text=False)
    return {None: "builtin", "translate": "builtin", "stories": "stories"}.get(objective)


def _resolve_paths(
    values: dict[str, dict[str, Any]], name: str | Path, data_root: str | None
) -> None:
    """Puts the data root before the relative file names of a recipe."""
    paths = [
        (section, key)
        for section, keys in FILE_KEYS.items()
        for key in keys
        if key in values[section] and str(values[section][key]) != "-"  # standard input
    ]
    if not paths:
        return
    root = data_root or os.environ.get("REGARD_DATA") or None
    if root is None and str(name) in packaged():
        # A recipe of the package has no data beside it.
        raise SettingError(
            f"the recipe {name!r} reads files, but no data root is set",
            "give --data-dir DIR, or set REGARD_DATA",
        )
    for section, key in paths:
        value = values[section][key]
        if value == "":
            raise SettingError(f"[{section}] {key} is empty", "give a path, or leave the key out")
        if isinstance(value, str):  # anything else is refused with the other values
            values[section][key] = below(root or Path(name).parent, value)


def _read(name: str | Path) -> dict[str, Any]:
    recipes = packaged()
    path = recipes.get(str(name), Path(name))
    if not path.is_file():
        hint = did_you_mean(str(name), recipes)
        raise SettingError(
            f"there is no recipe {str(name)!r}",
            f"give the path of a TOML file, or a packaged one; {hint}",
        )
    try:
        return tomllib.loads(disk.read_bytes(path).decode("utf-8-sig"))  # editors may add a mark
    except UnicodeDecodeError as error:
        raise SettingError(f"{path} is not UTF-8: {error}", "save it as UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise SettingError(f"{path} is not valid TOML: {error}", "correct that line") from None
