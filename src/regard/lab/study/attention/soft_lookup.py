"""Attention as a soft look-up: the limits of temperature."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from regard.core.masks.attention_mask import AttentionMask
from regard.core.masks.mask import FullMask
from regard.core.mixers.scaled_dot_product_attention import explicit
from regard.lab.study.figure import Table, line, mean, mean_text
from regard.lab.study.study import Effort, Numbers, Progress, Study, Verdict, judge
from regard.look.drawing import Axis, Chart, Figure, Series

KEYS = 32
WIDTH = 16  # of keys and values
TEMPERATURES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
EXACT = 1e-3  # relative error of a look-up that counts as hard


class SoftLookup(Study):
    name = "lookup"
    claim = (
        "Attention is a soft dictionary look-up: softmax(q·k/τ) applied to the values becomes the "
        "hard look-up of the best key as τ → 0, and the mean of all values as τ → ∞."
    )
    source = "Bahdanau et al. 2015, Section 3.1; Graves et al. 2014, Section 3.3.1 (key strength β)"
    measurement = (
        f"{KEYS} random keys of length 1 in {WIDTH} dimensions with random values; the attention "
        "kernel with the scale 1/τ against the value of the best key, the mean of all values, and "
        "the bound (n−1)·exp(−gap/τ) on the weight of the others. Once more with the best key "
        "stored twice, with two values."
    )
    rule = (
        f"The limits hold if the error is below {EXACT:g} of the values' norm at the lowest τ and "
        "the difference from the mean at the highest below 0.1, and no error exceeds the bound; "
        "the claim holds within limits if a key that is stored twice gives neither of its values."
    )

    def measure(self, effort: Effort, progress: Progress) -> Numbers:
        queries = effort.choose(200, 5000)
        runs = effort.each_seed(
            progress, lambda seed: _look_up(queries, torch.Generator().manual_seed(seed))
        )
        return {"temperatures": list(TEMPERATURES), "runs": runs}

    def verdict(self, numbers: Numbers) -> Verdict:
        runs = numbers["runs"]
        # Temperatures ascend: the first is the hard limit, the last the flat one.
        hard = mean([run["hard_error"][0] for run in runs])
        flat = mean([run["mean_error"][-1] for run in runs])
        tied = mean([run["tied_error"][0] for run in runs])
        above = max(run["above_bound"] for run in runs)
        lowest = numbers["temperatures"][0]
        reason = (
            f"At τ = {lowest:g} the result differs from the best key's value by {hard:.1e} of its "
            f"norm; at τ = {numbers['temperatures'][-1]:g} from the mean of all values by "
            f"{flat:.2g}. "
        )
        if hard > EXACT or flat > 0.1 or above > 0:
            return judge(False, False, reason + f"The bound is exceeded by {above:.1e}.")
        if tied > EXACT:
            reason += (
                "A best key that is stored twice is no look-up at any τ: the result is the mean "
                f"of its values, {tied:.2f} away from either."
            )
        return judge(tied <= EXACT, True, reason)

    def figures(self, numbers: Numbers) -> list[Figure]:
        runs = numbers["runs"]
        temperatures = numbers["temperatures"]
        x = Axis("temperature τ", log=True)
        return [
            Chart(
                "Distance from the hard look-up and from the mean",
                x,
                Axis("relative error", log=True, low=1e-8),
                [
                    line("from the best key's value", temperatures, runs, "hard_error"),
                    line("from the mean of all", temperatures, runs, "mean_error"),
                    line("best key stored twice", temperatures, runs, "tied_error"),
                ],
            ),
            Chart(
                "Weight of the best key",
                x,
                Axis("weight", low=0.0, high=1.0),
                [
                    line("one best key", temperatures, runs, "weight"),
                    Series("equal weights", TEMPERATURES, [1 / KEYS] * len(TEMPERATURES),
                           style="dashed"),
                ],
            ),
        ]  # fmt: skip

    def tables(self, numbers: Numbers) -> list[Table]:
        # The columns, in the order of their titles below.
        keys = ["weight", "hard_error", "mean_error", "tied_error"]
        rows = []
        for index, temperature in enumerate(numbers["temperatures"]):
            cells = [mean_text([run[key][index] for run in numbers["runs"]]) for key in keys]
            rows.append([f"{temperature:g}", *cells])
        columns = ["τ", "weight of the best", "from its value", "from the mean", "stored twice"]
        return [Table("Mean ± standard deviation over the seeds", columns, rows)]


def _look_up(queries: int, generator: torch.Generator) -> dict[str, object]:
    """All curves of one set of keys and values."""
    keys = torch.nn.functional.normalize(_normal(generator, KEYS, WIDTH), dim=-1)
    values = _normal(generator, KEYS, WIDTH)
    q = _normal(generator, queries, WIDTH)
    scores = q @ keys.T  # [queries, KEYS]
    best = scores.argmax(-1)
    # The gap between the two best scores decides how low τ must be.
    top = scores.topk(2).values
    gap = top[:, 0] - top[:, 1]
    # What a dictionary would return.
    hard = values[best]
    # The best key once more at the end, with another value.
    twice = torch.cat([keys.expand(queries, -1, -1), keys[best][:, None]], dim=1)
    other = _normal(generator, queries, 1, WIDTH)
    both = torch.cat([values.expand(queries, -1, -1), other], dim=1)
    curves: dict[str, list[float]] = {
        "hard_error": [], "mean_error": [], "tied_error": [], "weight": [],
    }  # fmt: skip
    above = 0.0
    for temperature in TEMPERATURES:
        soft = _attend(q[None], keys[None], values[None], temperature)[0]
        tied = _attend(q[:, None], twice, both, temperature)[:, 0]
        weight = (scores / temperature).softmax(-1).gather(1, best[:, None])[:, 0]
        # The weight of all others is at most (n − 1) · exp(−gap/τ).
        bound = (KEYS - 1) * (-gap / temperature).exp()
        above = max(above, float((1 - weight - bound).max()) - 1e-12)
        # Either of the two values would be a look-up.
        nearest = torch.minimum((tied - hard).norm(dim=-1), (tied - other[:, 0]).norm(dim=-1))
        curves["hard_error"].append(_relative((soft - hard).norm(dim=-1)))
        curves["mean_error"].append(_relative((soft - values.mean(0)).norm(dim=-1)))
        curves["tied_error"].append(_relative(nearest))
        curves["weight"].append(float(weight.mean()))
    return {**curves, "above_bound": max(0.0, above)}


def _attend(q: Tensor, k: Tensor, v: Tensor, temperature: float) -> Tensor:
    """The attention kernel with one head: [B, T, WIDTH]."""
    mask = AttentionMask(FullMask(), torch.arange(q.shape[1]), torch.arange(k.shape[1]))
    return explicit(q[:, None], k[:, None], v[:, None], mask, 1 / temperature, 0.0)[:, 0]


def _normal(generator: torch.Generator, *shape: int) -> Tensor:
    # In float64, so that the limits are those of the formula and not of the numbers.
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def _relative(distance: Tensor) -> float:
    """The median distance, relative to the norm of values."""
    return max(float(distance.median()) / math.sqrt(WIDTH), 1e-16)
