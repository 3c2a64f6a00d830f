"""Scores of attention: why they are divided by √d_k; additive and dot-product scores."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from regard import spec
from regard.data.generated.algorithmic_tasks import LETTERS, Reversing
from regard.lab.measure.instruments import fastest
from regard.lab.study.evidence import judge_sentences
from regard.lab.study.figure import Shown, chart, column, mean, means, table
from regard.lab.study.study import Effort, Numbers, Study, Verdict, judge
from regard.lab.study.training_run import (
    TaskBatches,
    Variants,
    build_seeded,
    compare,
    language_model,
    with_block,
)
from regard.look.drawing import Axis, BarChart, Bars, Series

KEYS = 64  # of each query
SETS = 20  # of keys, so that no single one decides


class ScoreScaling(Study):
    """For large d_k the dot products grow large in magnitude, pushing the softmax into regions
    where it has extremely small gradients; scaling by 1/√d_k counteracts this.

    Queries and {KEYS} keys with independent standard normal components, for d_k from 4 to 1,024:
    the variance of q·k, the entropy of the softmax over the keys (as a share of the entropy of
    equal weights), and the Frobenius norm of its Jacobian ∂weights/∂scores for the median query;
    with the scale 1/√d_k and without.
    """

    name = "scaling"
    source = "Vaswani et al. 2017, Section 3.2.1 and its footnote 4"
    seeds = (2, 5)

    def measure(self, effort: Effort) -> Numbers:
        # The paper has 64; larger ones show where the scale would be missed.
        widths = [4, 16, 64, 256, 512, 1024]
        queries = effort.choose(1000, 10_000)

        def measure(seed: int) -> list[dict[str, float]]:
            generator = torch.Generator().manual_seed(seed)
            return [_at_width(width, queries, generator) for width in widths]

        return {"widths": widths, "runs": effort.each_seed(measure)}

    def verdict(self, numbers: Numbers) -> Verdict:
        """Holds if Var(q·k)/d_k stays within 10 % of 1 for all d_k, the Jacobian of the unscaled
        softmax shrinks from the smallest to the largest d_k to less than a tenth, and that of the
        scaled one changes by less than a quarter. Within limits if only the last two hold."""
        variance, unscaled, scaled = (
            means(_by_seed(numbers, key)) for key in ("variance", "jacobian", "scaled_jacobian")
        )
        widths = numbers["widths"]
        # Footnote 4: a sum of d_k products with variance 1 has variance d_k.
        ratios = [v / width for v, width in zip(variance, widths, strict=True)]
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

    def show(self, numbers: Numbers) -> list[Shown]:
        widths = numbers["widths"]
        x = Axis("d_k", log=True, ticks=tuple(widths))
        variance = chart(
            "Variance of the scores q·k",
            x,
            Axis("variance", log=True),
            widths,
            {"unscaled": _by_seed(numbers, "variance")},
        )
        # What independent components of variance 1 give.
        theory = Series("d_k", widths, widths, style="dashed")
        entropy = Axis("share of log(keys)", low=0.0, high=1.0)
        jacobian = Axis("‖∂weights/∂scores‖", log=True)
        columns = {
            "variance": "Var(q·k)",
            "entropy": "entropy",
            "scaled_entropy": "… scaled",
            "jacobian": "Jacobian",
            "scaled_jacobian": "… scaled",
        }
        by_width = zip(widths, zip(*numbers["runs"], strict=True), strict=True)
        return [
            replace(variance, series=[*variance.series, theory]),
            *(
                chart(
                    title,
                    x,
                    y,
                    widths,
                    {
                        "unscaled": _by_seed(numbers, key),
                        "scaled by 1/√d_k": _by_seed(numbers, f"scaled_{key}"),
                    },
                )
                for title, y, key in (
                    ("Entropy of the attention weights", entropy, "entropy"),
                    ("Gradient that passes the softmax", jacobian, "jacobian"),
                )
            ),
            table("d_k", columns, dict(by_width)),
        ]


def _by_seed(numbers: Numbers, key: str) -> list[list[float]]:
    """A measurement over d_k: [seeds][widths]."""
    return [column(run, key) for run in numbers["runs"]]


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


# ------------------------------------------------------------------ additive and dot product

# The order of figures and tables.
SCORES: dict[str, dict[str, Any]] = {
    "additive": {"mixer": spec.AdditiveAttention()},
    "scaled dot product": {},  # 1/√d_k is the default.
    "dot product": {"scale": 1.0},
}
WIDTHS = (4, 64)  # d_k, small and large
LENGTHS = (32, 64, 128, 256)  # tokens, of the timing
NEAR = 0.1  # relative difference of losses that counts as similar


class ScoreFunction(Study):
    """Additive and dot-product attention perform similarly for small d_k; for large d_k additive
    attention outperforms the dot product without scaling; the dot product is much faster.

    Language models of two layers that learn to reverse up to four letters, with d_k = {WIDTHS[0]}
    and {WIDTHS[1]} and three scores: w·tanh(q + k), q·k/√d_k and q·k; loss on test inputs. Then the
    time of one forward pass over 32 to 256 tokens.
    """

    name = "score_function"
    source = "Vaswani et al. 2017, Section 3.2.1; Britz et al. 2017, Section 4.5"
    seeds = (2, 4)

    def measure(self, effort: Effort) -> Numbers:
        task = TaskBatches(Reversing(max_length=4), LETTERS)
        steps = effort.choose(120, 400)
        variants = _scores(len(task.vocabulary))
        test = list(islice(task.stream("test", 0), effort.choose(4, 16)))
        runs = compare(variants, lambda seed: task.stream("train", seed), test, steps, effort)
        # The wide heads, where the score is most of the cost.
        times = {score: _times(variants[f"{score}, d_k = {WIDTHS[1]}"]) for score in SCORES}
        return {"runs": runs, "times": times, "lengths": list(LENGTHS), "steps": steps}

    def verdict(self, numbers: Numbers) -> Verdict:
        """Three statements: for small d_k additive and unscaled dot product differ by less than 10
        % of the loss or 0.02; for large d_k the unscaled dot product is worse than additive by more
        than that; at the longest input the dot product is more than 1.5 times as fast. Holds if all
        are true, within limits if some are."""
        small, large = (
            {score: mean(_losses(numbers, score, width)) for score in SCORES} for width in WIDTHS
        )
        speed = numbers["times"]["additive"][-1] / numbers["times"]["scaled dot product"][-1]
        sentences = {
            "similar for small d_k": not _differs(small["additive"], small["dot product"]),
            "unscaled worse for large d_k": large["dot product"] > large["additive"]
            and _differs(large["additive"], large["dot product"]),
            "dot product faster": speed > 1.5,
        }
        losses = (
            f"d_k = {width}: loss {of['additive']:.3f} additive, "
            f"{of['scaled dot product']:.3f} scaled, {of['dot product']:.3f} unscaled. "
            for width, of in zip(WIDTHS, (small, large), strict=True)
        )
        reason = (
            f"{''.join(losses)}The dot product is {speed:.1f} times as fast at "
            f"{numbers['lengths'][-1]} tokens."
        )
        return judge_sentences(sentences, reason)

    def show(self, numbers: Numbers) -> list[Shown]:
        lengths = numbers["lengths"]
        return [
            BarChart(
                "Loss on reversing letters",
                Axis("test loss, nats a token"),
                [f"d_k = {width}" for width in WIDTHS],
                [Bars(one, [_losses(numbers, one, width) for width in WIDTHS]) for one in SCORES],
            ),
            chart(
                "Time of a forward pass",
                Axis("tokens", log=True, ticks=tuple(lengths)),
                Axis("ms", log=True),
                lengths,
                {score: [times] for score, times in numbers["times"].items()},
            ),
            table(
                "score",
                {"loss": "loss", "exact": "without a mistake, %"},
                numbers["runs"],
                f"After {numbers['steps']} steps",
            ),
        ]


def _scores(vocabulary: int) -> Variants:
    """One language model for each score and each d_k."""
    # One head, so that d_k can be chosen freely.
    model: Any = language_model(vocabulary, max(LENGTHS), heads=1)
    attention = model.stack.block.attention
    return {
        f"{score}, d_k = {width}": with_block(
            model, attention=replace(attention, d_k=width, **change)
        )
        for width in WIDTHS
        for score, change in SCORES.items()
    }


@torch.no_grad()
def _times(model_spec: spec.Model) -> list[float]:
    """Milliseconds of a forward pass at each length: the least of a few."""
    model: Any = build_seeded(model_spec, 1).eval()
    # The time does not depend on which tokens they are.
    batches = [torch.zeros(4, length, dtype=torch.long) for length in LENGTHS]
    return [1000 * fastest(partial(model, tokens), 5) for tokens in batches]


def _losses(numbers: Numbers, score: str, width: int) -> list[float]:
    return column(numbers["runs"][f"{score}, d_k = {width}"], "loss")


def _differs(a: float, b: float) -> bool:
    return abs(a - b) > max(NEAR * a, 0.02)
