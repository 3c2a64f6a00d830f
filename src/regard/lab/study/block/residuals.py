"""Residual connections: the gradient through many layers, and training without them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice
from typing import Any

from regard import spec
from regard.data.generated.algorithmic_tasks import LETTERS, Copying
from regard.lab.study.figure import Shown, Table, bar_chart, chart, column, mean, table
from regard.lab.study.study import Effort, Numbers, Study, Verdict, judge
from regard.lab.study.training_run import (
    TaskBatches,
    build_seeded,
    compare,
    language_model,
    logits,
    mean_loss,
    with_block,
)
from regard.look.drawing import Axis

RESIDUALS: dict[str, spec.Residual] = {
    "pre-norm": spec.PreNorm(),
    "post-norm": spec.PostNorm(),
    "none, norm before": spec.NoResidual("pre"),
    "none, norm after": spec.NoResidual("post"),
}
LARGE = 10.0  # a gradient that changes by this factor vanishes or explodes


class Residuals(Study):
    """Residual connections give the gradient a direct path, ∂(x + f(x))/∂x = 1 + ∂f/∂x, so that it
    passes a hundred layers and deep stacks can be trained; without them it does not.

    Stacks of 2 to 100 layers at their initial weights, with residual connections (pre-norm,
    post-norm) and without: the norm of the loss's gradient in the feed-forward weights of the first
    block over that in the last. Then language models that copy letters, at two depths: test loss.
    """

    name = "residuals"
    source = "He et al. 2016, Section 3; Vaswani et al. 2017, Section 3.1"
    seeds = (2, 3)

    def measure(self, effort: Effort) -> Numbers:
        task = TaskBatches(Copying(max_length=5), LETTERS)
        depths = effort.choose([2, 10, 30, 100], [2, 5, 10, 20, 50, 100])
        # [seeds][depths] for each kind
        ratios = {
            name: [
                [_gradient_ratio(task, residual, depth, seed) for depth in depths]
                for seed in effort.seeds
            ]
            for name, residual in RESIDUALS.items()
        }
        # A stack of 100 layers would take minutes: the gradients above are measured, these trained.
        trained = effort.choose([2, 6], [2, 8])
        steps = effort.choose(100, 250)
        variants = {
            f"{name}, {depth} layers": _model(task, residual, depth, 64)
            for depth in trained
            for name, residual in RESIDUALS.items()
            if name != "post-norm" and not (effort.quick and name == "none, norm after")
        }
        runs = compare(
            variants,
            lambda seed: task.stream("train", seed),
            list(islice(task.stream("test", 0), 4)),
            steps,
            effort,
        )
        return {
            "depths": depths,
            "ratios": ratios,
            "runs": runs,
            "trained": trained,
            "steps": steps,
        }

    def verdict(self, numbers: Numbers) -> Verdict:
        """Holds if at the largest depth the ratio with pre-norm residuals is within a factor of
        {LARGE:.0f} of 1, both stacks without residuals are beyond it, and the deeper model without
        residuals ends with a higher loss than with them; within limits if only the loss is higher;
        else it does not hold."""
        last = {
            name: _centre([run[-1] for run in runs]) for name, runs in numbers["ratios"].items()
        }
        # The deeper of the two trained ones, where residuals matter.
        depth = numbers["trained"][-1]
        losses = {
            name: mean(column(numbers["runs"][f"{name}, {depth} layers"], "loss"))
            for name in ("pre-norm", "none, norm before")
        }
        # Vanishing and exploding gradients are alike here.
        passes = {name: 1 / LARGE < value < LARGE for name, value in last.items()}
        blocked = not any(passes[name] for name in last if name.startswith("none"))
        worse = losses["none, norm before"] > losses["pre-norm"]
        listed = ", ".join(f"{name} {value:.1e}" for name, value in last.items())
        reason = (
            f"Gradient of the first over the last of {numbers['depths'][-1]} blocks: {listed}. "
            f"With {depth} layers, trained for {numbers['steps']} steps, the loss is "
            f"{losses['pre-norm']:.2f} with residuals and {losses['none, norm before']:.2f} "
            "without."
        )
        return judge(passes["pre-norm"] and blocked, worse, reason)

    def show(self, numbers: Numbers) -> list[Shown]:
        depths = numbers["depths"]
        rows = [
            [name, *(f"{_centre(values):.1e}" for values in zip(*runs, strict=True))]
            for name, runs in numbers["ratios"].items()
        ]
        return [
            chart(
                "Gradient of the first block over the last",
                Axis("layers", log=True, ticks=tuple(depths)),
                Axis("ratio of norms", log=True),
                depths,
                numbers["ratios"],
            ),
            bar_chart(
                f"Loss after {numbers['steps']} steps of copying letters",
                "test loss, nats a token",
                numbers["runs"],
                {"loss": ""},
            ),
            Table(
                "Gradient of the first over the last block (geometric mean)",
                ["residuals", *(f"{depth} layers" for depth in depths)],
                rows,
            ),
            table(
                "residuals",
                {"loss": "loss", "exact": "without a mistake, %"},
                numbers["runs"],
                "Trained models",
            ),
        ]


def _model(task: TaskBatches, residual: spec.Residual, depth: int, width: int) -> spec.Model:
    sizes = {"d_model": width, "heads": 2, "d_ff": 2 * width}
    model: Any = language_model(len(task.vocabulary), 32, layers=depth, **sizes)
    return with_block(model, residual=residual)


def _gradient_ratio(task: TaskBatches, residual: spec.Residual, depth: int, seed: int) -> float:
    """‖gradient of the first block‖ / ‖that of the last‖, in their feed-forward weights."""
    # In float64: without residuals the gradient falls below what float32 can hold.
    model: Any = build_seeded(_model(task, residual, depth, 32), seed).double()
    # One batch of real inputs, at the initial weights.
    batch = next(task.stream("train", seed))
    mean_loss(logits(model, batch), batch.targets).backward()  # type: ignore[no-untyped-call]
    # The inner weights of the feed-forward networks: all variants have them.
    first = model.stack.blocks[0].feedforward.inner.weight.grad.norm()
    last = model.stack.blocks[-1].feedforward.inner.weight.grad.norm()
    return max(float(first / last), 1e-300)


def _centre(values: Sequence[float]) -> float:
    """The geometric mean, as for ratios."""
    return math.exp(mean([math.log(value) for value in values]))
