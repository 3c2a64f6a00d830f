"""Recipes from files, flags and Python: packaged ones by name, defaults, and paths.

Flags override the recipe, and the recipe overrides the defaults of `sections`.
"""

from __future__ import annotations

import importlib.resources
import os
from collections import ChainMap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regard.data.file_access import below
from regard.system import disk
from regard.system.errors import SettingError, did_you_mean, nearest_setting
from regard.training.recipe.consistency import (
    STARTING_POINT,
    check_changes,
    parse,
    validated,
)
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
    is_baseline,
)
from regard.training.recipe.sections import TRANSFORMER_ONLY

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
LORA_LEARNING_RATE = 5e-4  # few parameters, which start at zero, have farther to go
_LENGTHS = ("steps", "epochs", "minutes")  # of a run
_INTERVALS = ("warmup_steps", "validate_every", "save_every")
LINEAR_FORECASTERS = ("dlinear", "nlinear")


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
    overrides = _by_section(changes)
    values: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    if name is not None:
        values |= _of_file(name, data_root)
    # `--model gru` on a recipe of a Transformer: its heads and the like do not apply.
    values["model"] = applicable_settings(values["model"], changes.get("model"))
    if changes.get("spec") is not None:  # in place of all that the recipe has
        values["model"] = {
            key: values["model"][key] for key in STARTING_POINT & values["model"].keys()
        }
    _choose_size(values["model"], changes)
    for before in ("", "valid_", "test_"):
        # The two files of pairs in a recipe, where a flag names one, or the reverse.
        sides = {f"{before}source", f"{before}target"}
        if f"{before}pairs" in changes:
            values["data"] = {k: v for k, v in values["data"].items() if k not in sides}
        elif sides & changes.keys():
            values["data"].pop(f"{before}pairs", None)
    _choose_length(values, changes)
    for section, settings in overrides.items():
        values[section] |= settings
    generated = values["data"].get("generated")
    if generated is not None:
        kind = parse_generated_task(generated).kind
        # The tokens of the tasks have spaces between them, those of texts have none.
        values["tokens"].setdefault("tokenizer", "characters" if kind == "texts" else "words")
        if kind != "pairs":
            values["train"].setdefault("objective", {"texts": "causal"}.get(kind, kind))
    # Where no objective is named, that of the model.
    has_text = values["data"].get("text") is not None
    objective = _objective(ChainMap(*values.values()), has_text)
    if objective is not None:
        values["train"].setdefault("objective", objective)
    if values["tune"].get("base") is not None:
        _add_finetuning_defaults(values)
    # Only now, with all values in place: some checks compare sections.
    recipe = parse(values)
    check_changes(recipe, changes)
    return recipe


def _by_section(changes: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Settings, each of its type, by their sections: keys are unique across these."""
    values: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    for key, value in changes.items():
        if key not in KEYS:
            repair = nearest_setting(key, [*KEYS, "out"])
            raise SettingError(f"there is no setting {key!r}", repair)
        values[KEYS[key]][key] = value
    validated(values)
    return values


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


def _choose_length(values: dict[str, dict[str, Any]], changes: Mapping[str, Any]) -> None:
    """The length of a run that is named replaces that of its recipe."""
    named = [key for key in _LENGTHS if changes.get(key) is not None]
    if len(named) > 1:
        raise SettingError(f"{' and '.join(named)} cannot be combined", "give one of them")
    # What the recipe has for its number of steps says nothing of those that fit into some minutes.
    besides = _INTERVALS if named == ["minutes"] else ()
    for key in (*_LENGTHS, *besides) if named else ():
        values[KEYS[key]].pop(key, None)


def _objective(settings: Mapping[str, Any], has_text: bool) -> str | None:
    """The objective that settings name: by itself, by its task, or by their model.

    `has_text` where the data is one text, or may be.
    """
    named = settings.get("objective") or settings.get("task")
    model = settings.get("model")
    spec = settings.get("spec")
    if named is not None:
        return TASKS.get(named, named)
    if spec is not None:
        # Imported late, as the families are.
        from regard.training import model_spec, setup

        return setup.objective_of_spec(model_spec.read_file(Path(spec).expanduser()), settings)
    if model is None:
        return None
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
    if "steps" not in values["train"] and values["tune"].get("minutes") is None:
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
    if data_root is not None and not recipe:
        raise SettingError(
            "--data-dir is the folder of a recipe's files, but no recipe is given",
            "name one; your own files are given by --data, --text, --pairs, --images and the like",
        )
    changes = dict(changes)
    data = changes.pop("data", None)
    _by_section(changes)
    named = {**ChainMap(changes, *([] if recipe is None else _read(recipe).values()))}
    splits = {"": data}
    if not named.get("files"):  # beside these, both are settings of fine-tuning
        splits |= {f"{split}_": changes.pop(split, None) for split in ("valid", "test")}
    files = {before: file for before, file in splits.items() if file is not None}
    if files:
        # A text is the simplest data: what the model learns from it decides.
        objective = _objective(named, has_text=True)
        kind = "pairs" if objective is None else DATA_KEYS[objective_settings(objective).data]
    for before, file in files.items():
        flag = before[:-1] or "data"
        key = f"{before}{kind}"
        if key not in KEYS:
            raise SettingError(f"`{kind}` has all splits in it", f"leave `{flag}` out")
        if changes.get(key) is not None:
            raise SettingError(f"`{flag}` and `{key}` are the same data", "give one of them")
        changes[key] = file
    if not recipe and not {*DATA_KEYS.values(), "source", "files", "generated"} & changes.keys():
        # The recipe that generates what a run learns.
        objective = _objective(changes, has_text=False)
        recipe = {None: "builtin", "translate": "builtin", "stories": "stories"}.get(objective)
    return load(recipe or None, changes, data_root), Path(recipe or "run").stem


def _of_file(name: str | Path, data_root: str | None) -> dict[str, dict[str, Any]]:
    """The settings of a recipe's file by section, its files with the data root before them."""
    values = _read(name)
    paths = [
        (section, key)
        for section, keys in FILE_KEYS.items()
        for key in keys
        if values.get(section, {}).get(key, "-") not in ("-", "")  # standard input
    ]
    root = data_root or os.environ.get("REGARD_DATA")
    if paths and not root and str(name) in packaged():
        # A recipe of the package has no data beside it.
        raise SettingError(
            f"the recipe {name!r} reads files, but no data root is set",
            "give --data-dir DIR, or set REGARD_DATA",
        )
    for section, key in paths:
        values[section][key] = below(root or Path(name).parent, values[section][key])
    return values


def _read(name: str | Path) -> dict[str, dict[str, Any]]:
    """The settings of a recipe's file by section, each of its type."""
    recipes = packaged()
    path = recipes.get(str(name), Path(name))
    if not path.is_file():
        hint = did_you_mean(str(name), recipes)
        raise SettingError(
            f"there is no recipe {str(name)!r}",
            f"give the path of a TOML file, or a packaged one; {hint}",
        )
    values = disk.read_toml(path, SettingError)
    validated(values)
    return values
