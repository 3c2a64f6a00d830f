"""Tables of reports: one row for each model, one column for each score and measure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regard.look import terminal

# The columns of a table: a key of the reports, its title, and its digits after the point.
COLUMNS = {
    "bleu": ("BLEU", 2),
    "chrf": ("chrF", 2),
    "exact_match": ("exact match", 1),
    "loss": ("loss", 4),
    "perplexity": ("perplexity", 3),
    "parameters": ("parameters", 0),
    "tokens_per_second": ("tokens/s", 0),
}
DIGITS = 2  # of the scores that have no column above
WIDTH = 400  # of a line; scores with their intervals are not cut off


def report_table(reports: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """One row for each model, one column for each measure that all of them have.

    Scores come with their confidence intervals, and with the p-values of a paired test against the
    first model, where a report has them.
    """
    first = next(iter(reports.values()))
    scores = list(first.get("intervals", {}))
    keys = [*scores, *(key for key in COLUMNS if key not in scores)]
    keys = [key for key in keys if all(key in report for report in reports.values())]
    rows = [["model", *(COLUMNS.get(key, (key, DIGITS))[0] for key in keys)]]
    for name, report in reports.items():
        rows.append([name, *(_cell(report, key) for key in keys)])
    return terminal.table(rows, width=WIDTH)


def _cell(report: Mapping[str, Any], key: str) -> str:
    _, digits = COLUMNS.get(key, (key, DIGITS))
    text = f"{report[key]:,.{digits}f}"
    if key in report.get("intervals", {}):
        low, high = report["intervals"][key]
        text += f" [{low:,.{digits}f}, {high:,.{digits}f}]"
    if key in report.get("p_values", {}):
        text += f" p={report['p_values'][key]:.3f}"
    return text
