"""What a run needs of its objective, once the data is prepared and the model built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from regard.metrics.scores import AnyScore
from regard.training.objectives.objective import Objective
from regard.training.recipe.schema import Recipe


@dataclass(frozen=True)
class Job:
    """`export` writes the weights now in the model into the run folder; `scores` says how good they are."""

    task: Objective
    d_model: int
    export: Callable[[], None]
    scores: Callable[[], dict[str, AnyScore]]


def multiple(recipe: Recipe, where: torch.device) -> int:
    """What lengths are rounded up to: on a GPU, few shapes occur then."""
    return recipe.train.multiple or (8 if where.type == "cuda" else 1)
