"""`regard.train` and `regard.finetune`: from arguments to a recipe that is run."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from regard import spec as specs
from regard.evaluation.evaluation import MetricChoice
from regard.models import Model
from regard.system.errors import RegardWarning, SettingError, did_you_mean
from regard.training import in_memory, model_spec, run_evaluation
from regard.training.objectives.objective import Objective
from regard.training.recipe import loading
from regard.training.recipe.objectives import OBJECTIVES
from regard.training.result import Result
from regard.training.run import OnStep, Options, launch
from regard.training.run_folder import RunFolder
from regard.training.setup import TYPES, DataSource, Parts, check_types, objective_of_spec


def train(
    recipe: str | Path | Mapping[str, Any] | None = None,
    *,
    model: specs.Model | Model | str | None = None,
    data: DataSource | str | Path | in_memory.Rows | None = None,
    objective: type[Objective] | str | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    on_step: OnStep | None = None,
    metrics: MetricChoice = (),
    **changes: Any,
) -> Result:
    """Trains a model and returns its scores and its run folder.

    Example:
        `regard.train("builtin")`, or `regard.train(model="gpt2:tiny", data="notes.txt",
        steps=500)`.

    Args:
        recipe: Name of a built-in recipe, path of a TOML file, or a mapping of settings.
        model: Name of an architecture with its size (`gpt2:small`), a spec instead of the
            recipe's, or a loaded model, which is trained itself unless it needs a new head.
        data: A file; rows in memory: a list of texts, tuples or dictionaries, a pandas frame, a
            table of `datasets`; or an object with `splits()`.
        objective: Name of a training objective, or a subclass of `Objective`; of a loaded model, by
            default its own.
        out: Run folder; by default `runs/NAME`.
        overwrite: Whether a run that is in `out` is removed.
        on_step: Called after every update with the training loop. It may read `loop.progress`,
            and end the run with `loop.request_stop()`.
        metrics: Computed after training, in addition to the scores of the objective, on the test
            set or without one on the validation set: names (`bleu`, `top_k:5`) or `Metric`
            objects.
        **changes: Single settings, which override the recipe: `steps=500`, `learning_rate=1e-3`;
            `valid` and `test` are files or rows like `data`.

    Raises:
        TrainingInterrupted: The run was stopped by `request_stop()`, Ctrl-C or a signal. Its
            state is saved; `regard.resume` continues it.
    """
    if isinstance(recipe, Mapping):
        changes = {**recipe, **changes}
        recipe = None
    with in_memory.as_files({**changes, "data": data}) as changes:
        data = changes.pop("data")
        check_types(
            recipe=recipe, model=model, data=data, objective=objective, out=out, on_step=on_step
        )
        if isinstance(model, Model) and recipe is None and objective is None:
            # The first of its tasks that it can be trained for.
            trainable = next(filter(OBJECTIVES.get, model.evaluations), None)
            objective = changes.get("objective", trainable)
        parts = _parts(model, data, objective, changes)
        if recipe is None and "objective" not in changes and parts.spec is not None:
            changes["objective"] = objective_of_spec(parts.spec, changes)
        parsed, name = loading.choose(recipe, changes)
        if parts.spec is not None:
            parts.objective_of(parsed).check_spec(parts.spec)
            parsed = model_spec.without_architecture(parsed, changes)
        if metrics:
            run_evaluation.check_metrics(parsed, metrics)  # before hours of training
        result = launch(parsed, out, name, overwrite=overwrite, on_step=on_step, parts=parts)
    if not metrics:
        return result
    run_folder = RunFolder(result.folder)
    splits = list(result.scores)
    if not splits and any(run_folder.data.glob("valid*")):
        splits = ["valid"]
    if not splits:
        warnings.warn(
            RegardWarning("no validation or test data to score: `metrics` is empty"),
            stacklevel=2,
        )
    scores = run_evaluation.score_run(run_folder, metrics, splits, parts.kinds)
    return replace(result, metrics=scores)


def _parts(
    model: specs.Model | Model | str | None,
    data: DataSource | str | Path | None,
    objective: type[Objective] | str | None,
    settings: dict[str, Any],
) -> Parts:
    """The parts from outside, whose names the settings receive."""
    opened = model if isinstance(model, Model) else None
    spec = model if isinstance(model, specs.ModelSpec) else None
    if isinstance(model, str):
        settings["model"] = model
    elif opened is not None:
        settings["base"] = _base_name(opened)
    implementation = None
    if isinstance(objective, str):
        settings["objective"] = objective
    elif objective is not None:
        implementation = objective
        settings["objective"] = _name_of(objective)
    source = None
    if isinstance(data, str | Path):
        settings["data"] = str(data)
    elif data is not None:
        source = data
        settings["data"] = type(data).__qualname__  # for the model card
    kinds = specs.own_kinds(spec if opened is None else opened.spec)
    return Parts(source, implementation, kinds, opened, spec)


def _base_name(model: Model) -> str:
    """What a recipe calls a model that was given: its folder, or its class."""
    return str(model.folder or type(model).__qualname__)


def _name_of(objective: type[Objective]) -> str:
    """The objective of a recipe whose data and settings a class from outside has."""
    if not issubclass(objective, Objective) or objective is Objective:
        raise SettingError(
            f"{objective.__name__} is not an objective", f"give {TYPES['objective'][1]}"
        )
    name = getattr(objective, "name", None)
    if name not in OBJECTIVES:
        raise SettingError(
            f"{objective.__name__} has the name {name!r}, which is not an objective's",
            "give it that of the objective whose data and settings it has: "
            + did_you_mean(str(name), OBJECTIVES),
        )
    return objective.name


def finetune(
    model: Model | str | Path,
    task: str,
    data: str | Path | Sequence[str | Path] | in_memory.Rows,
    *,
    out: str | Path | None = None,
    overwrite: bool = False,
    quiet: bool = False,
    on_step: OnStep | None = None,
    kinds: Sequence[type] = (),
    **changes: Any,
) -> Result:
    """Fine-tunes a model: `regard.train`, starting from pretrained weights.

    Example:
        `regard.finetune("bert/", "classify", "train.tsv", valid="dev.tsv", lora=8)`.

    The settings are those of `regard finetune`. `data`, `valid` and `test` are files or rows in
    memory, as in `regard.train`; several files of pairs can have one of `prefixes` each. `on_step`
    and `overwrite` are the same as there. `kinds` are dataclasses of model parts that are defined
    outside the package.
    """
    check_types(base=model, task=task, out=out, on_step=on_step)
    for key in ("base", "files"):
        if key in changes:
            raise SettingError(
                f"`{key}` is not a setting here", "use the arguments `model` and `data`"
            )
    opened = model if isinstance(model, Model) else None
    base = str(model) if opened is None else _base_name(opened)
    parts = Parts(kinds=specs.own_kinds(opened.spec) if opened is not None else kinds, model=opened)
    files = [data] if isinstance(data, str | Path) else data
    is_paths = isinstance(files, Sequence) and all(isinstance(one, str | Path) for one in files)
    with in_memory.as_files(changes if is_paths else {**changes, "data": data}) as values:
        paths = files if is_paths else [values.pop("data")]
        if not paths or not all(isinstance(one, str | Path) for one in paths):
            raise SettingError("`data` is not a file", "give the path of one, or a list of paths")
        splits = {key: str(values[key]) for key in ("valid", "test") if values.get(key) is not None}
        values |= {**splits, "task": task, "base": base, "files": [str(one) for one in paths]}
        recipe = loading.load(None, values)
        options: Options = {"quiet": quiet, "on_step": on_step, "parts": parts}
        return launch(recipe, out, task, overwrite=overwrite, **options)
