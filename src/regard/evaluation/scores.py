"""Scores as numbers by name, at the end of a run, and as tables of reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from types import SimpleNamespace
from typing import Any

from regard.evaluation.metrics.metric import OutputKind
from regard.evaluation.metrics.registry import metric
from regard.evaluation.metrics.texts import Bleu
from regard.evaluation.outputs import has_entities, predictions_of
from regard.evaluation.tasks import TASKS
from regard.look.drawing import terminal

# --- tables: one row for each model, one column for each score and measure ---


# Titles of columns that are not the key of the reports.
TITLES = {
    "bleu": "BLEU",
    "chrf": "chrF",
    "exact_match": "exact match",
    "rouge1": "ROUGE-1",
    "rouge2": "ROUGE-2",
    "rougeL": "ROUGE-L",
    "tokens_per_second": "tokens/s",
    "word_error": "word error",
    "word_error_unstressed": "word error (unstressed)",
    "per": "PER",
    "per_unstressed": "PER (unstressed)",
}
# Columns besides the scores that a report has with their intervals.
MEASURES = ("bleu", "chrf", "exact_match", "loss", "perplexity", "parameters", "tokens_per_second")
# Digits after the point; scores from 0 to 100 have two.
DIGITS = {
    "exact_match": 1,
    "loss": 4,
    "perplexity": 3,
    "bits_per_character": 3,
    "mse": 4,
    "mae": 4,
    "quantile_loss": 4,
    "pearson": 4,
    "spearman": 4,
    "parameters": 0,
    "tokens_per_second": 0,
}
WIDTH = 400  # of a line; scores with their intervals are not cut off


def formatted(name: str, value: float) -> str:
    """A score or measure with the digits that it is printed with."""
    return f"{value:,.{DIGITS.get(name, 2)}f}"


def report_table(reports: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """One row for each model, one column for each measure that all of them have.

    Scores come with their confidence intervals, and with the p-values of a paired test against the
    first model, where a report has them.
    """
    first = next(iter(reports.values()))
    scores = list(first.get("intervals", {}))
    keys = [*scores, *(key for key in MEASURES if key not in scores)]
    keys = [key for key in keys if all(key in report for report in reports.values())]
    rows = [["model", *(TITLES.get(key, key) for key in keys)]]
    for name, report in reports.items():
        rows.append([name, *(_cell(report, key) for key in keys)])
    return terminal.table(rows, width=WIDTH)


def _cell(report: Mapping[str, Any], key: str) -> str:
    text = formatted(key, report[key])
    if key in report.get("intervals", {}):
        low, high = report["intervals"][key]
        text += f" [{formatted(key, low)}, {formatted(key, high)}]"
    if key in report.get("p_values", {}):
        text += f" p={report['p_values'][key]:.3f}"
    return text


# --- the scores at the end of a run: predictions by the metrics of their task ---


_TITLES = TITLES | {"top_5": "top-5", "wer": "WER", "cer": "CER"}


class Score(SimpleNamespace):
    """Numbers by their names, such as `score.bleu`, and how many examples or tokens they are of."""

    def __str__(self) -> str:
        numbers = {name: value for name, value in vars(self).items() if isinstance(value, float)}
        texts = [f"{_TITLES.get(name, name)} {formatted(name, numbers[name])}" for name in numbers]
        return "  ".join(text + (" %" if "exact match" in text else "") for text in texts)


def scored(
    task: str,
    values: Sequence[Any],
    references: Sequence[Any],
    kind: OutputKind = "prediction",
    tokenize: str | None = None,
) -> Score:
    """The score of outputs of a kind (rankings, quantiles …) by the `scores` of a task.

    Whatever is scored by predictions takes the first of a ranking, the median of quantiles.
    """
    numbers: dict[str, Any] = {}
    for name, of_task in TASKS[task].scores.items():
        one = Bleu(tokenize) if of_task == "bleu" and tokenize else metric(of_task)
        if one.reads == kind:
            numbers[name] = one.compute(values, references)
        elif one.reads == "prediction":
            numbers[name] = one.compute(predictions_of(kind, values), references)
    return Score(**numbers, examples=len(references))


def scored_tags(predictions: Sequence[Sequence[str]], tags: Sequence[Sequence[str]]) -> Score:
    """The score of tags, over words: F1 of entities, or the mean over tags where these are none."""
    words = list(filter(None, chain.from_iterable(tags)))
    if not has_entities(tags):
        sentences = zip(predictions, tags, strict=True)
        pairs = chain.from_iterable(zip(*both, strict=True) for both in sentences)
        return scored("classify", [predicted for predicted, tag in pairs if tag], words)
    score = scored("tag", predictions, tags)
    score.examples = len(words)
    return score
