"""The settings that are searched, in the order that matters, and the candidates for each.

The learning rate decides most; warm-up, batch and dropout follow, and the size is last, because
the best values of the others change little with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from regard.lab.tune.successive_halving import Stage
from regard.system.errors import SettingError, did_you_mean
from regard.training.engine.optimizer import lr_schedule
from regard.training.recipe.schema import Recipe

# The word of --order → the key of a recipe.
SETTINGS = {
    "rate": "learning_rate",
    "warmup": "warmup_steps",
    "batch": "batch_tokens",
    "dropout": "dropout",
    "size": "layers",  # and not width, which heads and tied matrices would have to follow
}
# Candidates: factors of the present value, which comes first and wins where nothing is better.
FACTORS = {
    "learning_rate": (1.0, 0.5, 2.0, 0.25, 4.0),
    "warmup_steps": (1.0, 0.25, 4.0),
    "batch_tokens": (1.0, 0.5, 2.0),
    "layers": (1.0, 0.5, 2.0),
}
DROPOUTS = (0.0, 0.1, 0.3)
DEFAULT_DROPOUT = 0.1  # of most presets


@dataclass(frozen=True)
class Sizes:
    """What candidates depend on besides the recipe: the model, and the longest run."""

    d_model: int
    layers: int
    updates: int


def warmup(recipe: Recipe, updates: int) -> int:
    """The warm-up of the recipe, or a tenth of the longest run where it has none, or a longer."""
    tenth = max(1, updates // 10)
    if "warmup_steps" in recipe.train.model_fields_set and recipe.train.warmup_steps < updates:
        return recipe.train.warmup_steps
    return tenth


def _candidates(key: str, recipe: Recipe, sizes: Sizes) -> tuple[Any, ...]:
    train = recipe.train
    if key == "dropout":
        present = recipe.model.dropout
        if present is None:
            present = DEFAULT_DROPOUT
        return tuple(dict.fromkeys((present, *DROPOUTS)))
    if key == "learning_rate":
        # Of a schedule without a peak of its own (the paper's), the rate that warm-up ends with.
        peak = train.learning_rate or lr_schedule(recipe, sizes.d_model)(train.warmup_steps)
        # Four digits: a recipe is read by people.
        return tuple(float(f"{peak * factor:.4g}") for factor in FACTORS[key])
    value = {
        "warmup_steps": warmup(recipe, sizes.updates),
        "batch_tokens": train.batch_tokens,
        "layers": sizes.layers,
    }[key]
    return tuple(dict.fromkeys(max(1, round(value * factor)) for factor in FACTORS[key]))


# What the folder of a model that is fine-tuned, or a spec, has decided already.
_ARCHITECTURE = ("dropout", "size")


def stages(recipe: Recipe, order: Sequence[str], sizes: Sizes) -> list[Stage]:
    """The stages of a search, in this order."""
    fixed = recipe.is_finetuning or recipe.model.spec is not None
    result = []
    for word in order:
        if word not in SETTINGS:
            raise SettingError(f"unknown setting {word!r} in --order", did_you_mean(word, SETTINGS))
        if order.count(word) > 1:
            raise SettingError(f"{word} is listed twice in --order", "list each setting once")
        if fixed and word in _ARCHITECTURE:
            continue
        result.append(Stage(SETTINGS[word], _candidates(SETTINGS[word], recipe, sizes)))
    if not result:
        raise SettingError(
            "--order has no setting that can be tuned", f"choose from: {', '.join(SETTINGS)}"
        )
    return result
