"""The final settings of a run: what nobody has given follows from its data and its model."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from regard.models import Model
from regard.training.objectives.objective import Objective
from regard.training.recipe.schema import Recipe
from regard.training.setup import Setup

EPOCHS = 30  # of a run that names neither steps nor epochs
FEWEST_STEPS = 300
MOST_STEPS = 20_000
PAPER_WARMUP = 4000  # Section 5.3


def resolve(setup: Setup, objective: type[Objective], model: Model, data: Any) -> Objective:
    """The objective of a run, with the final recipe as its setup's; nothing changes that later.

    It is stored in the run folder: a run is resumed with the same numbers.
    """
    unset = setup.run_folder.unset_settings()
    if not unset:
        return objective.create(model, data, setup)
    if "batch_tokens" in unset:
        batch_tokens = objective.fitting_batch_tokens(model, data, setup)
        setup = _with_settings(setup, {"batch_tokens": batch_tokens})
    created = objective.create(model, data, setup)
    updates = math.ceil(created.batches_per_epoch() / setup.recipe.train.accumulate)
    created.setup = _with_settings(setup, _schedule(setup.recipe, unset, updates, created.d_model))
    setup.run_folder.store(created.setup.recipe)
    return created


def _with_settings(setup: Setup, changes: Mapping[str, Any]) -> Setup:
    train = setup.recipe.train.model_copy(update=changes)
    return replace(setup, recipe=setup.recipe.model_copy(update={"train": train}))


def _schedule(recipe: Recipe, unset: Collection[str], updates: int, d_model: int) -> dict[str, Any]:
    """The unset ones of the settings that follow from the number of updates in an epoch."""
    train = recipe.train
    epochs = recipe.tune.epochs
    steps = train.steps
    if epochs is not None:
        steps = max(1, math.ceil(epochs * updates))
    elif "steps" in unset:
        steps = min(MOST_STEPS, max(FEWEST_STEPS, EPOCHS * updates))
    values = {
        "steps": steps,
        "warmup_steps": max(1, int(recipe.tune.warmup_ratio * steps)),
        "log_every": min(train.log_every, updates),
    }
    if epochs is not None:
        values |= dict.fromkeys(("validate_every", "save_every"), min(updates, steps))
    else:
        values["warmup_steps"] = min(PAPER_WARMUP, values["warmup_steps"])
        values["validate_every"] = max(1, min(train.validate_every, steps // 10))
        values["save_every"] = max(1, min(train.save_every, steps // 10))
    changes: dict[str, Any] = {key: value for key, value in values.items() if key in unset}
    by_equation = train.schedule == "paper" and train.learning_rate is None
    if "warmup_steps" in changes and by_equation:
        # Equation 3 has a higher peak for a shorter warm-up: that of the paper's own stays.
        changes["learning_rate"] = (d_model * PAPER_WARMUP) ** -0.5
    return changes
