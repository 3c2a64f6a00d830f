"""What a run says of its settings before its first step: its schedule, and what will not work."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from regard.data.file_access import split_location
from regard.training.parallel.ranks import Ranks
from regard.training.recipe.schema import Recipe

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
        f"schedule: {train.steps:,} steps, {train.warmup:,} of them to warm up, "
        f"batches of {train.batch_tokens:,} positions"
    )
    for warning in _warnings(recipe, device, ranks):
        say(f"warning: {warning}")


def _warnings(recipe: Recipe, device: torch.device, ranks: Ranks) -> Iterator[str]:
    train = recipe.train
    # A warm-up of one step has the full rate at once.
    if train.warmup >= max(2, train.steps):
        yield (
            f"the warm-up of {train.warmup:,} steps does not end within the {train.steps:,} steps "
            "of the run: the learning rate stays small, and little is learnt\n"
            "  → give a smaller --warmup, or more --steps"
        )
    if train.compile and device.type != "cuda":
        yield f"--compile is for GPUs: on {device} nothing is compiled"
    strategy = recipe.parallel.strategy
    if strategy != "ddp" and not ranks.several:
        yield (
            f"--strategy {strategy} shares a model among processes, and this is one\n"
            "  → start several with --processes N"
        )
    shared = _validated_on_training_data(recipe)
    if shared is not None:
        yield (
            f"{shared} is both learnt from and validated on: the scores do not say how the model "
            "does on what it has not seen"
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
