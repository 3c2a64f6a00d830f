"""The ratio of updates to weights, from the state of Adam: how far one step moves a matrix.

About 1e-3 is usual. The averages of Adam are at hand between steps and in every checkpoint, so that
nothing has to be recorded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard.training.diagnostics.finding import Finding
from regard.training.diagnostics.log_checks import MIN_LINES, Baseline
from regard.training.diagnostics.run_log import RunLog, median

HIGHEST = 0.1  # 100 times the usual one: a matrix is another one after ten steps
LOWEST = 1e-6  # a thousandth of it: after a thousand steps a matrix is what it was
DECAYED = 0.01  # of the highest rate: the end of a schedule, where small updates are meant


@dataclass(frozen=True)
class ParameterUpdate:
    """The next update of a parameter by its running averages, as root mean squares."""

    ratio: float  # of the update to the weights
    gradient: float


@torch.no_grad()
def parameter_updates(
    parameters: Mapping[str, nn.Parameter],
    state: Mapping[str, Tensor],
    learning_rate: float,
    betas: tuple[float, float],
) -> dict[str, ParameterUpdate]:
    """By name, of the matrices that have been updated; `state` is `Optimizer.state()`."""
    updates: dict[str, ParameterUpdate] = {}
    for name, parameter in parameters.items():
        if parameter.ndim < 2 or f"exp_avg/{name}" not in state:
            continue
        count = float(state[f"step/{name}"])
        first = state[f"exp_avg/{name}"] / (1 - betas[0] ** count)  # bias-corrected m̂
        second = state[f"exp_avg_sq/{name}"] / (1 - betas[1] ** count)  # v̂
        update = learning_rate * _rms(first / (second.sqrt() + 1e-12))
        weight = max(_rms(parameter.to(first.device)), 1e-12)
        updates[name] = ParameterUpdate(update / weight, float(second.mean().sqrt()))
    return updates


def _rms(tensor: Tensor) -> float:
    return float(tensor.double().square().mean().sqrt())


def check_rate(ratio: float, log: RunLog, baseline: Baseline) -> Iterator[Finding]:
    """A rate far from the usual, in a run that has learnt less than the label frequencies."""
    if baseline.entropy is None or len(log.steps) < MIN_LINES or log.last_step <= baseline.warmup:
        return
    final = log.final_loss()
    if not final > 0.97 * baseline.entropy:
        return
    evidence = (
        f"one update changes the weights by {ratio:.1e} of their size, about 1e-3 is usual; "
        f"the loss is {final:.2f}, that of the label frequencies {baseline.entropy:.2f}"
    )
    if ratio > HIGHEST:
        yield Finding(
            "rate_too_high", evidence, "the learning rate is too high", "divide it by 10", 0.7
        )
    elif ratio < LOWEST and not _has_decayed(log):
        yield Finding(
            "rate_too_low", evidence, "the learning rate is too low", "multiply it by 10", 0.7
        )


def _has_decayed(log: RunLog) -> bool:
    return log.learning_rates[-1] < DECAYED * max(log.learning_rates)


def typical_ratio(updates: Mapping[str, ParameterUpdate]) -> float:
    """The median over the matrices."""
    return median(update.ratio for update in updates.values())
