"""Tied projections: one matrix for queries, keys and values, one for two of them, or three."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from regard import spec
from regard.builder.parameter_count import parameter_count
from regard.lab.study.figure import Table, bars, cells, column, exceeds, mean_text
from regard.lab.study.study import Effort, Numbers, Progress, Study, Verdict, judge
from regard.lab.study.training_run import (
    Variants,
    builtin_vocabulary,
    compare_on_english,
    language_model,
    with_block,
)
from regard.look.drawing import Axis, BarChart, Figure

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
    name = "tied_projections"
    claim = (
        "Queries, keys and values need matrices of their own: with one matrix for all three the "
        "scores are symmetric, each position attends to itself first, and quality falls."
    )
    source = (
        "Vaswani et al. 2017, Section 3.2.2 (three projections for each head); for shared queries "
        "and keys the opposite is claimed by Kitaev et al. 2020, Section 5 (Figure 3)"
    )
    measurement = (
        "Language models of two layers and d_model 64 on the built-in English, whose queries, keys "
        "and values have three matrices, two, or one: validation loss and parameters. Once more "
        "with d_ff raised until all have as many parameters."
    )
    rule = (
        "Holds if one matrix for all three has a higher loss than separate ones, at equal width "
        "and at equal parameters, by more than the standard deviations of both; within limits if "
        "only at one of the two; else it does not hold."
    )
    full_seeds = 3

    def measure(self, effort: Effort, progress: Progress) -> Numbers:
        steps = effort.choose(200, 800)
        variants = _variants()
        if effort.quick:
            variants = {name: variants[name] for name in QUICK}
        runs = compare_on_english(variants, steps, effort, progress)
        parameters = {name: parameter_count(model) for name, model in variants.items()}
        return {"runs": runs, "parameters": parameters, "steps": steps}

    def verdict(self, numbers: Numbers) -> Verdict:
        losses = {name: column(runs, "loss") for name, runs in numbers["runs"].items()}
        # Three of the variants decide; the others are shown.
        separate = losses["separate"]
        # Fewer parameters
        tied = losses["Q = K = V"]
        # As many parameters, in the feed-forward network
        equal = losses["Q = K = V, wider"]
        reason = (
            f"Loss after {numbers['steps']} steps: {mean_text(separate)} with separate matrices, "
            f"{mean_text(tied)} with one, {mean_text(equal)} with one and as many parameters."
        )
        # At equal width, and at equal size.
        worse = [exceeds(values, separate) for values in (tied, equal)]
        return judge(all(worse), any(worse), reason)

    def figures(self, numbers: Numbers) -> list[Figure]:
        losses = bars(numbers["runs"], "loss")
        # Losses differ by a few per cent: from zero, all bars would look alike.
        least = min(map(min, losses.values))
        return [
            BarChart(
                "Loss with tied projections",
                Axis("validation loss, nats a token", low=round(0.9 * least, 1)),
                list(numbers["runs"]),
                [losses],
                note="The axis does not begin at 0.",
            )
        ]

    def tables(self, numbers: Numbers) -> list[Table]:
        rows = []
        for name, runs in numbers["runs"].items():
            parameters = f"{numbers['parameters'][name]:,}"
            rows.append([name, parameters, *cells(runs, ["loss", "accuracy"])])
        columns = ["matrices", "parameters", "loss", "accuracy, %"]
        return [Table("Mean ± standard deviation over the seeds", columns, rows)]


def _variants() -> Variants:
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
