"""A comparison: its results, as tables and as a figure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from html import escape
from typing import Any

from regard.evaluation.metrics.significance import PairedTest
from regard.lab.compare.contenders import Budget
from regard.lab.compare.results import ContenderResult
from regard.look import drawing
from regard.look.drawing import terminal

Measure = Callable[[ContenderResult], float]
# The metrics that are shown, if a run has them: their titles, and digits after the point.
METRICS = {
    "bleu": ("BLEU", 2),
    "exact_match": ("exact", 1),
    "accuracy": ("accuracy", 1),
    "f1": ("F1", 1),
    "wer": ("WER", 2),
    "cer": ("CER", 2),
    "mse": ("MSE", 4),
    "mae": ("MAE", 4),
    "quantile_loss": ("quantile loss", 4),
    "perplexity": ("perplexity", 3),
    "bits_per_character": ("bits/char", 3),
}
# Splits that training has looked at; scored only where there are no others.
_VALIDATION = ("valid", "validation")


@dataclass(frozen=True)
class Comparison:
    """The result of `regard compare`; notebooks show its tables and figure."""

    name: str
    parameters: int
    budget: Budget
    contestants: list[ContenderResult]
    unit: str = "tokens"  # what training counts
    # Of two models on the test set, with the first seed: the second's score minus the first's by
    # metric, and its p-value.
    tests: dict[str, PairedTest] = field(default_factory=dict)

    def data(self) -> dict[str, Any]:
        """The comparison as JSON values."""
        return asdict(self)

    def __str__(self) -> str:
        return "\n".join(lines(self))

    def _repr_html_(self) -> str:
        """The tables and the figure, for a notebook."""
        text = f'<pre style="overflow-x:auto">{escape(str(self))}</pre>'
        return text + drawing.svg(scene(self), f"comparison on {self.name}")


def lines(comparison: Comparison, width: int = 200) -> list[str]:
    """One row for each model, and below it quality by the length of the sentences."""
    tables = [_overview(comparison)]
    if comparison.contestants[0].runs[0].buckets:
        tables.append(_by_length(comparison, "loss by source length", "loss", 3))
        tables.append(_by_length(comparison, "exact match by length", "exact_match", 1))
    text = [_headline(comparison)]
    for table in tables:
        text += ["", *terminal.table(table, width=width)]
    if comparison.tests:
        text += ["", _significance(comparison)]
    return text


def _significance(comparison: Comparison) -> str:
    """The paired tests of two models in a line."""
    first, second = (one.word for one in comparison.contestants)
    differences = [
        f"{name} {test.difference:+.2f} (p = {test.p_value:.4f})"
        for name, test in comparison.tests.items()
    ]
    return (
        f"{second} against {first} on the test set, seed {comparison.contestants[0].runs[0].seed}, "
        f"by paired approximate randomization: {', '.join(differences)}"
    )


def _headline(comparison: Comparison) -> str:
    budget = comparison.budget
    seeds = max((len(one.runs) for one in comparison.contestants), default=1)
    mean = "mean of 1 seed" if seeds == 1 else f"mean of {seeds} seeds ± standard deviation"
    return (
        f"{comparison.name}: about {comparison.parameters:,} parameters, "
        f"{budget.of} {budget.amount:g}, {mean}"
    )


def _overview(comparison: Comparison) -> list[list[str]]:
    unit = "tok" if comparison.unit == "tokens" else comparison.unit
    # The columns with how each is written; n is the length of a sentence.
    columns: dict[str, Callable[[ContenderResult], str]] = {
        "model": lambda one: one.word,
        "parameters": lambda one: f"{one.parameters:,}",
        "steps": lambda one: f"{one.steps:,}",
        "loss": lambda one: _with_deviation(one, one.mean("loss"), one.stdev("loss"), 3),
    }
    for title, split, metric in _metrics(comparison):
        columns[title] = partial(_score, split=split, metric=metric)
    columns[f"train {unit}/s"] = lambda one: f"{one.mean('train_rate'):,.0f}"
    if comparison.contestants[0].runs[0].decode_rate is not None:
        columns["decode tok/s"] = lambda one: f"{one.mean('decode_rate'):,.0f}"
    columns |= {
        "GFLOP/step": lambda one: f"{one.cost.flops / 1e9:.2f}",
        "MB/step": lambda one: f"{one.cost.memory / 1e6:.0f}",
    }
    if comparison.contestants[0].cost.growth is not None:
        columns |= {
            "FLOPs ~ n^": lambda one: f"{one.cost.growth:.2f}",
            "time ~ n^": lambda one: f"{one.cost.time_growth:.2f}",
        }
    rows = [[column(one) for column in columns.values()] for one in comparison.contestants]
    return [list(columns), *rows]


def _metrics(comparison: Comparison) -> Iterator[tuple[str, str, str]]:
    """The title of each score with its split and metric; `test` needs no name in its title."""
    scores = comparison.contestants[0].runs[0].scores
    # What training has not looked at, if there is any, `test` first.
    splits = [name for name in scores if name not in _VALIDATION] or list(scores)
    splits.sort(key=lambda name: name != "test")
    for split in splits:
        for metric, (title, _) in METRICS.items():
            if metric in scores[split]:
                yield (title if split == splits[0] else f"{title} {split}"), split, metric


def _score(one: ContenderResult, split: str, metric: str) -> str:
    mean = one.mean_score(split, metric)
    return _with_deviation(one, mean, one.stdev_score(split, metric), METRICS[metric][1])


def _by_length(comparison: Comparison, title: str, measure: str, digits: int) -> list[list[str]]:
    buckets = comparison.contestants[0].runs[0].buckets  # the same in all runs
    rows = [[title, *(f"{bucket.shortest}–{bucket.longest}" for bucket in buckets)]]
    for one in comparison.contestants:
        rows.append([one.word, *(f"{value:.{digits}f}" for _, value in one.by_length(measure))])
    return rows


def _with_deviation(one: ContenderResult, mean: float, deviation: float, digits: int) -> str:
    """The mean over the seeds, with the standard deviation if there are several."""
    text = f"{mean:.{digits}f}"
    if len(one.runs) > 1:
        text += f" ±{deviation:.{digits}f}"
    return text


# --- figure ---------------------------------------------------------------------------------------


def scene(comparison: Comparison) -> drawing.Scene:
    """The figure: quality, learning curves, quality by length, speed, memory and growth."""
    contenders = comparison.contestants
    names = [one.word for one in contenders]

    def bars(title: str, measure: Measure, number_format: str) -> drawing.Scene:
        values = [measure(one) for one in contenders]
        texts = [format(value, number_format) for value in values]
        return drawing.bars(values, names, title=title, labels=texts)

    def scored(one: ContenderResult, split: str, metric: str) -> float:
        return one.mean_score(split, metric)

    scores = [
        bars(title, partial(scored, split=split, metric=metric), f".{METRICS[metric][1]}f")
        for title, split, metric in _metrics(comparison)
    ]
    learning_curves = {one.word: _learning_curve(one) for one in contenders}
    scenes = [*scores, drawing.curves(learning_curves, title="validation loss", x_name="step")]
    if contenders[0].runs[0].buckets:
        loss_by_length = {one.word: one.by_length("loss") for one in contenders}
        title = "loss per token by source length (test set)"
        scenes.append(drawing.curves(loss_by_length, title=title, x_name="source tokens"))
    title = f"training, {comparison.unit} per second"
    scenes.append(bars(title, lambda one: one.mean("train_rate"), ",.0f"))
    if contenders[0].runs[0].decode_rate is not None:
        title = "decoding, tokens per second"
        scenes.append(bars(title, lambda one: one.mean("decode_rate"), ",.0f"))
    growth = "growth: exponent of FLOPs in the length"
    scenes += [
        bars("memory of an update, MB", lambda one: one.cost.memory / 1e6, ",.0f"),
        bars("FLOPs of an update, 10⁹", lambda one: one.cost.flops / 1e9, ",.2f"),
    ]
    if contenders[0].cost.growth is not None:
        scenes.append(bars(growth, lambda one: one.cost.growth or 0.0, ".2f"))
    return drawing.below(scenes)


def _learning_curve(one: ContenderResult) -> list[tuple[float, float]]:
    """The validation loss at each step, as the mean over the seeds."""
    curve = []
    # Runs that stopped early are shorter: the curve ends with the first of them.
    for points in zip(*(run.losses for run in one.runs), strict=False):
        step, _ = points[0]
        curve.append((float(step), statistics.mean(loss for _, loss in points)))
    return curve
