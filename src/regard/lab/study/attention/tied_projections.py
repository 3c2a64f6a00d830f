"""Tied projections: one matrix for queries, keys and values, one for two of them, or three."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Any

from regard import spec
from regard.builder.parameter_count import parameter_count
from regard.lab.study.figure import Table, deviation, mean, mean_text
from regard.lab.study.study import Effort, Numbers, Outcome, Progress, Study, Verdict
from regard.lab.study.training_run import (
    Variants,
    builtin_text,
    builtin_vocabulary,
    compare,
    language_model,
)
from regard.look.drawing import Axis, BarChart, Bars, Figure

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
        test = list(islice(builtin_text("test", 500, 0, rows=64), effort.choose(2, 6)))
        runs = compare(
            variants,
            lambda seed: builtin_text("train", 5000, seed),
            test,
            steps,
            effort.seeds,
            progress,
        )
        parameters = {name: parameter_count(model) for name, model in variants.items()}
        return {"runs": runs, "parameters": parameters, "steps": steps}

    def verdict(self, numbers: Numbers) -> Verdict:
        losses = {name: [run["loss"] for run in runs] for name, runs in numbers["runs"].items()}
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
        worse = [_is_higher(values, separate) for values in (tied, equal)]
        if all(worse):
            return Verdict(Outcome.HOLDS, reason)
        return Verdict(Outcome.LIMITED if any(worse) else Outcome.FAILS, reason)

    def figures(self, numbers: Numbers) -> list[Figure]:
        names = list(numbers["runs"])
        losses = [[run["loss"] for run in numbers["runs"][name]] for name in names]
        # Losses differ by a few per cent: from zero, all bars would look alike.
        least = min(min(values) for values in losses)
        return [
            BarChart(
                "Loss with tied projections",
                Axis("validation loss, nats a token", low=round(0.9 * least, 1)),
                names,
                [Bars("", losses)],
                note="The axis does not begin at 0.",
            )
        ]

    def tables(self, numbers: Numbers) -> list[Table]:
        rows = []
        for name, runs in numbers["runs"].items():
            cells = [mean_text([run[key] for run in runs]) for key in ("loss", "accuracy")]
            rows.append([name, f"{numbers['parameters'][name]:,}", *cells])
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
    block = replace(model.stack.block, attention=attention)
    changed: spec.Model = replace(model, stack=replace(model.stack, block=block))
    return changed


def _is_higher(values: list[float], base: list[float]) -> bool:
    """Higher by more than the standard deviations of both."""
    return mean(values) - mean(base) > deviation(values) + deviation(base)
