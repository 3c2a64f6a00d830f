"""The metrics log of a run, as columns: losses, gradient norms, validations, skipped updates.

No torch here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from regard.training.diagnostics.finding import EVENT, Finding
from regard.training.engine.metrics_log import records


@dataclass
class RunLog:
    """What metrics.jsonl says, line by line: `add` takes its records in their order."""

    steps: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)  # −log p of the labels, without smoothing
    gradient_norms: list[float] = field(default_factory=list)
    learning_rates: list[float] = field(default_factory=list)
    validation_steps: list[int] = field(default_factory=list)
    validation_losses: list[float] = field(default_factory=list)
    skipped: list[dict[str, Any]] = field(default_factory=list)
    overflows: list[dict[str, Any]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> RunLog:
        """The log in a file; a line that is still being written is left out."""
        log = cls()
        for record in records(path):
            # A damaged line is left out as a whole.
            with suppress(KeyError, TypeError, ValueError, OverflowError):
                log.add(record)
        return log

    def add(self, record: Mapping[str, Any]) -> None:
        """One more record of the log."""
        match record.get("event"):
            case None if "loss" in record:
                step = int(record["step"])
                loss = _number(record["nll"])
                gradient_norm = _number(record.get("gradient_norm", 0.0))
                learning_rate = _number(record.get("learning_rate", 0.0))
                self.steps.append(step)
                self.losses.append(loss)
                self.gradient_norms.append(gradient_norm)
                self.learning_rates.append(learning_rate)
            case "validation" if "loss" in record:
                step = int(record["step"])
                loss = _number(record["loss"])
                self.validation_steps.append(step)
                self.validation_losses.append(loss)
            case "skipped":
                self.skipped.append(dict(record))
            case "overflow":
                self.overflows.append(dict(record))
            case event if event == EVENT:
                self.findings.append(Finding.from_record(dict(record)))

    @property
    def last_step(self) -> int:
        return self.steps[-1] if self.steps else 0

    def final_loss(self, until: float = math.inf) -> float:
        """The median of the last tenth of the lines, of three at least: one batch is noise.

        Of those up to a step, to compare it with a validation there.
        """
        losses = [loss for step, loss in zip(self.steps, self.losses, strict=True) if step <= until]
        return median(finite(losses[-max(3, len(losses) // 10) :]))

    def best_loss(self) -> float:
        """The least median of three lines in a row."""
        values = finite(self.losses)
        if len(values) < 3:
            return min(values, default=math.inf)
        return min(median(values[i : i + 3]) for i in range(len(values) - 2))


def finite(values: Iterable[float]) -> list[float]:
    return [value for value in values if math.isfinite(value)]


def median(values: Iterable[float]) -> float:
    """The median; NaN of nothing."""
    ordered = sorted(values)
    if not ordered:
        return math.nan
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2


def _number(value: Any) -> float:
    # Words stand for NaN and infinities, which JSON does not have.
    return float(value)
