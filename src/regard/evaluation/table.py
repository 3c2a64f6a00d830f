"""Tables of reports: one row for each model, one column for each score and measure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regard.look.drawing import terminal

# Titles of columns that are not the key of the reports.
TITLES = {
    "bleu": "BLEU",
    "chrf": "chrF",
    "exact_match": "exact match",
    "tokens_per_second": "tokens/s",
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
