"""A power law of the loss on a ladder of small models, and its prediction of a larger one."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from itertools import count, pairwise, product
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from regard import spec
from regard.lab.plan.compute_optimal import Law
from regard.lab.study.figure import Shown, Table, column, mean
from regard.lab.study.study import Effort, Numbers, Study, Verdict, judge
from regard.lab.study.training_run import (
    ROW,
    build_seeded,
    character_text,
    evaluate,
    language_model,
    non_embedding_parameters,
    train,
)
from regard.look.drawing import Axis, Chart, Series
from regard.training.engine.optimizer import ConstantRate

HUBER = 1e-3  # δ of Hoffmann et al., Section 3.3: outliers count less


class Point(NamedTuple):
    """The loss of a model of N parameters after D tokens."""

    parameters: float
    tokens: float
    loss: float


def fit(points: Sequence[Point], begin: Law | None = None) -> Law:
    """The law with the least Huber loss of log L, by L-BFGS from a grid of beginnings.

    E, A and B are exponentials, so that they are positive (Equation 3 of Hoffmann et al.).
    """
    n, d, y = torch.tensor(points, dtype=torch.float64).log().T
    beginnings = [*product((-0.5,), (1.0, 4.0), (0.3, 0.8), (1.0, 4.0), (0.3, 0.8))]
    if begin is not None:
        e, a, alpha, b, beta = begin
        beginnings = [(math.log(e), math.log(a), alpha, math.log(b), beta)]
    fits = [_minimize(torch.tensor(one, dtype=torch.float64), n, d, y) for one in beginnings]
    _, (e, a, alpha, b, beta) = min(one for one in fits if math.isfinite(one[0]))
    return Law(math.exp(e), math.exp(a), alpha, math.exp(b), beta)


def _minimize(theta: Tensor, n: Tensor, d: Tensor, y: Tensor) -> tuple[float, list[float]]:
    """The least loss from this beginning, and where it is."""
    optimizer = torch.optim.LBFGS(
        [theta.requires_grad_()], max_iter=100, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        e, a, alpha, b, beta = theta.unbind()
        terms = torch.stack([e.expand_as(n), a - alpha * n, b - beta * d])
        loss = functional.huber_loss(torch.logsumexp(terms, dim=0), y, delta=HUBER)
        loss = loss / HUBER**2  # of the order of 1, as the tolerances of L-BFGS expect
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimizer.step(closure)
    return closure().item(), theta.tolist()


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
    low, high = np.quantile(values, (0.05, 0.95), method="nearest")
    return float(low), float(high)


WIDTHS = [8, 12, 16, 24, 32]
LAYERS = 2
ROWS = 16
FACTOR = 4  # the model that is predicted is at least so many times larger than any in the fit
WARMUP = 30
NAMES = ("E, irreducible loss", "A", "α, of parameters", "B", "β, of tokens", "a of N ∝ C^a")
PUBLISHED = [
    ["Kaplan et al. 2020, words of web text", "0.076", "0.095"],
    ["Hoffmann et al. 2022, third approach", "0.34", "0.28"],
]


class ScalingLaw(Study):
    """Loss falls as a power law of the number of parameters and of the data, so that the loss of a
    larger model can be predicted from small ones.

    A ladder of language models of characters ({LAYERS} layers, widths {WIDTHS}), each measured on
    held-out text at several numbers D of training tokens: L = E + A/N^α + B/D^β with N the
    parameters without embeddings, fitted by Huber loss of log L; 90 % intervals by bootstrap over
    the points; then a model at least {FACTOR} times larger than any in the fit is trained, and its
    loss compared with the prediction.
    """

    source = "Kaplan et al. 2020, Section 1.2; Hoffmann et al. 2022, Section 3.3 (third approach)"

    def measure(self, effort: Effort) -> Numbers:
        widths = effort.choose(WIDTHS[:4], WIDTHS)
        steps = effort.choose([60, 120, 240], [500, 1000, 2000, 4000])
        largest = larger_width(widths[-1])
        runs = effort.each([*widths, largest], lambda width, seed: _losses(width, seed, steps))
        measured = [point for run in runs.pop(largest) for point in run]
        ladder = [point for of_model in runs.values() for run in of_model for point in run]
        # The larger model is no part of the fit.
        law = fit(ladder)
        laws = bootstrap(ladder, law, effort.choose(40, 400), seed=0)
        return {
            "text": character_text().name,
            "points": ladder,
            "measured": measured,
            "law": law,
            "bootstrap": laws,
        }

    def verdict(self, numbers: Numbers) -> Verdict:
        """Holds if loss falls with N at the largest D from each model to the next, the interval of
        α is above zero, and the measured loss of the larger model lies within the interval of its
        prediction or within 5 % of it; within limits if only the prediction misses."""
        law, *laws = _laws(numbers)
        # Resampled points, not seeds alone: the ladder itself is a choice.
        low, high = interval([one.size_exponent for one in laws])
        parameters, tokens, loss = _held_out(numbers)
        predicted = law.loss(parameters, tokens)
        least, most = interval([one.loss(parameters, tokens) for one in laws])
        miss = loss / predicted - 1
        # At the largest D, from each model of the ladder to the next
        ends = [[*of_size.values()][-1] for of_size in _means(numbers["points"]).values()]
        falls = all(after < before for before, after in pairwise(ends))
        # The interval is of the fit alone; one seed of the larger model varies as well.
        is_predicted = least <= loss <= most or abs(miss) <= 0.05
        return judge(
            is_predicted,
            low > 0 and falls,
            f"α = {law.size_exponent:.2f} ({low:.2f} to {high:.2f}), "
            f"β = {law.data_exponent:.2f}. For N = {parameters:,.0f} the law predicts "
            f"{predicted:.3f} ({least:.3f} to {most:.3f}); measured: {loss:.3f}, {miss:+.1%}.",
        )

    def show(self, numbers: Numbers) -> Shown:
        law, *laws = _laws(numbers)
        parameters, tokens, loss = _held_out(numbers)
        means = _means(numbers["points"])
        sizes = [*means]
        series = [
            Series(f"{size:,.0f} tokens", sizes, column(means.values(), size), style="points")
            for size in means[sizes[0]]
        ]
        # The curve goes on to the larger model.
        curve = [*sizes, parameters]
        bounds = [interval([one.loss(n, tokens) for one in laws]) for n in curve]
        fitted = [law.loss(n, tokens) for n in curve]
        series.append(Series("fitted law, 90 % interval", curve, fitted, bounds))
        series.append(Series("larger model, measured", [parameters], [loss], style="points"))
        by_compute = [
            Series(f"N = {size:,.0f}", [6 * size * tokens for tokens in losses], [*losses.values()])
            for size, losses in _means([*numbers["points"], *numbers["measured"]]).items()
        ]
        rows = []
        for name, value, *resampled in zip(NAMES, *map(_with_optimum, (law, *laws)), strict=True):
            low, high = interval(resampled)
            rows.append([name, f"{value:.3g}", f"{low:.3g} to {high:.3g}"])
        y = Axis("nats a character")
        return [
            Chart(
                "Loss over the number of parameters",
                Axis("parameters without embeddings", log=True),
                y,
                series,
            ),
            Chart("Loss over compute", Axis("FLOP = 6·N·D", log=True), y, by_compute),
            Table("L = E + A/N^α + B/D^β", [f"on {numbers['text']}", "fit", "90 % interval"], rows),
            Table("Published exponents", ["", "α", "β"], PUBLISHED),
        ]


def _with_optimum(law: Law) -> tuple[float, ...]:
    """The law, and the compute-optimal exponent of N: Equation 4 of Hoffmann et al."""
    return *law, law.data_exponent / (law.size_exponent + law.data_exponent)


def _means(points: list[Any]) -> dict[float, dict[float, float]]:
    """The mean loss of each size after each number of tokens, both ascending."""
    losses: dict[float, dict[float, list[float]]] = {}
    for parameters, tokens, loss in sorted(points):
        losses.setdefault(parameters, {}).setdefault(tokens, []).append(loss)
    return {n: {d: mean(values) for d, values in of_n.items()} for n, of_n in losses.items()}


def _laws(numbers: Numbers) -> list[Law]:
    """The law, and those of the resampled points."""
    return [Law(*one) for one in (numbers["law"], *numbers["bootstrap"])]


def _held_out(numbers: Numbers) -> tuple[float, float, float]:
    """Parameters, tokens and mean loss of the larger model at the end of its training."""
    ((parameters, losses),) = _means(numbers["measured"]).items()
    return parameters, *max(losses.items())


# ------------------------------------------------------------------ the ladder


def _model(width: int) -> spec.Model:
    # One head for each 8 dimensions, as wide at every size.
    return language_model(
        len(character_text().characters),
        d_model=width,
        d_ff=4 * width,
        heads=max(1, width // 8) if width % 8 == 0 else width // 4,
        layers=LAYERS,
    )


def size(width: int) -> int:
    """The parameters of a model without its embeddings."""
    return non_embedding_parameters(_model(width))


def larger_width(width: int) -> int:
    """The smallest multiple of 8 whose model is `FACTOR` times larger."""
    # Heads are as wide at every size, so the width grows in steps.
    return next(larger for larger in count(width, 8) if size(larger) >= FACTOR * size(width))


def _losses(width: int, seed: int, steps: list[int]) -> list[Point]:
    """The held-out loss after each number of steps, of one model that is trained once."""
    text = character_text()
    model = build_seeded(_model(width), seed)
    batches = text.batches(seed, ROWS)
    # 6,400 characters: their mean varies by less than the models do.
    held_out = text.held_out(100)
    # Kaplan et al., Equation D.1: the best rate falls with the logarithm of the size.
    rate = 0.012 - 0.0009 * math.log(size(width))
    points: list[Point] = []

    def record(step: int) -> None:
        if step in steps:
            loss = evaluate(model, [held_out]).loss
            points.append(Point(size(width), step * ROWS * ROW, loss))

    train(model, batches, steps[-1], schedule=ConstantRate(rate, WARMUP), on_step=record)
    return points
