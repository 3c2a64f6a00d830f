"""A training job: the objective of a run, once its data is prepared and its model built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from regard.metrics.scores import AnyScore
from regard.training.objectives.objective import Objective
from regard.training.recipe.schema import Recipe


@dataclass(frozen=True)
class Job:
    """`export` writes the weights now in the model into the run folder; `scores` evaluates them."""

    objective: Objective
    d_model: int
    export: Callable[[], None]
    scores: Callable[[], dict[str, AnyScore]]


def pad_to_multiple_of(recipe: Recipe, device: torch.device) -> int:
    """What lengths are rounded up to: on a GPU, so that few shapes occur."""
    default = 8 if device.type == "cuda" else 1
    return recipe.train.multiple or default
