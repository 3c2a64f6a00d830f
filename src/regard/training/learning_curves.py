"""The learning curves of a run, from its metrics log, as a figure."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.training.engine.metrics_log import records

if TYPE_CHECKING:
    from regard.look import drawing

Curve = list[tuple[float, float]]
MOST_POINTS = 400  # of a curve: more would not be told apart on a screen
NO_METRIC = ("sentences", "examples", "tokens", "seconds", "signature")


def read_curves(metrics: Path) -> dict[str, Curve]:
    """The negative log-likelihood a token of training and of validation, by step.

    Both are without label smoothing and other extra losses, so that they can be compared.
    """
    training: Curve = []
    validation: Curve = []
    for record in records(metrics):
        loss = record.get("nll", record.get("loss"))
        step = record.get("step")
        # NaN is written as a word.
        if not (isinstance(loss, int | float) and isinstance(step, int)):
            continue
        if "event" not in record:
            training.append((step, loss))
        elif record["event"] == "validation":
            validation.append((step, loss))
    # Strided, not averaged: the noise of single steps stays visible.
    stride = max(1, len(training) // MOST_POINTS)
    curves = {"training": training[::stride], "validation": validation}
    return {name: curve for name, curve in curves.items() if curve}


def scene(metrics: Path, title: str = "") -> drawing.Scene:
    """The figure of a run."""
    # Imported late: runs on a command line draw nothing.
    from regard.look import drawing

    return drawing.curves(read_curves(metrics), title=title, x_name="step", y_name="loss")


def to_html(folder: Path, title: str, scores: Mapping[str, Mapping[str, Any]]) -> str:
    """A figure and a table of scores for a notebook."""
    from regard.look import drawing

    rows = []
    for split, values in scores.items():
        shown = {
            name: f"{value:.4g}"
            for name, value in values.items()
            if isinstance(value, float) and name not in NO_METRIC
        }
        cells = "".join(f"<td>{escape(name)} {value}</td>" for name, value in shown.items())
        rows.append(f"<tr><th>{escape(split)}</th>{cells}</tr>")
    table = f"<table>{''.join(rows)}</table>" if rows else ""
    picture = scene(folder / "metrics.jsonl", title)
    return drawing.figure(picture, f"learning curves of {title}", table)
