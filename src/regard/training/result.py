"""The result of a run, and its learning curves as a figure, from the metrics log."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from regard.evaluation.scores import Score
from regard.training.diagnostics.run_log import RunLog

Curve = list[tuple[int, float]]
MOST_POINTS = 400  # of a curve: more would not be told apart on a screen
NO_METRIC = ("sentences", "examples", "tokens", "seconds", "signature")


def read_curves(metrics: Path) -> dict[str, Curve]:
    """The negative log-likelihood a token of training and of validation, by step.

    Both are without label smoothing and other extra losses, so that they can be compared.
    """
    log = RunLog.read(metrics)
    training = zip(log.steps, log.losses, strict=True)
    validation = zip(log.validation_steps, log.validation_losses, strict=True)
    curves = {
        name: [(step, loss) for step, loss in points if math.isfinite(loss)]
        for name, points in (("training", training), ("validation", validation))
    }
    # Strided, not averaged: the noise of single steps stays visible.
    stride = max(1, len(curves["training"]) // MOST_POINTS)
    curves["training"] = curves["training"][::stride]
    return {name: curve for name, curve in curves.items() if curve}


@dataclass(frozen=True)
class Result:
    """A finished run: its folder, its score on each test set, and what it took."""

    folder: Path
    scores: dict[str, Score]
    seconds: float  # of training
    compiling: float  # of these, spent on compiling
    parameters: int
    # Split → metric → score, of the metrics that were asked for.
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)
    steps: int = 0
    # The last loss, and the scores of the last validation: `loss`, `validation_loss` and so on.
    losses: dict[str, float] = field(default_factory=dict)

    def _repr_html_(self) -> str:
        """The learning curves and a table of scores, for a notebook."""
        # Imported late: runs on a command line draw nothing.
        from regard.look import drawing

        rows = []
        for split, score in self.scores.items():
            cells = "".join(
                f"<td>{escape(name)} {value:.4g}</td>"
                for name, value in vars(score).items()
                if isinstance(value, float) and name not in NO_METRIC
            )
            rows.append(f"<tr><th>{escape(split)}</th>{cells}</tr>")
        table = f"<table>{''.join(rows)}</table>" if rows else ""
        title = repr(str(self.folder))
        curves = read_curves(self.folder / "metrics.jsonl")
        picture = drawing.curves(curves, title=title, x_name="step", y_name="loss")
        return drawing.figure(picture, f"learning curves of {title}", table)
