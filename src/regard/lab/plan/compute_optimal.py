"""Compute-optimal training: which size and how many tokens make the most of a budget of FLOPs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from regard.system.errors import SettingError

TOKENS_PER_PARAMETER = 20.0  # Hoffmann et al. 2022, approaches 1 and 2, near their largest budgets
FLOPS_PER_PARAMETER_AND_TOKEN = 6
# Of some 100,000 parameters. The laws were fitted from 6e18 on, and say little far below.
LEAST_FLOPS = 1e12


class Law(NamedTuple):
    """The parametric law L(N, D) = E + A / N^α + B / D^β (Hoffmann et al. 2022, Equation 2)."""

    irreducible: float  # E
    size_factor: float  # A
    size_exponent: float  # α
    data_factor: float  # B
    data_exponent: float  # β

    def loss(self, parameters: float, tokens: float) -> float:
        by_size = self.size_factor / parameters**self.size_exponent
        by_data = self.data_factor / tokens**self.data_exponent
        return self.irreducible + by_size + by_data

    def optimum(self, flops: float) -> tuple[float, float]:
        """N and D with 6 N D = `flops` and the lowest loss (equation 4 of the paper)."""
        product = flops / FLOPS_PER_PARAMETER_AND_TOKEN
        both = self.size_exponent + self.data_exponent
        by_size = self.size_exponent * self.size_factor
        by_data = self.data_exponent * self.data_factor
        parameters = (by_size / by_data) ** (1 / both) * product ** (self.data_exponent / both)
        return parameters, product / parameters


# Approach 3 as published (Hoffmann et al. 2022), and fitted again by Besiroglu et al. (2024), who
# found that the published coefficients do not follow from the paper's own data.
PUBLISHED = Law(1.69, 406.4, 0.34, 410.7, 0.28)
REFITTED = Law(1.8172, 482.01, 0.3478, 2085.43, 0.3658)


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
    parameters = math.sqrt(flops / (FLOPS_PER_PARAMETER_AND_TOKEN * TOKENS_PER_PARAMETER))
    rules = {
        "20 tokens per parameter": (parameters, TOKENS_PER_PARAMETER * parameters),
        "approach 3 as published": PUBLISHED.optimum(flops),
        "approach 3, refitted": REFITTED.optimum(flops),
    }
    return [Optimum(rule, n, d, REFITTED.loss(n, d)) for rule, (n, d) in rules.items()]
