"""Multi-head attention: one head or many, which can be pruned, and matrices that are tied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from regard import spec
from regard.builder.parameter_count import parameter_count
from regard.core.context import Context
from regard.core.probe import Probe
from regard.lab.study.figure import (
    OVER_SEEDS,
    Shown,
    Table,
    bar_chart,
    cells,
    chart,
    column,
    exceeds,
    mean,
    mean_text,
)
from regard.lab.study.study import Effort, Numbers, Study, Verdict, judge
from regard.lab.study.training_run import (
    Batch,
    Variants,
    builtin_text,
    builtin_vocabulary,
    compare_on_english,
    english_test,
    evaluate,
    language_model,
    mean_loss,
    trained,
    with_block,
)
from regard.look.drawing import Axis, BarChart, Bars
from regard.look.probe_names import Head, switched_off

MANY = 8  # the number of heads that are pruned
LAYERS = 2  # of the small language model
TOLERANCE = 0.01  # relative rise of the loss that a pruned model may have
CUT = "The axis does not begin at 0."


class Heads(Study):
    """Several heads are better than one of the same total width, and after training most of them
    can be removed without a loss.

    Language models of two layers and d_model 64 on the built-in English, with 1 to 16 heads (d_k =
    64/h, so that all have as many parameters): validation loss. In those with {MANY} heads, each
    head is ablated alone, then all of them in the order of what they are worth.
    """

    name = "heads"
    source = (
        "Vaswani et al. 2017, Section 3.2.2 and Table 3 (A); Michel et al. 2019, Sections 3 and 4; "
        "Voita et al. 2019"
    )
    seeds = (2, 3)

    def measure(self, effort: Effort) -> Numbers:
        # d_model 64 is divisible by all of them.
        counts = effort.choose([1, 8], [1, 2, 4, 8, 16])
        steps = effort.choose(200, 800)
        test = english_test(effort)

        def measure(heads: str, seed: int) -> tuple[float, Any]:
            model = language_model(len(builtin_vocabulary()), 32, heads=int(heads))
            module = trained(model, seed, builtin_text("train", 5000, seed), steps)
            pruning = _prune(module, test[0]) if int(heads) == MANY else None
            return evaluate(module, test).loss, pruning

        runs = effort.each(map(str, counts), measure)
        return {
            "losses": {heads: [loss for loss, _ in each] for heads, each in runs.items()},
            "pruning": [pruning for _, pruning in runs[str(MANY)]],
            "steps": steps,
        }

    def verdict(self, numbers: Numbers) -> Verdict:
        """Holds if the best number of heads beats one head by more than the standard deviations of
        both, and at least half of all heads go together for 1 % of the loss; within limits if one
        of the two is true; else it does not hold."""
        losses = numbers["losses"]
        best = min((name for name in losses if name != "1"), key=lambda name: mean(losses[name]))
        # Of all heads of both layers.
        share = mean(removable(run["curve"]) / (LAYERS * MANY) for run in numbers["pruning"])
        reason = (
            f"Loss {mean_text(losses['1'])} with one head, {mean_text(losses[best])} with {best}; "
            f"{100 * share:.0f} % of {LAYERS * MANY} heads can go for "
            f"{100 * TOLERANCE:.0f} % of the loss."
        )
        facts = [exceeds(losses["1"], losses[best]), share >= 0.5]
        return judge(all(facts), any(facts), reason)

    def show(self, numbers: Numbers) -> list[Shown]:
        losses = numbers["losses"]
        curves = column(numbers["pruning"], "curve")
        gone = range(len(curves[0]))
        worth = [
            [f"layer {layer}", *(f"{value:+.3f}" for value in values)]
            for layer, values in enumerate(numbers["pruning"][0]["worth"])
        ]
        return [
            BarChart(
                "Loss by the number of heads",
                _axis_of(losses.values()),
                list(losses),
                [Bars("", list(losses.values()))],
                note=CUT,
            ),
            chart(
                f"Loss as heads are removed, of {gone[-1]}",
                Axis("heads removed, the least important first"),
                Axis("loss, nats a token"),
                gone,
                {"": curves},
            ),
            Table(
                "Loss after training",
                ["heads", "loss"],
                [[name, mean_text(values)] for name, values in losses.items()],
            ),
            Table(
                "Rise of the loss where one head is ablated, first seed",
                ["", *(f"head {head}" for head in range(MANY))],
                worth,
            ),
        ]


def _axis_of(losses: Any) -> Axis:
    # Losses differ by a few per cent: from zero, all bars would look alike.
    return Axis("validation loss, nats a token", low=round(0.9 * min(map(min, losses)), 1))


def removable(curve: list[float]) -> int:
    """How many heads can be removed together within the tolerance."""
    # The curve begins with no head removed.
    limit = curve[0] * (1 + TOLERANCE)
    return max(count for count, loss in enumerate(curve) if loss <= limit)


@torch.no_grad()
def _prune(model: Any, batch: Batch) -> dict[str, Any]:
    """What each head is worth, and the loss as the least important are ablated one by one."""

    def loss_without(off: Sequence[Head]) -> float:
        hidden, _ = model(batch.tokens, None, Context(Probe(edits=switched_off(model, off))))
        return float(mean_loss(model.head(hidden), batch.targets))

    layers = [[(f"decoder.{layer}.self", head) for head in range(MANY)] for layer in range(LAYERS)]
    base = loss_without([])
    worth = {head: loss_without([head]) - base for heads in layers for head in heads}
    # Importance by ablation of each head alone, as Michel et al. measure it first (Section 3.2).
    order = sorted(worth, key=lambda head: worth[head])
    curve = [loss_without(order[:count]) for count in range(len(order) + 1)]
    return {"worth": [[worth[head] for head in heads] for heads in layers], "curve": curve}


# ------------------------------------------------------------------ tied projections

# How `spec.Attention.projection` calls them.
PROJECTIONS = {
    "separate": "apart",
    "K = V": "tied_kv",
    "Q = K": "tied_qk",
    "Q = K = V": "tied_qkv",
}
# The variants that the rule needs.
QUICK = ("separate", "Q = K = V", "Q = K = V, wider")


class TiedProjections(Study):
    """Queries, keys and values need matrices of their own: with one matrix for all three the scores
    are symmetric, each position attends to itself first, and quality falls.

    Language models of two layers and d_model 64 on the built-in English, whose queries, keys and
    values have three matrices, two, or one: validation loss and parameters. Once more with d_ff
    raised until all have as many parameters.
    """

    name = "tied_projections"
    source = (
        "Vaswani et al. 2017, Section 3.2.2 (three projections for each head); for shared queries "
        "and keys the opposite is claimed by Kitaev et al. 2020, Section 5 (Figure 3)"
    )
    seeds = (2, 3)

    def measure(self, effort: Effort) -> Numbers:
        steps = effort.choose(200, 800)
        variants = _projections()
        if effort.quick:
            variants = {name: variants[name] for name in QUICK}
        runs = compare_on_english(variants, steps, effort)
        parameters = {name: parameter_count(model) for name, model in variants.items()}
        return {"runs": runs, "parameters": parameters, "steps": steps}

    def verdict(self, numbers: Numbers) -> Verdict:
        """Holds if one matrix for all three has a higher loss than separate ones, at equal width
        and at equal parameters, by more than the standard deviations of both; within limits if only
        at one of the two; else it does not hold."""
        # Separate ones, one with fewer parameters, one with as many.
        separate, tied, equal = (column(numbers["runs"][name], "loss") for name in QUICK)
        reason = (
            f"Loss after {numbers['steps']} steps: {mean_text(separate)} with separate matrices, "
            f"{mean_text(tied)} with one, {mean_text(equal)} with one and as many parameters."
        )
        worse = [exceeds(values, separate) for values in (tied, equal)]
        return judge(all(worse), any(worse), reason)

    def show(self, numbers: Numbers) -> list[Shown]:
        runs = numbers["runs"]
        losses = bar_chart("Loss with tied projections", "", runs, {"loss": ""})
        rows = [
            [name, f"{numbers['parameters'][name]:,}", *cells(each, ["loss", "accuracy"])]
            for name, each in runs.items()
        ]
        return [
            replace(losses, y=_axis_of(losses.series[0].values), note=CUT),
            Table(OVER_SEEDS, ["matrices", "parameters", "loss", "accuracy, %"], rows),
        ]


def _projections() -> Variants:
    """The language model with each projection, and the tied one with a wider feed-forward."""
    model: Any = language_model(len(builtin_vocabulary()), 32)
    variants: Variants = {name: _with(model, word) for name, word in PROJECTIONS.items()}
    # Two matrices of d² are missing; a unit of the feed-forward network has 2·d weights.
    more: Any = language_model(len(builtin_vocabulary()), 32, d_ff=256 + model.d_model)
    variants["Q = K = V, wider"] = _with(more, "tied_qkv")
    return variants


def _with(model: Any, projection: str) -> spec.Model:
    attention = replace(model.stack.block.attention, projection=projection)
    return with_block(model, attention=attention)
