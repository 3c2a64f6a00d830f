"""Multi-head attention: one head or many, and which of them can be pruned."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.core.context import Context
from regard.core.probe import Probe
from regard.lab.study.figure import Table, column, exceeds, mean, mean_text
from regard.lab.study.study import Effort, Numbers, Progress, Study, Verdict, judge
from regard.lab.study.training_run import (
    Batch,
    builtin_text,
    builtin_vocabulary,
    english_test,
    evaluate,
    language_model,
    mean_loss,
    trained,
)
from regard.look.drawing import Axis, BarChart, Bars, Chart, Figure, Series

MANY = 8  # the number of heads that are pruned
LAYERS = 2  # of the small language model
TOLERANCE = 0.01  # relative rise of the loss that a pruned model may have


class Heads(Study):
    name = "heads"
    claim = (
        "Several heads are better than one of the same total width, and after training most of "
        "them can be removed without a loss."
    )
    source = (
        "Vaswani et al. 2017, Section 3.2.2 and Table 3 (A); Michel et al. 2019, Sections 3 and 4; "
        "Voita et al. 2019"
    )
    measurement = (
        "Language models of two layers and d_model 64 on the built-in English, with 1 to 16 heads "
        "(d_k = 64/h, so that all have as many parameters): validation loss. In those with "
        f"{MANY} heads, each head is ablated alone, then all of them in the order of what they are "
        "worth."
    )
    rule = (
        "Holds if the best number of heads beats one head by more than the standard deviations of "
        f"both, and at least half of all heads go together for {100 * TOLERANCE:.0f} % of the "
        "loss; within limits if one of the two is true; else it does not hold."
    )
    full_seeds = 3

    def measure(self, effort: Effort, progress: Progress) -> Numbers:
        # d_model 64 is divisible by all of them.
        counts = effort.choose([1, 8], [1, 2, 4, 8, 16])
        steps = effort.choose(200, 800)
        test = english_test(effort)
        pruning = []

        def loss(heads: str, seed: int) -> float:
            model = language_model(len(builtin_vocabulary()), 32, heads=int(heads))
            module = trained(model, seed, builtin_text("train", 5000, seed), steps)
            if int(heads) == MANY:
                pruning.append(_prune(module, test[0]))
            return evaluate(module, test).loss

        losses = effort.each(progress, map(str, counts), loss)
        return {"losses": losses, "pruning": pruning, "steps": steps}

    def verdict(self, numbers: Numbers) -> Verdict:
        losses = numbers["losses"]
        best = min((name for name in losses if name != "1"), key=lambda name: mean(losses[name]))
        # Of all heads of both layers.
        shares = [removable(run["curve"]) / (len(run["curve"]) - 1) for run in numbers["pruning"]]
        reason = (
            f"Loss {mean_text(losses['1'])} with one head, {mean_text(losses[best])} with {best}; "
            f"{100 * mean(shares):.0f} % of {LAYERS * MANY} heads can go for "
            f"{100 * TOLERANCE:.0f} % of the loss."
        )
        facts = [exceeds(losses["1"], losses[best]), mean(shares) >= 0.5]
        return judge(all(facts), any(facts), reason)

    def figures(self, numbers: Numbers) -> list[Figure]:
        losses = numbers["losses"]
        curves = column(numbers["pruning"], "curve")
        gone = list(range(len(curves[0])))
        # So that small differences are seen.
        least = min(map(min, losses.values()))
        return [
            BarChart(
                "Loss by the number of heads",
                Axis("validation loss, nats a token", low=round(0.9 * least, 1)),
                list(losses),
                [Bars("", list(losses.values()))],
                note="The axis does not begin at 0.",
            ),
            Chart(
                f"Loss as heads are removed, of {gone[-1]}",
                Axis("heads removed, the least important first"),
                Axis("loss, nats a token"),
                [Series.over_seeds("", gone, curves)],
            ),
        ]

    def tables(self, numbers: Numbers) -> list[Table]:
        rows = [[name, mean_text(values)] for name, values in numbers["losses"].items()]
        worth = [
            [f"layer {layer}", *(f"{value:+.3f}" for value in values)]
            for layer, values in enumerate(numbers["pruning"][0]["worth"])
        ]
        columns = ["", *(f"head {head}" for head in range(MANY))]
        return [
            Table("Loss after training", ["heads", "loss"], rows),
            Table("Rise of the loss where one head is ablated, first seed", columns, worth),
        ]


def removable(curve: list[float]) -> int:
    """How many heads can be removed together within the tolerance."""
    # The curve begins with no head removed.
    limit = curve[0] * (1 + TOLERANCE)
    return max(count for count, loss in enumerate(curve) if loss <= limit)


@torch.no_grad()
def _prune(model: Any, batch: Batch) -> dict[str, Any]:
    """What each head is worth, and the loss as the least important are ablated one by one."""
    heads = [(layer, head) for layer in range(LAYERS) for head in range(MANY)]
    base = _loss_without(model, batch, [])
    worth = {pair: _loss_without(model, batch, [pair]) - base for pair in heads}
    # Importance by ablation of each head alone, as Michel et al. measure it first (Section 3.2).
    order = sorted(heads, key=lambda pair: worth[pair])
    curve = [_loss_without(model, batch, order[:count]) for count in range(len(order) + 1)]
    rows = [[worth[(layer, head)] for head in range(MANY)] for layer in range(LAYERS)]
    return {"worth": rows, "curve": curve}


def _loss_without(model: Any, batch: Batch, heads: list[tuple[int, int]]) -> float:
    """The loss with these heads ablated: what they find is zero."""
    edits = {}
    for layer in range(LAYERS):
        # A layer without ablated heads is edited too, by nothing.
        ablated = [head for place, head in heads if place == layer]
        edits[f"decoder.{layer}.self.mixed"] = _without(ablated)
    hidden, _ = model(batch.tokens, None, Context(Probe(edits=edits)))
    return float(mean_loss(model.head(hidden), batch.targets))


def _without(ablated: list[int]) -> Any:
    def edit(mixed: Tensor) -> Tensor:  # [B, H, T, E]
        mixed = mixed.clone()
        mixed[:, ablated] = 0.0
        return mixed

    return edit
