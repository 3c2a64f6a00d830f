"""A comparison as a table and as a figure."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from regard.compare.experiment import Comparison, Contestant
from regard.look import drawing, terminal


def lines(result: Comparison, width: int = 140) -> list[str]:
    """One row a model, and below how well each does sentences of each length."""
    many = max((len(one.runs) for one in result.contestants), default=1)
    head = [
        f"{result.name}: about {result.parameters:,} parameters, {result.budget.of} {result.budget.amount:g}, "
        f"mean of {many} seed{'s' * (many != 1)}" + (" ± standard deviation" if many > 1 else "")
    ]
    rows = [["model", "parameters", "steps", "loss", "BLEU", "exact", "train tok/s", "decode tok/s", "GFLOP/step",
             "MB/step", "FLOPs ~ n^", "time ~ n^"]]  # fmt: skip
    for one in result.contestants:
        price = one.cost
        rows.append([
            one.word, f"{one.parameters:,}", f"{one.steps:,}", _shown(one, "loss", 3), _shown(one, "bleu", 2),
            _shown(one, "exact_match", 1), f"{one.mean('train_rate'):,.0f}", f"{one.mean('decode_rate'):,.0f}",
            f"{price.flops / 1e9:.2f}", f"{price.memory / 1e6:.0f}", f"{price.growth:.2f}", f"{price.time_growth:.2f}",
        ])  # fmt: skip
    lengths = [f"{b.shortest}–{b.longest}" for b in result.contestants[0].runs[0].buckets]
    by_length = [["loss by source length", *lengths]]
    exact = [["exact match by length", *lengths]]
    for one in result.contestants:
        by_length.append([one.word, *(f"{value:.3f}" for _, value in one.by_length("loss"))])
        exact.append([one.word, *(f"{value:.1f}" for _, value in one.by_length("exact_match"))])
    tables = [terminal.table(table, width=width) for table in (rows, by_length, exact)]
    return [*head, "", *tables[0], "", *tables[1], "", *tables[2]]


def _shown(one: Contestant, what: str, digits: int) -> str:
    spread = f" ±{one.spread(what):.{digits}f}" if len(one.runs) > 1 else ""
    return f"{one.mean(what):.{digits}f}{spread}"


def scene(result: Comparison) -> drawing.Scene:
    """Quality, quality by length, what was learnt when, speed, memory, growth: one under the other."""
    names = [one.word for one in result.contestants]

    def bars(title: str, of: Callable[[Contestant], float], form: str) -> drawing.Scene:
        values = [of(one) for one in result.contestants]
        return drawing.bars(
            values, names, title=title, labels=[format(value, form) for value in values]
        )

    learnt = {
        one.word: [
            (float(points[0][0]), statistics.mean(loss for _, loss in points))
            for points in zip(*(run.losses for run in one.runs), strict=False)
        ]
        for one in result.contestants
    }
    return drawing.below(
        [
            bars("BLEU on the test set", lambda one: one.mean("bleu"), ".2f"),
            bars("exact match, %", lambda one: one.mean("exact_match"), ".1f"),
            drawing.curves(learnt, title="validation loss by step"),
            drawing.curves(
                {one.word: one.by_length("loss") for one in result.contestants},
                title="loss a token by source length (test set)",
            ),
            bars("training, tokens a second", lambda one: one.mean("train_rate"), ",.0f"),
            bars("decoding, tokens a second", lambda one: one.mean("decode_rate"), ",.0f"),
            bars("memory of an update, MB", lambda one: one.cost.memory / 1e6, ",.0f"),
            bars("FLOPs of an update, 10⁹", lambda one: one.cost.flops / 1e9, ",.2f"),
            bars("growth: exponent of FLOPs in the length", lambda one: one.cost.growth, ".2f"),
        ]
    )
