"""The time of an update, measured by a few that are undone."""

from __future__ import annotations

import copy
import itertools
import time
from functools import partial

import torch

from regard.training.engine.optimizer import autocast, make_optimizer
from regard.training.engine.train_step import Step
from regard.training.objectives.objective import Objective
from regard.training.parallel.strategy import Strategy

MOST_UPDATES = 20
LONGEST = 10.0  # seconds, after which no further update is begun


def seconds_of_update(objective: Objective) -> float:
    """The mean over the first updates of a run, but for the very first one, which takes longer."""
    model = objective.model
    settings = objective.setup.recipe.train
    device = objective.setup.device
    weights = copy.deepcopy(model.state_dict())
    strategy = Strategy(objective)
    precision = partial(autocast, settings.precision, device)
    step = Step(strategy.loss, make_optimizer(strategy), precision, cuda_graphs=False)
    batches = (batch for _, batch in objective.batches(0, 0))
    model.train()
    begun = time.perf_counter()
    ends: list[float] = []
    while len(ends) < 2 or (len(ends) < MOST_UPDATES and ends[-1] - begun < LONGEST):
        update = list(itertools.islice(batches, settings.accumulate))
        step(update, len(ends) + 1, settings.seed)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        ends.append(time.perf_counter())
    model.zero_grad(set_to_none=True)
    model.load_state_dict(weights)
    return (ends[-1] - ends[0]) / (len(ends) - 1)
