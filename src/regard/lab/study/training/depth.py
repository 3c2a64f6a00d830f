"""Depth and width at equal numbers of parameters."""

from __future__ import annotations

from itertools import pairwise

from regard import spec
from regard.builder.parameter_count import parameter_count
from regard.lab.study.figure import Table, deviation, mean, mean_text
from regard.lab.study.study import Effort, Numbers, Progress, Study, Verdict, judge
from regard.lab.study.training_run import (
    builtin_text,
    builtin_vocabulary,
    evaluate,
    language_model,
    trained,
)
from regard.look.drawing import Axis, Chart, Figure, Series

DEPTHS = [1, 2, 4, 8]
HEADS = 4
BUDGET = 50_000  # parameters of the blocks: those of 4 layers of width 32


class Depth(Study):
    name = "depth"
    claim = "At equal numbers of parameters, a deeper Transformer is better than a wider one."
    source = (
        "Practical advice (depth before width); Kaplan et al. 2020, Figure 5, finds the shape to "
        "matter little"
    )
    measurement = (
        f"Pre-norm language models of the built-in language with {DEPTHS} layers, whose width is "
        f"chosen so that their blocks have about {BUDGET:,} parameters, trained for the same "
        "number of steps: loss on held-out sentences."
    )
    rule = (
        "Holds if the loss falls from each depth to the next by more than the standard deviation "
        "over the seeds; within limits if some deeper model is better than the shallowest by that "
        "much, but the best is not the deepest."
    )
    quick_seeds = 1
    full_seeds = 3

    def measure(self, effort: Effort, progress: Progress) -> Numbers:
        steps = effort.choose(120, 1200)
        widths = {str(depth): width_of(depth) for depth in DEPTHS}
        losses = effort.each(
            progress, widths, lambda depth, seed: _loss(int(depth), widths[depth], seed, steps)
        )
        parameters = {
            depth: _block_parameters(int(depth), width) for depth, width in widths.items()
        }
        return {"widths": widths, "parameters": parameters, "losses": losses}

    def verdict(self, numbers: Numbers) -> Verdict:
        means = {int(depth): mean(values) for depth, values in numbers["losses"].items()}
        # The largest over the depths: deeper models vary more.
        noise = max(deviation(values) for values in numbers["losses"].values())
        depths = sorted(means)
        best = min(depths, key=lambda depth: means[depth])
        # Every step deeper must pay, not only the first.
        falls = all(means[deep] < means[shallow] - noise for shallow, deep in pairwise(depths))
        listed = ", ".join(f"{depth} layers {means[depth]:.3f}" for depth in depths)
        reason = f"Held-out loss: {listed}; the standard deviation over seeds is {noise:.3f}."
        is_better = means[best] < means[depths[0]] - noise
        return judge(falls, is_better, reason)

    def figures(self, numbers: Numbers) -> list[Figure]:
        depths = [int(depth) for depth in numbers["losses"]]
        runs = list(zip(*numbers["losses"].values(), strict=True))
        x = Axis("layers", log=True, ticks=tuple(depths))
        series = [Series.over_seeds("equal parameters", depths, runs)]
        return [Chart("Held-out loss over depth", x, Axis("nats a token"), series)]

    def tables(self, numbers: Numbers) -> list[Table]:
        rows = []
        for depth, losses in numbers["losses"].items():
            width = str(numbers["widths"][depth])
            rows.append([depth, width, f"{numbers['parameters'][depth]:,}", mean_text(losses)])
        columns = ["layers", "d_model", "parameters of the blocks", "held-out loss"]
        return [Table("Depth and width", columns, rows)]


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
