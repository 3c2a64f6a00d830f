"""Additive and dot-product scores."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import torch

from regard import spec
from regard.data.generated.algorithmic_tasks import LETTERS, Reversing
from regard.lab.measure.instruments import fastest
from regard.lab.study.figure import Table, cells, column, mean
from regard.lab.study.study import Effort, Numbers, Progress, Study, Verdict, judge
from regard.lab.study.training_run import (
    TaskBatches,
    Variants,
    build_seeded,
    compare,
    language_model,
    with_block,
)
from regard.look.drawing import Axis, BarChart, Bars, Chart, Figure, Series

# The order of figures and tables.
SCORES = ("additive", "scaled dot product", "dot product")
WIDTHS = (4, 64)  # d_k, small and large
LENGTHS = (32, 64, 128, 256)  # tokens, of the timing
NEAR = 0.1  # relative difference of losses that counts as similar


class ScoreFunction(Study):
    name = "score_function"
    claim = (
        "Additive and dot-product attention perform similarly for small d_k; for large d_k "
        "additive attention outperforms the dot product without scaling; the dot product is much "
        "faster."
    )
    source = "Vaswani et al. 2017, Section 3.2.1; Britz et al. 2017, Section 4.5"
    measurement = (
        f"Language models of two layers that learn to reverse up to four letters, with d_k = "
        f"{WIDTHS[0]} and {WIDTHS[1]} and three scores: w·tanh(q + k), q·k/√d_k and q·k; loss on "
        "test inputs. Then the time of one forward pass over 32 to 256 tokens."
    )
    rule = (
        "Three statements: for small d_k additive and unscaled dot product differ by less than "
        f"{100 * NEAR:.0f} % of the loss or 0.02; for large d_k the unscaled dot product is "
        "worse than additive by more than that; at the longest input the dot product is more than "
        "1.5 times as fast. Holds if all are true, within limits if some are."
    )
    full_seeds = 4

    def measure(self, effort: Effort, progress: Progress) -> Numbers:
        task = TaskBatches(Reversing(max_length=4), LETTERS)
        steps = effort.choose(120, 400)
        variants = _variants(len(task.vocabulary))
        test = list(islice(task.stream("test", 0), effort.choose(4, 16)))
        runs = compare(
            variants,
            lambda seed: task.stream("train", seed),
            test,
            steps,
            effort,
            progress,
        )
        # The wide heads, where the score is most of the cost.
        times = {score: _times(variants[f"{score}, d_k = {WIDTHS[1]}"]) for score in SCORES}
        return {"runs": runs, "times": times, "lengths": list(LENGTHS), "steps": steps}

    def verdict(self, numbers: Numbers) -> Verdict:
        # Losses are means over the seeds.
        small = {score: _loss(numbers, score, WIDTHS[0]) for score in SCORES}
        large = {score: _loss(numbers, score, WIDTHS[1]) for score in SCORES}
        speed = numbers["times"]["additive"][-1] / numbers["times"]["scaled dot product"][-1]
        statements = {
            "similar for small d_k": not _differs(small["additive"], small["dot product"]),
            "unscaled worse for large d_k": large["dot product"] > large["additive"]
            and _differs(large["additive"], large["dot product"]),
            "dot product faster": speed > 1.5,
        }
        reason = (
            f"d_k = {WIDTHS[0]}: loss {small['additive']:.3f} additive, "
            f"{small['scaled dot product']:.3f} scaled, {small['dot product']:.3f} unscaled. "
            f"d_k = {WIDTHS[1]}: {large['additive']:.3f}, {large['scaled dot product']:.3f}, "
            f"{large['dot product']:.3f}. The dot product is {speed:.1f} times as fast at "
            f"{numbers['lengths'][-1]} tokens. "
        )
        # Which of the three statements fail is said, not only how many.
        wrong = [text for text, is_true in statements.items() if not is_true]
        if wrong:
            reason += f"Not so here: {', '.join(wrong)}."
        return judge(not wrong, len(wrong) < 3, reason)

    def figures(self, numbers: Numbers) -> list[Figure]:
        losses = [
            Bars(score, [_losses(numbers, score, width) for width in WIDTHS]) for score in SCORES
        ]
        lengths = numbers["lengths"]
        lines = [Series(score, lengths, numbers["times"][score]) for score in SCORES]
        return [
            BarChart(
                "Loss on reversing letters",
                Axis("test loss, nats a token"),
                [f"d_k = {width}" for width in WIDTHS],
                losses,
            ),
            Chart(
                "Time of a forward pass",
                Axis("tokens", log=True, ticks=tuple(lengths)),
                Axis("ms", log=True),
                lines,
            ),
        ]

    def tables(self, numbers: Numbers) -> list[Table]:
        rows = [[name, *cells(runs, ["loss", "exact"])] for name, runs in numbers["runs"].items()]
        columns = ["score", "loss", "without a mistake, %"]
        return [Table(f"After {numbers['steps']} steps", columns, rows)]


def _variants(vocabulary: int) -> Variants:
    """One language model for each score and each d_k."""
    variants: Variants = {}
    # One head, so that d_k can be chosen freely.
    model: Any = language_model(vocabulary, max(LENGTHS), heads=1)
    for width in WIDTHS:
        scores: dict[str, dict[str, Any]] = {
            "additive": {"mixer": spec.AdditiveAttention()},
            # 1/√d_k is the default.
            "scaled dot product": {},
            "dot product": {"scale": 1.0},
        }
        for score, change in scores.items():
            attention = replace(model.stack.block.attention, d_k=width, **change)
            variants[f"{score}, d_k = {width}"] = with_block(model, attention=attention)
    return variants


@torch.no_grad()
def _times(model_spec: spec.Model) -> list[float]:
    """Milliseconds of a forward pass at each length: the least of a few."""
    model: Any = build_seeded(model_spec, 1).eval()
    # The time does not depend on which tokens they are.
    batches = [torch.zeros(4, length, dtype=torch.long) for length in LENGTHS]
    return [1000 * fastest(partial(model, tokens), 5) for tokens in batches]


def _losses(numbers: Numbers, score: str, width: int) -> list[float]:
    return column(numbers["runs"][f"{score}, d_k = {width}"], "loss")


def _loss(numbers: Numbers, score: str, width: int) -> float:
    return mean(_losses(numbers, score, width))


def _differs(a: float, b: float) -> bool:
    return abs(a - b) > max(NEAR * a, 0.02)
