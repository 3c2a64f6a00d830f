"""The parallel strategy of a recipe, and what it cannot be used for."""

from __future__ import annotations

from torch import nn

from regard.core.mixture_of_experts import MixtureOfExperts
from regard.core.universal_transformer import UniversalStack
from regard.errors import SettingError
from regard.training.objectives.objective import CarriesState, Objective
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
    if isinstance(objective, CarriesState):
        reason = "each row goes on from the state of the batch before it"
    for part in objective.model.modules():
        reason = reason or _dependence(part)
    if reason is not None:
        raise SettingError(
            f"several ranks cannot share a batch here: {reason}", "train in one process"
        )


def _dependence(part: nn.Module) -> str | None:
    if isinstance(part, MixtureOfExperts):
        return "experts have room for a share of the tokens of the whole batch"
    if isinstance(part, UniversalStack) and part.universal.halt is not None:
        return "the ponder cost is a mean over the positions of the whole batch"
    return None
