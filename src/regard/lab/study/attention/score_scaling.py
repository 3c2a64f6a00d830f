"""Scaled dot-product attention: why scores are divided by √d_k."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from regard.lab.study.figure import Table, cells, column, means
from regard.lab.study.study import Effort, Numbers, Progress, Study, Verdict, judge
from regard.look.drawing import Axis, Chart, Figure, Series

KEYS = 64  # of each query
SETS = 20  # of keys, so that no single one decides


class ScoreScaling(Study):
    name = "scaling"
    claim = (
        "For large d_k the dot products grow large in magnitude, pushing the softmax into regions "
        "where it has extremely small gradients; scaling by 1/√d_k counteracts this."
    )
    source = "Vaswani et al. 2017, Section 3.2.1 and its footnote 4"
    measurement = (
        f"Queries and {KEYS} keys with independent standard normal components, for d_k from 4 to "
        "1,024: the variance of q·k, the entropy of the softmax over the keys (as a share of the "
        "entropy of equal weights), and the Frobenius norm of its Jacobian ∂weights/∂scores for "
        "the median query; with the scale 1/√d_k and without."
    )
    rule = (
        "Holds if Var(q·k)/d_k stays within 10 % of 1 for all d_k, the Jacobian of the unscaled "
        "softmax shrinks from the smallest to the largest d_k to less than a tenth, and that of "
        "the scaled one changes by less than a quarter. Within limits if only the last two hold."
    )

    def measure(self, effort: Effort, progress: Progress) -> Numbers:
        # The paper has 64; larger ones show where the scale would be missed.
        widths = [4, 16, 64, 256, 512, 1024]
        queries = effort.choose(1000, 10_000)

        def measure(seed: int) -> list[dict[str, float]]:
            generator = torch.Generator().manual_seed(seed)
            return [_at_width(width, queries, generator) for width in widths]

        return {"widths": widths, "runs": effort.each_seed(progress, measure)}

    def verdict(self, numbers: Numbers) -> Verdict:
        variance = _mean(numbers, "variance")
        unscaled = _mean(numbers, "jacobian")
        scaled = _mean(numbers, "scaled_jacobian")
        widths = numbers["widths"]
        ratios = [v / width for v, width in zip(variance, widths, strict=True)]
        # Footnote 4: a sum of d_k products with variance 1 has variance d_k.
        is_linear = all(abs(ratio - 1) < 0.1 for ratio in ratios)
        vanishes = unscaled[-1] < unscaled[0] / 10
        stays = abs(scaled[-1] / scaled[0] - 1) < 0.25
        reason = (
            f"From d_k = {widths[0]} to {widths[-1]}, Var(q·k)/d_k is {min(ratios):.3f} to "
            f"{max(ratios):.3f}; the Jacobian's median norm goes from {unscaled[0]:.3g} to "
            f"{unscaled[-1]:.2g} without the scale, and from {scaled[0]:.3g} to {scaled[-1]:.3g} "
            "with it."
        )
        return judge(is_linear, vanishes and stays, reason)

    def figures(self, numbers: Numbers) -> list[Figure]:
        widths = numbers["widths"]
        x = Axis("d_k", log=True, ticks=tuple(widths))
        # What independent components of variance 1 give.
        theory = Series("d_k", widths, widths, style="dashed")
        return [
            Chart(
                "Variance of the scores q·k",
                x,
                Axis("variance", log=True),
                [_series(numbers, "unscaled", "variance"), theory],
            ),
            Chart(
                "Entropy of the attention weights",
                x,
                Axis("share of log(keys)", low=0.0, high=1.0),
                [
                    _series(numbers, "unscaled", "entropy"),
                    _series(numbers, "scaled by 1/√d_k", "scaled_entropy"),
                ],
            ),
            Chart(
                "Gradient that passes the softmax",
                x,
                Axis("‖∂weights/∂scores‖", log=True),
                [
                    _series(numbers, "unscaled", "jacobian"),
                    _series(numbers, "scaled by 1/√d_k", "scaled_jacobian"),
                ],
            ),
        ]

    def tables(self, numbers: Numbers) -> list[Table]:
        keys = ["variance", "entropy", "scaled_entropy", "jacobian", "scaled_jacobian"]
        rows = []
        for width, runs in zip(numbers["widths"], zip(*numbers["runs"], strict=True), strict=True):
            rows.append([str(width), *cells(runs, keys)])
        columns = ["d_k", "Var(q·k)", "entropy", "… scaled", "Jacobian", "… scaled"]
        return [Table("Mean ± standard deviation over the seeds", columns, rows)]


def _at_width(width: int, queries: int, generator: torch.Generator) -> dict[str, float]:
    """The measurements at one d_k."""
    # [SETS, queries / SETS, d_k] and [SETS, KEYS, d_k]
    q = torch.randn(SETS, queries // SETS, width, generator=generator)
    k = torch.randn(SETS, KEYS, width, generator=generator)
    scores = q @ k.mT  # [SETS, queries / SETS, KEYS]
    # Both softmaxes see the same scores.
    unscaled = scores.softmax(-1)
    scaled = (scores / math.sqrt(width)).softmax(-1)
    return {
        "variance": float(scores.var()),
        "entropy": _entropy(unscaled),
        "scaled_entropy": _entropy(scaled),
        "jacobian": _jacobian_norm(unscaled),
        "scaled_jacobian": _jacobian_norm(scaled),
    }


def _entropy(weights: Tensor) -> float:
    """The mean entropy, as a share of that of equal weights."""
    return float(torch.special.entr(weights).sum(-1).mean()) / math.log(KEYS)


def _jacobian_norm(weights: Tensor) -> float:
    """The median Frobenius norm of diag(p) − p pᵀ, the Jacobian of the softmax."""
    squares = weights.square()
    # Σ_i (p_i − p_i²)² on the diagonal, Σ_{i≠j} p_i² p_j² beside it
    diagonal = (weights - squares).square().sum(-1)
    off_diagonal = squares.sum(-1).square() - squares.square().sum(-1)
    return float((diagonal + off_diagonal).sqrt().median())


def _series(numbers: Numbers, name: str, key: str) -> Series:
    runs = [column(run, key) for run in numbers["runs"]]
    return Series.over_seeds(name, numbers["widths"], runs)


def _mean(numbers: Numbers, key: str) -> list[float]:
    """The mean over the seeds at each d_k."""
    return means([column(run, key) for run in numbers["runs"]])
