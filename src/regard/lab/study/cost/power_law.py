"""Power laws of the loss: L = E + A/N^α + B/D^β, fitted as in Chinchilla's third approach."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

HUBER = 1e-3  # δ of Hoffmann et al., Section 3.3: outliers count less


class Point(NamedTuple):
    """The loss of a model of N parameters after D tokens."""

    parameters: float
    tokens: float
    loss: float


class Law(NamedTuple):
    """The parametric law (Hoffmann et al. 2022, Equation 2)."""

    irreducible: float  # E
    size_factor: float  # A
    size_exponent: float  # α
    data_factor: float  # B
    data_exponent: float  # β

    def loss(self, parameters: float, tokens: float) -> float:
        by_size = self.size_factor / parameters**self.size_exponent
        by_data = self.data_factor / tokens**self.data_exponent
        return self.irreducible + by_size + by_data


def fit(points: Sequence[Point], begin: Law | None = None) -> Law:
    """The law with the least Huber loss of log L, by L-BFGS from a grid of beginnings.

    E, A and B are exponentials, so that they are positive (Equation 3 of Hoffmann et al.).
    """
    n = torch.tensor([point.parameters for point in points], dtype=torch.float64).log()
    d = torch.tensor([point.tokens for point in points], dtype=torch.float64).log()
    y = torch.tensor([point.loss for point in points], dtype=torch.float64).log()
    best: tuple[float, list[float]] | None = None
    for start in _beginnings(begin):
        theta = torch.tensor(start, dtype=torch.float64, requires_grad=True)
        value = _minimize(theta, n, d, y)
        if math.isfinite(value) and (best is None or value < best[0]):
            best = (value, theta.tolist())
    assert best is not None, "no beginning led to a finite loss"
    e, a, alpha, b, beta = best[1]
    return Law(math.exp(e), math.exp(a), alpha, math.exp(b), beta)


def _beginnings(begin: Law | None) -> list[list[float]]:
    if begin is not None:
        return [
            [
                math.log(begin.irreducible),
                math.log(begin.size_factor),
                begin.size_exponent,
                math.log(begin.data_factor),
                begin.data_exponent,
            ]
        ]
    grid = product((-0.5,), (1.0, 4.0), (0.3, 0.8), (1.0, 4.0), (0.3, 0.8))
    return [list(values) for values in grid]


def _minimize(theta: Tensor, n: Tensor, d: Tensor, y: Tensor) -> float:
    optimizer = torch.optim.LBFGS([theta], max_iter=100, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        e, a, alpha, b, beta = theta.unbind()
        terms = torch.stack([e.expand_as(n), a - alpha * n, b - beta * d])
        residual = torch.logsumexp(terms, dim=0) - y
        loss = functional.huber_loss(residual, torch.zeros_like(residual), delta=HUBER)
        loss = loss / HUBER**2  # of the order of 1, as the tolerances of L-BFGS expect
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimizer.step(closure)
    return closure().item()


def bootstrap(points: Sequence[Point], law: Law, samples: int, seed: int) -> list[Law]:
    """Laws of resampled points, each fitted from the law of all of them."""
    rng = random.Random(seed)
    laws: list[Law] = []
    while len(laws) < samples:
        chosen = rng.choices(points, k=len(points))
        # A fit over N and D needs several of each.
        if len({p.parameters for p in chosen}) > 2 and len({p.tokens for p in chosen}) > 1:
            laws.append(fit(chosen, law))
    return laws


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The interval from the 5th to the 95th percentile."""
    ordered = sorted(values)
    last = len(ordered) - 1
    return ordered[round(0.05 * last)], ordered[round(0.95 * last)]
