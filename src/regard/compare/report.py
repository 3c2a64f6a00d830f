"""A comparison as tables and as a figure."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from regard.compare.experiment import Comparison, ContenderResult
from regard.look import drawing, terminal

Measure = Callable[[ContenderResult], float]


def lines(comparison: Comparison, width: int = 140) -> list[str]:
    """One row for each model, and below it quality by the length of the sentences."""
    tables = [
        _overview(comparison),
        _by_length(comparison, "loss by source length", "loss", 3),
        _by_length(comparison, "exact match by length", "exact_match", 1),
    ]
    text = [_headline(comparison)]
    for table in tables:
        text += ["", *terminal.table(table, width=width)]
    return text


def _headline(comparison: Comparison) -> str:
    budget = comparison.budget
    seeds = max((len(one.runs) for one in comparison.contestants), default=1)
    mean = "mean of 1 seed" if seeds == 1 else f"mean of {seeds} seeds ± standard deviation"
    return (
        f"{comparison.name}: about {comparison.parameters:,} parameters, "
        f"{budget.of} {budget.amount:g}, {mean}"
    )


def _overview(comparison: Comparison) -> list[list[str]]:
    # The columns with how each is written; n is the length of a sentence.
    columns: dict[str, Callable[[ContenderResult], str]] = {
        "model": lambda one: one.word,
        "parameters": lambda one: f"{one.parameters:,}",
        "steps": lambda one: f"{one.steps:,}",
        "loss": lambda one: _mean(one, "loss", 3),
        "BLEU": lambda one: _mean(one, "bleu", 2),
        "exact": lambda one: _mean(one, "exact_match", 1),
        "train tok/s": lambda one: f"{one.mean('train_rate'):,.0f}",
        "decode tok/s": lambda one: f"{one.mean('decode_rate'):,.0f}",
        "GFLOP/step": lambda one: f"{one.cost.flops / 1e9:.2f}",
        "MB/step": lambda one: f"{one.cost.memory / 1e6:.0f}",
        "FLOPs ~ n^": lambda one: f"{one.cost.growth:.2f}",
        "time ~ n^": lambda one: f"{one.cost.time_growth:.2f}",
    }
    rows = [[column(one) for column in columns.values()] for one in comparison.contestants]
    return [list(columns), *rows]


def _by_length(comparison: Comparison, title: str, measure: str, digits: int) -> list[list[str]]:
    buckets = comparison.contestants[0].runs[0].buckets  # the same in all runs
    rows = [[title, *(f"{bucket.shortest}–{bucket.longest}" for bucket in buckets)]]
    for one in comparison.contestants:
        rows.append([one.word, *(f"{value:.{digits}f}" for _, value in one.by_length(measure))])
    return rows


def _mean(one: ContenderResult, measure: str, digits: int) -> str:
    """The mean over the seeds, with the standard deviation if there are several."""
    text = f"{one.mean(measure):.{digits}f}"
    if len(one.runs) > 1:
        text += f" ±{one.stdev(measure):.{digits}f}"
    return text


# ------------------------------------------------------------------ figure


def scene(comparison: Comparison) -> drawing.Scene:
    """The figure: quality, learning curves, quality by length, speed, memory and growth."""
    contenders = comparison.contestants
    names = [one.word for one in contenders]

    def bars(title: str, measure: Measure, number_format: str) -> drawing.Scene:
        values = [measure(one) for one in contenders]
        texts = [format(value, number_format) for value in values]
        return drawing.bars(values, names, title=title, labels=texts)

    learning_curves = {one.word: _learning_curve(one) for one in contenders}
    loss_by_length = {one.word: one.by_length("loss") for one in contenders}
    return drawing.below(
        [
            bars("BLEU on the test set", lambda one: one.mean("bleu"), ".2f"),
            bars("exact match, %", lambda one: one.mean("exact_match"), ".1f"),
            drawing.curves(learning_curves, title="validation loss by step"),
            drawing.curves(loss_by_length, title="loss a token by source length (test set)"),
            bars("training, tokens a second", lambda one: one.mean("train_rate"), ",.0f"),
            bars("decoding, tokens a second", lambda one: one.mean("decode_rate"), ",.0f"),
            bars("memory of an update, MB", lambda one: one.cost.memory / 1e6, ",.0f"),
            bars("FLOPs of an update, 10⁹", lambda one: one.cost.flops / 1e9, ",.2f"),
            bars("growth: exponent of FLOPs in the length", lambda one: one.cost.growth, ".2f"),
        ]
    )


def _learning_curve(one: ContenderResult) -> list[tuple[float, float]]:
    """The validation loss at each step, as the mean over the seeds."""
    curve = []
    # Runs that stopped early are shorter: the curve ends with the first of them.
    for points in zip(*(run.losses for run in one.runs), strict=False):
        step, _ = points[0]
        curve.append((float(step), statistics.mean(loss for _, loss in points)))
    return curve
