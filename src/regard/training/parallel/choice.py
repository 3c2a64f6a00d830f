"""The parallel strategy of a recipe, and what it cannot be used for."""

from __future__ import annotations

from regard.system.errors import SettingError
from regard.training.objectives.objective import Objective
from regard.training.parallel.strategy import DataParallel, Strategy
from regard.training.recipe.schema import Recipe


def make_strategy(recipe: Recipe, objective: Objective) -> Strategy:
    """How the ranks of a run share its work; in one process, not at all."""
    ranks = objective.setup.ranks
    if not ranks.several:
        return Strategy(objective)
    if ranks.data_size > 1:
        _check_rows_are_independent(objective)
    # Imported late: what a run does not use need not be there in its version of PyTorch.
    match recipe.parallel.strategy:
        case "fsdp":
            from regard.training.parallel.fully_sharded import FullySharded

            return FullySharded(objective, ranks, recipe.train.precision)
        case "tensor":
            from regard.training.parallel.tensor_parallel import TensorParallel

            return TensorParallel(objective, ranks)
        case _:
            return DataParallel(objective, ranks)


def _check_rows_are_independent(objective: Objective) -> None:
    """Refuses losses that are no sum over rows, and that ranks cannot put together."""
    reason = objective.indivisible
    if reason is not None:
        raise SettingError(
            f"several ranks cannot share a batch here: {reason}", "train in one process"
        )
