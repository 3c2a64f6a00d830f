"""A comparison: its results, as tables and as a figure."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from typing import Any, NamedTuple

from regard.evaluation.metrics.significance import PairedTest
from regard.lab.compare.results import ContenderResult, Run
from regard.lab.measure.budget import Budget
from regard.look import drawing
from regard.look.drawing import terminal

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

    @property
    def first_run(self) -> Run:
        """A run of the first model: all have the same data, and so the same scores and buckets."""
        return self.contestants[0].runs[0]

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
    if comparison.first_run.buckets:
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
        f"{second} against {first} on the test set, seed {comparison.first_run.seed}, "
        f"by paired approximate randomization: {', '.join(differences)}"
    )


def _headline(comparison: Comparison) -> str:
    seeds = len(comparison.contestants[0].runs)
    mean = "mean of 1 seed" if seeds == 1 else f"mean of {seeds} seeds ± standard deviation"
    return (
        f"{comparison.name}: about {comparison.parameters:,} parameters, "
        f"{comparison.budget}, {mean}"
    )


def _overview(comparison: Comparison) -> list[list[str]]:
    models = comparison.contestants
    columns = {
        "model": [one.word for one in models],
        "parameters": [f"{one.parameters:,}" for one in models],
        "steps": [f"{one.steps:,}" for one in models],
        "loss": [_mean([run.loss for run in one.runs], 3) for one in models],
    }
    for title, split, metric in _metrics(comparison):
        digits = METRICS[metric][1]
        columns[title] = [_mean(one.score(split, metric), digits) for one in models]
    for cost in _costs(comparison):
        columns[cost.heading] = cost.texts
    return [list(columns), *map(list, zip(*columns.values(), strict=True))]


class _Measured(NamedTuple):
    """A number of each model."""

    heading: str  # in the table
    title: str  # of its figure
    number_format: str
    values: list[float]

    @property
    def texts(self) -> list[str]:
        return [format(value, self.number_format) for value in self.values]


def _costs(comparison: Comparison) -> Iterator[_Measured]:
    """The speed and the cost of each model, and how it grows with the length n of a sentence."""
    models = comparison.contestants
    costs = [one.cost for one in models]
    unit = "tok" if comparison.unit == "tokens" else comparison.unit
    title = f"training, {comparison.unit} per second"
    yield _Measured(f"train {unit}/s", title, ",.0f", [one.mean("train_rate") for one in models])
    if comparison.first_run.decode_rate is not None:
        rates = [one.mean("decode_rate") for one in models]
        yield _Measured("decode tok/s", "decoding, tokens per second", ",.0f", rates)
    flops = [cost.flops / 1e9 for cost in costs]
    yield _Measured("GFLOP/step", "FLOPs of an update, 10⁹", ",.2f", flops)
    yield _Measured("MB/step", "memory of an update, MB", ",.0f", [c.memory / 1e6 for c in costs])
    if costs[0].growth is not None:
        title = "growth: exponent of {} in the length"
        growth = [cost.growth or 0.0 for cost in costs]
        yield _Measured("FLOPs ~ n^", title.format("FLOPs"), ".2f", growth)
        time_growth = [cost.time_growth or 0.0 for cost in costs]
        yield _Measured("time ~ n^", title.format("time"), ".2f", time_growth)


def _metrics(comparison: Comparison) -> Iterator[tuple[str, str, str]]:
    """The title of each score with its split and metric; `test` needs no name in its title."""
    scores = comparison.first_run.scores
    # What training has not looked at, if there is any, `test` first.
    splits = [name for name in scores if name not in _VALIDATION] or list(scores)
    splits.sort(key=lambda name: name != "test")
    for split in splits:
        for metric, (title, _) in METRICS.items():
            if metric in scores[split]:
                yield (title if split == splits[0] else f"{title} {split}"), split, metric


def _by_length(comparison: Comparison, title: str, measure: str, digits: int) -> list[list[str]]:
    buckets = comparison.first_run.buckets
    return [
        [title, *(f"{bucket.shortest}–{bucket.longest}" for bucket in buckets)],
        *(
            [one.word, *(f"{value:.{digits}f}" for _, value in one.by_length(measure))]
            for one in comparison.contestants
        ),
    ]


def _mean(values: Sequence[float], digits: int) -> str:
    """The mean over the seeds, with the standard deviation if there are several."""
    spread = f" ±{statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{spread}"


# --- figure ---------------------------------------------------------------------------------------


def scene(comparison: Comparison) -> drawing.Scene:
    """The figure: quality, learning curves, quality by length, speed, memory and growth."""
    models = comparison.contestants
    names = [one.word for one in models]

    def bars(measured: _Measured) -> drawing.Scene:
        return drawing.bars(measured.values, names, title=measured.title, labels=measured.texts)

    scenes = [
        bars(
            _Measured(
                title,
                title,
                f".{METRICS[metric][1]}f",
                [statistics.mean(one.score(split, metric)) for one in models],
            )
        )
        for title, split, metric in _metrics(comparison)
    ]
    # The mean over the seeds. Runs that stopped early are shorter: the curve ends with the first.
    learning_curves = {
        one.word: [
            (points[0][0], statistics.mean(loss for _, loss in points))
            for points in zip(*(run.losses for run in one.runs), strict=False)
        ]
        for one in models
    }
    scenes.append(drawing.curves(learning_curves, title="validation loss", x_name="step"))
    if comparison.first_run.buckets:
        loss_by_length = {one.word: one.by_length("loss") for one in models}
        title = "loss per token by source length (test set)"
        scenes.append(drawing.curves(loss_by_length, title=title, x_name="source tokens"))
    return drawing.below([*scenes, *map(bars, _costs(comparison))])
