"""What a run says of its settings before its first step: its schedule, and what will not work."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from regard.data.file_access import split_location
from regard.training.parallel.ranks import Ranks
from regard.training.recipe.schema import Recipe

_FEW_STEPS = 30  # with fewer, a new head has hardly left its random weights
# The settings that name what a model learns from, and what it is validated on.
_SPLITS = (
    ("source", "valid_source"),
    ("pairs", "valid_pairs"),
    ("text", "valid_text"),
    ("images", "valid_images"),
    ("sounds", "valid_sounds"),
)


def say_all(recipe: Recipe, device: torch.device, ranks: Ranks, say: Callable[[str], None]) -> None:
    """Says the schedule, and warns of settings that have no effect, or an unwanted one."""
    train = recipe.train
    say(
        f"schedule: {train.steps:,} steps, {train.warmup_steps:,} of them warm-up, "
        f"batches of {train.batch_tokens:,} positions"
    )
    for warning in _warnings(recipe, device, ranks):
        say(f"warning: {warning}")


def _warnings(recipe: Recipe, device: torch.device, ranks: Ranks) -> Iterator[str]:
    train = recipe.train
    # A warm-up of one step has the full rate at once.
    if train.warmup_steps >= max(2, train.steps):
        yield (
            f"the warm-up of {train.warmup_steps:,} steps does not end within the {train.steps:,} "
            "steps of the run: the learning rate stays low, and the model learns little\n"
            "  → use a smaller --warmup-steps, or more --steps"
        )
    if train.compile and device.type != "cuda":
        yield f"--compile has no effect on {device}: it only works on GPUs"
    strategy = recipe.parallel.strategy
    if strategy != "ddp" and not ranks.several:
        yield (
            f"--strategy {strategy} needs several processes, and only one is running\n"
            "  → start several with --processes N"
        )
    data = recipe.data
    if data.source is not None and data.source == data.target:
        yield (
            f"{data.source} is both --source and --target: the model learns to copy\n"
            "  → give the translations as --target"
        )
    # Fine-tuning counts epochs: of a few examples these are a few updates.
    if recipe.tune.base is not None and train.steps < _FEW_STEPS:
        yield (
            f"{train.steps:,} steps change a model very little\n"
            "  → use more --epochs or --steps, or more data"
        )
    shared = _validated_on_training_data(recipe)
    if shared is not None:
        yield (
            f"{shared} is both training and validation data: the scores do not show how the model "
            "generalizes to unseen data"
        )


def _validated_on_training_data(recipe: Recipe) -> str | None:
    """A file that is among the training data and among the validation data."""
    pairs = [(getattr(recipe.data, key), getattr(recipe.data, valid)) for key, valid in _SPLITS]
    pairs += [(file, recipe.tune.valid) for file in recipe.tune.files]
    for trained, validated in pairs:
        if trained is None or validated is None:
            continue
        both = set(split_location(trained)) & set(split_location(validated))
        if both:
            return min(both)
    return None
