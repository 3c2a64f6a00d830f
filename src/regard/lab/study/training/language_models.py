"""Training language models of the built-in language: warm-up, and depth before width."""

from __future__ import annotations

from itertools import pairwise, product

from regard import spec
from regard.builder.parameter_count import parameter_count
from regard.lab.study.figure import Shown, Table, chart, deviation, mean, mean_text
from regard.lab.study.study import Effort, Numbers, Study, Verdict, judge
from regard.lab.study.training_run import (
    build_seeded,
    builtin_text,
    builtin_vocabulary,
    evaluate,
    language_model,
    train,
    trained,
)
from regard.look.drawing import Axis
from regard.training.engine.optimizer import ConstantRate

RATES = [0.001, 0.003, 0.01]
LAYERS = 6  # gradients of post-norm differ more, the deeper the stack (Xiong et al., Section 3)
LAST = 20  # steps over which the final loss is averaged


class Warmup(Study):
    """The learning rate must be warmed up: a post-norm Transformer that starts at the full rate
    trains badly or diverges.

    A post-norm language model of {LAYERS} layers on the built-in language, trained with Adam at
    constant peak rates, with a linear warm-up over the first quarter of the steps and without: the
    mean training loss of the last {LAST} steps.
    """

    name = "warmup"
    source = "Vaswani et al. 2017, Section 5.3; Xiong et al. 2020, Section 1"

    def measure(self, effort: Effort) -> Numbers:
        steps = effort.choose(100, 600)  # each run sees its rate for three quarters of them
        # A quarter, as 4,000 steps are of the first 16,000 of the paper's schedule.
        warmups = {"with": steps // 4, "without": 0}
        runs = effort.each(
            product(warmups, RATES),
            lambda job, seed: _final_loss(seed, job[1], warmups[job[0]], steps),
        )
        losses = {name: {str(rate): runs[name, rate] for rate in RATES} for name in warmups}
        return {"rates": RATES, "losses": losses}

    def verdict(self, numbers: Numbers) -> Verdict:
        """Holds if warm-up lowers the final loss by 0.1 nats or more both at the highest rate and
        when each variant takes its own best rate; within limits if only at the highest rate: then a
        lower rate does instead of warm-up."""
        warm, cold = (
            [mean(numbers["losses"][name][str(rate)]) for rate in numbers["rates"]]
            for name in ("with", "without")
        )
        at_highest = cold[-1] - warm[-1]
        # Each variant may choose its rate, as one would who tunes it.
        at_best = min(cold) - min(warm)
        reason = (
            f"Warm-up lowers the final loss by {at_highest:.2f} nats at the rate "
            f"{numbers['rates'][-1]}, and by {at_best:.2f} between the best rates ({min(warm):.2f} "
            f"against {min(cold):.2f})."
        )
        return judge(at_best >= 0.1, at_highest >= 0.1, reason)

    def show(self, numbers: Numbers) -> list[Shown]:
        rates = numbers["rates"]
        by_rate = {
            name: [numbers["losses"][key][str(rate)] for rate in rates]
            for name, key in (("warm-up", "with"), ("no warm-up", "without"))
        }
        rows = [
            [f"{rate:g}", *map(mean_text, losses)]
            for rate, *losses in zip(rates, *by_rate.values(), strict=True)
        ]
        return [
            chart(
                "Final loss over the learning rate",
                Axis("peak learning rate", log=True, ticks=tuple(rates)),
                Axis("nats a token"),
                rates,
                {name: list(zip(*losses, strict=True)) for name, losses in by_rate.items()},
            ),
            Table("Final training loss", ["peak rate", *by_rate], rows),
        ]


def _final_loss(seed: int, rate: float, warmup: int, steps: int) -> float:
    words = builtin_vocabulary()
    # Post-norm, as in the paper: pre-norm needs warm-up less (Xiong et al., Section 4).
    description = language_model(
        len(words), 64, d_model=32, d_ff=128, layers=LAYERS, residual="post"
    )
    model = build_seeded(description, seed)
    batches = builtin_text("train", 20_000, seed, rows=16)
    losses = train(model, batches, steps, schedule=ConstantRate(rate, warmup))
    return mean(losses[-LAST:])


# ------------------------------------------------------------------ depth before width

DEPTHS = [1, 2, 4, 8]
HEADS = 4
BUDGET = 50_000  # parameters of the blocks: those of 4 layers of width 32


class Depth(Study):
    """At equal numbers of parameters, a deeper Transformer is better than a wider one.

    Pre-norm language models of the built-in language with {DEPTHS} layers, whose width is chosen so
    that their blocks have about {BUDGET:,} parameters, trained for the same number of steps: loss
    on held-out sentences.
    """

    name = "depth"
    source = (
        "Practical advice (depth before width); Kaplan et al. 2020, Figure 5, finds the shape to "
        "matter little"
    )

    def measure(self, effort: Effort) -> Numbers:
        steps = effort.choose(120, 1200)
        widths = {str(depth): width_of(depth) for depth in DEPTHS}
        losses = effort.each(
            widths, lambda depth, seed: _loss(int(depth), widths[depth], seed, steps)
        )
        parameters = {
            depth: _block_parameters(int(depth), width) for depth, width in widths.items()
        }
        return {"widths": widths, "parameters": parameters, "losses": losses}

    def verdict(self, numbers: Numbers) -> Verdict:
        """Holds if the loss falls from each depth to the next by more than the standard deviation
        over the seeds; within limits if some deeper model is better than the shallowest by that
        much, but the best is not the deepest."""
        losses = {depth: mean(values) for depth, values in numbers["losses"].items()}
        # The largest over the depths: deeper models vary more.
        noise = max(map(deviation, numbers["losses"].values()))
        first, *deeper = losses.values()
        # Every step deeper must pay, not only the first.
        falls = all(deep < shallow - noise for shallow, deep in pairwise(losses.values()))
        listed = ", ".join(f"{depth} layers {loss:.3f}" for depth, loss in losses.items())
        reason = f"Held-out loss: {listed}; the standard deviation over seeds is {noise:.3f}."
        return judge(falls, min(deeper) < first - noise, reason)

    def show(self, numbers: Numbers) -> list[Shown]:
        losses = numbers["losses"]
        depths = [int(depth) for depth in losses]
        rows = [
            [
                depth,
                str(numbers["widths"][depth]),
                f"{numbers['parameters'][depth]:,}",
                mean_text(values),
            ]
            for depth, values in losses.items()
        ]
        return [
            chart(
                "Held-out loss over depth",
                Axis("layers", log=True, ticks=tuple(depths)),
                Axis("nats a token"),
                depths,
                {"equal parameters": list(zip(*losses.values(), strict=True))},
            ),
            Table(
                "Depth and width",
                ["layers", "d_model", "parameters of the blocks", "held-out loss"],
                rows,
            ),
        ]


def _model(depth: int, width: int) -> spec.Model:
    words = builtin_vocabulary()
    return language_model(len(words), 64, layers=depth, d_model=width, d_ff=4 * width, heads=HEADS)


def _block_parameters(depth: int, width: int) -> int:
    words = builtin_vocabulary()
    # Wide models have more embeddings; the budget is of what computes.
    embedding = len(words) * width  # the output matrix is the same one
    return parameter_count(_model(depth, width)) - embedding


def width_of(depth: int) -> int:
    """The multiple of the number of heads for which the blocks come nearest to the budget."""
    # Heads divide the width.
    widths = range(2 * HEADS, 129, HEADS)
    return min(widths, key=lambda width: abs(_block_parameters(depth, width) - BUDGET))


def _loss(depth: int, width: int, seed: int, steps: int) -> float:
    batches = builtin_text("train", 20_000, seed)
    model = trained(_model(depth, width), seed, batches, steps)
    held_out = builtin_text("test", 600, seed=0, rows=100)
    return evaluate(model, [next(held_out)]).loss
