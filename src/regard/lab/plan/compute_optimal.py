"""Compute-optimal training: which size and how many tokens make the most of a budget of FLOPs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from regard.system.errors import SettingError

TOKENS_PER_PARAMETER = 20.0  # Hoffmann et al. 2022, approaches 1 and 2, near their largest budgets
FLOPS_PER_PARAMETER_AND_TOKEN = 6.0
# Of some 100,000 parameters. The laws were fitted from 6e18 on, and say little far below.
LEAST_FLOPS = 1e12


@dataclass(frozen=True)
class LossFit:
    """L(N, D) = E + A / N^α + B / D^β."""

    source: str
    irreducible: float  # E
    a: float
    b: float
    alpha: float
    beta: float

    def loss(self, parameters: float, tokens: float) -> float:
        return self.irreducible + self.a / parameters**self.alpha + self.b / tokens**self.beta

    def optimum(self, flops: float) -> tuple[float, float]:
        """N and D with 6 N D = `flops` and the lowest loss (equation 4 of the paper)."""
        product = flops / FLOPS_PER_PARAMETER_AND_TOKEN
        ratio = (self.alpha * self.a / (self.beta * self.b)) ** (1 / (self.alpha + self.beta))
        parameters = ratio * product ** (self.beta / (self.alpha + self.beta))
        return parameters, product / parameters


# Approach 3 as published (Hoffmann et al. 2022), and fitted again by Besiroglu et al. (2024), who
# found that the published coefficients do not follow from the paper's own data.
PUBLISHED = LossFit("approach 3 as published", 1.69, 406.4, 410.7, 0.34, 0.28)
REFITTED = LossFit("approach 3, refitted", 1.8172, 482.01, 2085.43, 0.3478, 0.3658)


@dataclass(frozen=True)
class Optimum:
    """A compute-optimal model and its training tokens, by one of the rules."""

    rule: str
    parameters: float
    tokens: float
    loss: float  # that the refitted law predicts, in nats a token of web text


def compute_optimal(flops: float) -> list[Optimum]:
    """The optimum of a budget by each rule; the first is the usual one."""
    # Written so that nan is refused as well.
    if not LEAST_FLOPS <= flops < math.inf:
        raise SettingError(
            f"--flops {flops:g} is outside the range of the scaling laws",
            f"use {LEAST_FLOPS:g} or more, for example --flops 1e21",
        )
    return list(_optima(flops))


def _optima(flops: float) -> Iterator[Optimum]:
    parameters = math.sqrt(flops / (FLOPS_PER_PARAMETER_AND_TOKEN * TOKENS_PER_PARAMETER))
    tokens = TOKENS_PER_PARAMETER * parameters
    yield Optimum("20 tokens per parameter", parameters, tokens, REFITTED.loss(parameters, tokens))
    for fit in (PUBLISHED, REFITTED):
        parameters, tokens = fit.optimum(flops)
        yield Optimum(fit.source, parameters, tokens, REFITTED.loss(parameters, tokens))
