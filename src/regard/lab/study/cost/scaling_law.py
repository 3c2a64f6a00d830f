"""A scaling law on a ladder of small models, and its prediction of a larger one."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

from regard import spec
from regard.builder.parameter_count import parameter_count
from regard.lab.study import training_run
from regard.lab.study.character_text import LENGTH, character_text
from regard.lab.study.cost.power_law import Law, Point, bootstrap, fit, interval
from regard.lab.study.figure import Table, mean
from regard.lab.study.study import Effort, Numbers, Outcome, Progress, Study, Verdict
from regard.look.drawing import Axis, Chart, Figure, Series
from regard.training.engine.lr_schedule import ConstantRate

WIDTHS = [8, 12, 16, 24, 32]
LAYERS = 2
ROWS = 16
FACTOR = 4  # the model that is predicted is at least so many times larger than any in the fit
WARMUP = 30


class ScalingLaw(Study):
    name = "scaling_law"
    claim = (
        "Loss falls as a power law of the number of parameters and of the data, so that the loss "
        "of a larger model can be predicted from small ones."
    )
    source = "Kaplan et al. 2020, Section 1.2; Hoffmann et al. 2022, Section 3.3 (third approach)"
    measurement = (
        f"A ladder of language models of characters ({LAYERS} layers, widths {WIDTHS}), each "
        "measured on held-out text at several numbers D of training tokens: L = E + A/N^α + B/D^β "
        "with N the parameters without embeddings, fitted by Huber loss of log L; 90 % intervals "
        f"by bootstrap over the points; then a model at least {FACTOR} times larger than any in "
        "the fit is trained, and its loss compared with the prediction."
    )
    rule = (
        "Holds if loss falls with N at the largest D from each model to the next, the interval of "
        "α is above zero, and the measured loss of the larger model lies within the interval of "
        "its prediction or within 5 % of it; within limits if only the prediction misses."
    )
    quick_seeds = 1
    full_seeds = 3

    def measure(self, effort: Effort, progress: Progress) -> Numbers:
        widths = effort.choose(WIDTHS[:4], WIDTHS)
        steps = effort.choose([60, 120, 240], [500, 1000, 2000, 4000])
        largest = larger_width(widths[-1])
        points: list[list[float]] = []
        measured: list[list[float]] = []
        jobs = [(seed, width) for seed in effort.seeds for width in [*widths, largest]]
        for seed, width in progress.over(jobs, lambda job: f"width {job[1]}, seed {job[0]}"):
            of_model = _losses(width, seed, steps)
            target = measured if width == largest else points
            target += [list(point) for point in of_model]
        ladder = [Point(*point) for point in points]
        # The larger model is no part of the fit.
        law = fit(ladder)
        laws = bootstrap(ladder, law, effort.choose(40, 400), seed=0)
        return {
            "text": character_text().name,
            "points": points,
            "measured": measured,
            "law": list(law),
            "bootstrap": [list(one) for one in laws],
        }

    def verdict(self, numbers: Numbers) -> Verdict:
        law, laws = _laws(numbers)
        # Resampled points, not seeds alone: the ladder itself is a choice.
        low, high = interval([one.size_exponent for one in laws])
        parameters, tokens, loss = _held_out(numbers)
        predicted = law.loss(parameters, tokens)
        bounds = interval([one.loss(parameters, tokens) for one in laws])
        miss = loss / predicted - 1
        reason = (
            f"α = {law.size_exponent:.2f} ({low:.2f} to {high:.2f}), "
            f"β = {law.data_exponent:.2f}. For N = {parameters:,.0f} the law predicts "
            f"{predicted:.3f} ({bounds[0]:.3f} to {bounds[1]:.3f}); measured: {loss:.3f}, "
            f"{miss:+.1%}."
        )
        if low <= 0 or not _falls(numbers):
            return Verdict(Outcome.FAILS, reason)
        # The interval is of the fit alone; one seed of the larger model varies as well.
        is_predicted = bounds[0] <= loss <= bounds[1] or abs(miss) <= 0.05
        return Verdict(Outcome.HOLDS if is_predicted else Outcome.LIMITED, reason)

    def figures(self, numbers: Numbers) -> list[Figure]:
        law, laws = _laws(numbers)
        points = [Point(*point) for point in numbers["points"]]
        parameters, tokens, loss = _held_out(numbers)
        sizes = sorted({point.parameters for point in points})
        series = []
        for count in sorted({point.tokens for point in points}):
            by_size = [mean([p.loss for p in points if (p[0], p[1]) == (n, count)]) for n in sizes]
            series.append(Series(f"{count:,.0f} tokens", sizes, by_size, style="points"))
        # The curve goes on to the larger model.
        curve = [*sizes, parameters]
        bounds = [interval([one.loss(n, tokens) for one in laws]) for n in curve]
        fitted = [law.loss(n, tokens) for n in curve]
        series.append(Series("fitted law, 90 % interval", curve, fitted, bounds))
        series.append(Series("larger model, measured", [parameters], [loss], style="points"))
        x = Axis("parameters without embeddings", log=True)
        chart = Chart("Loss over the number of parameters", x, Axis("nats a character"), series)
        return [chart, _compute_chart(numbers)]

    def tables(self, numbers: Numbers) -> list[Table]:
        law, laws = _laws(numbers)
        rows = []
        names = ["E, irreducible loss", "A", "α, of parameters", "B", "β, of tokens"]
        for index, name in enumerate(names):
            low, high = interval([one[index] for one in laws])
            rows.append([name, f"{law[index]:.3g}", f"{low:.3g} to {high:.3g}"])
        # The compute-optimal exponent of N: β / (α + β), Equation 4 of Hoffmann et al.
        optimal = [one.data_exponent / (one.size_exponent + one.data_exponent) for one in laws]
        low, high = interval(optimal)
        share = law.data_exponent / (law.size_exponent + law.data_exponent)
        rows.append(["a of N ∝ C^a", f"{share:.2f}", f"{low:.2f} to {high:.2f}"])
        columns = [f"on {numbers['text']}", "fit", "90 % interval"]
        published = Table(
            "Published exponents",
            ["", "α", "β"],
            [
                ["Kaplan et al. 2020, words of web text", "0.076", "0.095"],
                ["Hoffmann et al. 2022, third approach", "0.34", "0.28"],
                ["here", f"{law.size_exponent:.2f}", f"{law.data_exponent:.2f}"],
            ],
        )
        return [Table("L = E + A/N^α + B/D^β", columns, rows), published]


def _compute_chart(numbers: Numbers) -> Chart:
    """Loss over 6·N·D, a curve for each size."""
    points = [Point(*point) for point in [*numbers["points"], *numbers["measured"]]]
    series = []
    for size in sorted({point.parameters for point in points}):
        of_size = [point for point in points if point.parameters == size]
        tokens = sorted({point.tokens for point in of_size})
        losses = [mean([p.loss for p in of_size if p.tokens == count]) for count in tokens]
        series.append(Series(f"N = {size:,.0f}", [6 * size * d for d in tokens], losses))
    x = Axis("FLOP = 6·N·D", log=True)
    return Chart("Loss over compute", x, Axis("nats a character"), series)


def _laws(numbers: Numbers) -> tuple[Law, list[Law]]:
    return Law(*numbers["law"]), [Law(*one) for one in numbers["bootstrap"]]


def _held_out(numbers: Numbers) -> tuple[float, float, float]:
    """Parameters, tokens and mean loss of the larger model at the end of its training."""
    measured = [Point(*point) for point in numbers["measured"]]
    # Where the larger model has seen all its data
    tokens = max(point.tokens for point in measured)
    at_end = [point for point in measured if point.tokens == tokens]
    return at_end[0].parameters, tokens, mean([point.loss for point in at_end])


def _falls(numbers: Numbers) -> bool:
    """Whether each larger model of the ladder has a lower loss at the end."""
    points = [Point(*point) for point in numbers["points"]]
    tokens = max(point.tokens for point in points)
    losses = []
    for size in sorted({point.parameters for point in points}):
        losses.append(mean([p.loss for p in points if (p[0], p[1]) == (size, tokens)]))
    return all(after < before for before, after in pairwise(losses))


# ------------------------------------------------------------------ the ladder


def _model(width: int) -> spec.Model:
    # One head for each 8 dimensions, as wide at every size.
    return training_run.language_model(
        len(character_text().characters),
        LENGTH,
        d_model=width,
        d_ff=4 * width,
        heads=max(1, width // 8) if width % 8 == 0 else width // 4,
        layers=LAYERS,
    )


def size(width: int) -> int:
    """The parameters of a model without its embeddings."""
    return parameter_count(_model(width)) - width * len(character_text().characters)


def larger_width(width: int) -> int:
    """The smallest multiple of 8 whose model is `FACTOR` times larger."""
    # Heads are as wide at every size, so the width grows in steps.
    larger = width
    while size(larger) < FACTOR * size(width):
        larger += 8
    return larger


def _losses(width: int, seed: int, steps: list[int]) -> list[Point]:
    """The held-out loss after each number of steps, of one model that is trained once."""
    text = character_text()
    model = training_run.build_seeded(_model(width), seed)
    batches = text.batches(seed, ROWS)
    # 6,400 characters: their mean varies by less than the models do.
    held_out = text.held_out(100)
    # Kaplan et al., Equation D.1: the best rate falls with the logarithm of the size.
    rate = 0.012 - 0.0009 * math.log(size(width))
    points: list[Point] = []

    def evaluate(step: int, _: float) -> None:
        if step in steps:
            loss = training_run.evaluate(model, [held_out]).loss
            points.append(Point(size(width), step * ROWS * LENGTH, loss))
            # Evaluation has switched dropout off, and training goes on.
            model.train()

    arguments: dict[str, Any] = {"schedule": ConstantRate(rate, WARMUP), "on_step": evaluate}
    training_run.train(model, batches, steps[-1], **arguments)
    return points
