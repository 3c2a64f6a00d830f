"""The settings that are searched, in the order that matters, and the candidates for each.

The learning rate decides most; warm-up, batch and dropout follow, and the size is last, because
the best values of the others change little with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from regard.lab.tune.successive_halving import Stage
from regard.system.errors import SettingError, did_you_mean
from regard.training.engine.optimizer import lr_schedule
from regard.training.recipe.schema import Recipe

# Factors of the present value, which comes first: it wins where nothing is better.
RATE_FACTORS = (1.0, 0.5, 2.0, 0.25, 4.0)
WARMUP_FACTORS = (1.0, 0.25, 4.0)
BATCH_FACTORS = (1.0, 0.5, 2.0)
DROPOUTS = (0.0, 0.1, 0.3)
DEPTH_FACTORS = (1.0, 0.5, 2.0)
DEFAULT_DROPOUT = 0.1  # of most presets


@dataclass(frozen=True)
class Sizes:
    """What candidates depend on besides the recipe: the model, and the longest run."""

    d_model: int
    layers: int
    updates: int


def _learning_rates(recipe: Recipe, sizes: Sizes) -> tuple[Any, ...]:
    # Of a schedule without a peak of its own (the paper's), the rate that warm-up ends with.
    peak = recipe.train.learning_rate or lr_schedule(recipe, sizes.d_model)(
        recipe.train.warmup_steps
    )
    # Four digits: a recipe is read by people.
    return tuple(float(f"{peak * factor:.4g}") for factor in RATE_FACTORS)


def _warmups(recipe: Recipe, sizes: Sizes) -> tuple[Any, ...]:
    return _whole(warmup(recipe, sizes.updates), WARMUP_FACTORS)


def warmup(recipe: Recipe, updates: int) -> int:
    """The warm-up of the recipe, or a tenth of the longest run where it has none, or a longer."""
    tenth = max(1, updates // 10)
    if "warmup_steps" in recipe.train.model_fields_set and recipe.train.warmup_steps < updates:
        return recipe.train.warmup_steps
    return tenth


def _batches(recipe: Recipe, sizes: Sizes) -> tuple[Any, ...]:
    return _whole(recipe.train.batch_tokens, BATCH_FACTORS)


def _dropouts(recipe: Recipe, sizes: Sizes) -> tuple[Any, ...]:
    present = recipe.model.dropout
    if present is None:
        present = DEFAULT_DROPOUT
    return tuple(dict.fromkeys((present, *DROPOUTS)))


def _depths(recipe: Recipe, sizes: Sizes) -> tuple[Any, ...]:
    # Depth and not width, which heads and tied matrices would have to follow.
    return _whole(sizes.layers, DEPTH_FACTORS)


def _whole(value: int, factors: Sequence[float]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(max(1, round(value * factor)) for factor in factors))


# The word of --order → the key of a recipe, and its candidates.
SETTINGS: dict[str, tuple[str, Callable[[Recipe, Sizes], tuple[Any, ...]]]] = {
    "rate": ("learning_rate", _learning_rates),
    "warmup": ("warmup_steps", _warmups),
    "batch": ("batch_tokens", _batches),
    "dropout": ("dropout", _dropouts),
    "size": ("layers", _depths),
}
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
        key, candidates = SETTINGS[word]
        result.append(Stage(key, candidates(recipe, sizes)))
    if not result:
        raise SettingError(
            "--order has no setting that can be tuned", f"choose from: {', '.join(SETTINGS)}"
        )
    return result
