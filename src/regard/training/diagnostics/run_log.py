"""The metrics log of a run, as columns: losses, gradient norms, validations, skipped updates.

No torch here.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
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
                loss = float(record["nll"])
                gradient_norm = float(record.get("gradient_norm", 0.0))
                learning_rate = float(record.get("learning_rate", 0.0))
                self.steps.append(step)
                self.losses.append(loss)
                self.gradient_norms.append(gradient_norm)
                self.learning_rates.append(learning_rate)
            case "validation" if "loss" in record:
                step = int(record["step"])
                self.validation_losses.append(float(record["loss"]))
                self.validation_steps.append(step)
            case "skipped":
                self.skipped.append(dict(record))
            case "overflow":
                self.overflows.append(dict(record))
            case event if event == EVENT:
                self.findings.append(Finding.from_record(dict(record)))

    @property
    def last_step(self) -> int:
        return self.steps[-1] if self.steps else 0

    def last_step_of_rate(self, share: float) -> float:
        """The last step whose learning rate was at least this share of the highest."""
        least = share * max(self.learning_rates, default=0.0)
        pairs = zip(self.steps, self.learning_rates, strict=True)
        return max((step for step, rate in pairs if rate >= least), default=math.inf)

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
    listed = list(values)
    return statistics.median(listed) if listed else math.nan


# --- log checks -----------------------------------------------------------------------------------

MIN_LINES = 8  # of the log: fewer say nothing about a course
# Times the difference of neighbouring lines: batches of short and of long texts, whose losses
# differ, may come in any order.
DIVERGENCE_NOISE = 4.0
SPIKE_WINDOW = 20  # lines before a spike
LEAST_JUMP = 1.0  # nats; less is the noise of small batches
LEVEL_LINES = 3  # whose median is the level that a spike rises from
SPIKE_DEVIATIONS = 10.0  # times the median difference of neighbouring lines
DECAYED = 0.1  # of the highest learning rate
STILL = 0.005  # of the entropy: how little a validation improves on the one before
PLATEAU_SHARE = 0.03  # of the entropy: how close to it a plateau is
MIN_PLATEAU_STEPS = 100
HAS_LEARNT = 0.9  # of the entropy: a training loss below it has learnt something of the input
MEMORIZED = 1 / 3  # of what was learnt on the training data: the part that validation lacks
LEAST_GAP = 0.2  # nats; less is the noise of a small validation set
UNRELATED = 0.97  # of the entropy: a validation loss that never fell below it has learnt nothing
GRADIENT_LIMIT = 1e3  # of the norm; that of a healthy step is of the order of 1


@dataclass(frozen=True)
class Baseline:
    """What the losses of a run are compared with, in nats.

    `entropy` is that of the labels alone (unigram entropy), `uniform` the logarithm of their
    number. None where the labels are not classes.
    """

    entropy: float | None
    uniform: float | None = None
    warmup: int = 0  # steps
    steps: int = 0  # of the whole run


def check_log(log: RunLog, baseline: Baseline) -> Iterator[Finding]:
    """All checks of this file."""
    for check in (non_finite, loss_spike, exploding_gradients):
        yield from check(log)
    for judge in (diverging_loss, plateau, unmoved, overfitting):
        yield from judge(log, baseline)


def non_finite(log: RunLog) -> Iterator[Finding]:
    """Updates that were skipped because loss or gradient were NaN or infinite."""
    if not log.skipped:
        return
    first = log.skipped[0]
    # Traced once, when the run ends by them.
    origin = next((r["origin"] for r in log.skipped if r.get("origin")), None)
    where = f"; it first appeared in {origin}" if origin else ""
    yield Finding(
        "nonfinite",
        f"{len(log.skipped)} updates skipped, the first at step {first['step']}{where}",
        "loss or gradients are not finite",
        "lower learning_rate, set max_grad_norm = 1.0, and look at the examples of that step",
        0.9,
        int(first["step"]),
    )


def diverging_loss(log: RunLog, baseline: Baseline) -> Iterator[Finding]:
    """A loss that ends well above where it has been, and does not come down again."""
    losses = finite(log.losses)
    if len(losses) < MIN_LINES:
        return
    final = log.final_loss()
    best = log.best_loss()
    worst_since = max(losses[losses.index(min(losses)) :])
    if final < (best + worst_since) / 2:
        return  # a spike that it recovers from
    # Of the first half: a run that diverges later does not make its own noise the measure.
    noise = _roughness(finite(log.losses[: max(MIN_LINES, len(log.losses) // 2)]))
    rise = max(0.5, 0.2 * (baseline.entropy or best), DIVERGENCE_NOISE * noise)
    if final > best + rise:
        yield Finding(
            "diverging_loss",
            f"the loss was {best:.2f} and is {final:.2f} at step {log.last_step}",
            "training diverges",
            "lower learning_rate, or set max_grad_norm = 1.0 and a longer warmup",
            0.8,
            log.last_step,
        )


def _roughness(losses: list[float]) -> float:
    """How far the losses of neighbouring lines differ, the median."""
    differences = [abs(after - before) for before, after in pairwise(losses)]
    return median(differences) if differences else 0.0


def loss_spike(log: RunLog) -> Iterator[Finding]:
    """A loss far above the last ones, by their median and the differences of neighbours."""
    for i in range(MIN_LINES, len(log.losses)):
        window = finite(log.losses[max(0, i - SPIKE_WINDOW) : i])
        if len(window) < MIN_LINES or not math.isfinite(log.losses[i]):
            continue
        # Of a few lines: a loss that falls is far below its level of some time ago.
        center = median(window[-LEVEL_LINES:])
        jump = log.losses[i] - center
        if jump > max(LEAST_JUMP, SPIKE_DEVIATIONS * _roughness(window)):
            yield Finding(
                "loss_spike",
                f"the loss jumped from {center:.2f} to {log.losses[i]:.2f} at step {log.steps[i]}",
                "an update was far too large, or a batch is unlike the others",
                "set max_grad_norm = 1.0, lower learning_rate, and read the examples of that step",
                0.7,
                log.steps[i],
            )
            return


def exploding_gradients(log: RunLog) -> Iterator[Finding]:
    """Gradient norms, before clipping, of a size that no healthy step has."""
    norms = finite(log.gradient_norms)
    typical = median(norms)
    if len(norms) >= MIN_LINES and typical > GRADIENT_LIMIT:
        yield Finding(
            "exploding_gradients",
            f"the median gradient norm is {typical:.3g}",
            "gradients explode",
            "set max_grad_norm = 1.0, init = a smaller deviation, or residual = pre",
            0.7,
        )


def plateau(log: RunLog, baseline: Baseline) -> Iterator[Finding]:
    """A loss that stays at the entropy of the labels: only their frequencies are learnt."""
    entropy = baseline.entropy
    if entropy is None or len(log.steps) < MIN_LINES or log.last_step <= baseline.warmup:
        return
    # Every language model passes through this: it must have lasted.
    if log.last_step < max(MIN_PLATEAU_STEPS, baseline.steps // 2):
        return
    half = log.losses[len(log.losses) // 2 :]
    earlier = median(finite(half[: len(half) // 2]))
    later = median(finite(half[len(half) // 2 :]))
    margin = max(PLATEAU_SHARE * entropy, 0.02)
    # A masked language model leaves it slowly, and is not stuck.
    stays = abs(earlier - later) < max(margin / 3, 0.01)
    if stays and abs(later - entropy) < margin:
        yield Finding(
            "plateau",
            f"the loss stays at {later:.3f}; that of the label frequencies alone is {entropy:.3f}",
            "the model has only learned the label frequencies and ignores its input",
            "check that inputs and labels belong together, then try another learning_rate",
            0.6,
            log.last_step,
        )


def unmoved(log: RunLog, baseline: Baseline) -> Iterator[Finding]:
    """Training and validation at the entropy of the labels, or above, after a third of the run."""
    entropy = baseline.entropy
    # Where a schedule has come down, every run stands still.
    until = log.last_step_of_rate(DECAYED)
    both = zip(log.validation_steps, log.validation_losses, strict=True)
    validations = finite(loss for step, loss in both if step <= until)
    if entropy is None or len(validations) < 2 or len(log.steps) < MIN_LINES:
        return
    step = log.validation_steps[-1]
    if step < max(MIN_PLATEAU_STEPS, baseline.steps // 3) or step <= baseline.warmup:
        return
    still = validations[-2] - validations[-1] < STILL * entropy  # a slow start goes on improving
    if still and min(min(validations), log.final_loss()) > UNRELATED * entropy:
        yield Finding(
            "plateau",
            f"the validation loss is {validations[-1]:.3f} at step {step}; that of the label "
            f"frequencies alone is {entropy:.3f}",
            "training has not moved: the model knows the label frequencies at best",
            "lower learning_rate, then check that inputs and labels belong together",
            0.6,
            step,
        )


def overfitting(log: RunLog, baseline: Baseline) -> Iterator[Finding]:
    """Validation loss that rises, or stays at the frequencies, while the training loss falls."""
    validations = finite(log.validation_losses)
    if not validations or len(log.steps) < 3:
        return
    scale = baseline.entropy or max(validations)
    # Of the steps before the last validation: what is learnt since then is not in its loss.
    train = log.final_loss(log.validation_steps[-1])
    if not train <= HAS_LEARNT * scale:
        return  # a run that has not even learnt its training data does not know it by heart
    best = min(validations)
    last = validations[-1]
    rises = len(validations) >= 3 and last > best + 0.1 * scale and train < best - 0.1 * scale
    step = log.validation_steps[log.validation_losses.index(best)]
    learns_by_heart = last > 0.9 * scale and train < 0.5 * last and last - train > 0.3
    # Validation has not improved for a fifth of the run, and much of what was learnt since the
    # frequencies does not carry over. A shifted domain has a gap too, but goes on improving.
    is_stale = len(validations) >= 4 and step < 0.8 * log.validation_steps[-1]
    gap = is_stale and last - train > max(MEMORIZED * (scale - train), LEAST_GAP)
    if not (rises or learns_by_heart or gap):
        return
    cause = "the model is overfitting its training data"
    change = "more data, more dropout or a smaller model; or stop earlier: patience = 3"
    if best > UNRELATED * scale and baseline.entropy is not None:
        cause = "what is learnt of the training data says nothing of the validation data"
        change = "check that labels stand beside their inputs, and were not shuffled; then add data"
    yield Finding(
        "overfitting",
        f"the training loss fell to {train:.2f}, the validation loss is {last:.2f}"
        + (f" and was {best:.2f} at step {step}" if rises or gap else ""),
        cause,
        change,
        0.85,
        step,
    )
