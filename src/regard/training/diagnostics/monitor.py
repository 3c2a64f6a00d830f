"""The monitor of a running training: it speaks up once about each thing that looks wrong.

What it says goes to standard error as one line, and into metrics.jsonl, where the studio and
`regard doctor` find it. Per log line it does arithmetic on a few numbers; the tests of masks and
padding take some forward passes of four rows, once, and only where an objective or an attention
comes from outside the package.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from regard.data.batching import Batch
from regard.data.padding import IGNORED
from regard.system import memory
from regard.training.diagnostics.finding import Finding
from regard.training.diagnostics.information_flow import check_information_flow
from regard.training.diagnostics.nonfinite import first_nonfinite
from regard.training.diagnostics.run_log import MIN_LINES, Baseline, RunLog, check_log, median
from regard.training.engine.metrics_log import MetricsLog
from regard.training.engine.optimizer import Optimizer
from regard.training.objectives.objective import CarriesState, Objective

BATCHES_TESTED = 3
BATCHES_COUNTED = 8  # for the entropy of the labels
MEMORY_SHARE = 0.95  # of a GPU's memory that a step may take before it is about to run out
_TESTED = ("regard", "torch")  # packages whose masks have tests of their own
LOW_MEMORY = 200e6  # bytes of the host


class Monitor:
    """Checks of one run while it goes on. `say` receives a line for each finding."""

    def __init__(
        self,
        objective: Objective,
        optimizer: Optimizer,
        metrics: MetricsLog,
        say: Callable[[str], None],
    ) -> None:
        self.objective = objective
        self.optimizer = optimizer
        self.metrics = metrics
        self.say = say
        self.log = RunLog()

    def start(self, step: int) -> None:
        """Before the first step; a resumed run reads on in its log."""
        self.log = RunLog.read(self.metrics.path)
        # What is carried from batch to batch must not be touched; `regard doctor` tests such runs.
        carries_state = isinstance(self.objective, CarriesState)
        if step == 0 and self._has_parts_from_outside and not carries_state:
            batches = itertools.islice(self.objective.batches(0, 0), BATCHES_TESTED)
            tested = [batch for _, batch in batches]
            self._report(check_information_flow(self.objective, tested), step)

    def after_log(self, record: Mapping[str, Any]) -> None:
        """After a line of the log."""
        self.log.add(record)
        lines = len(self.log.steps)
        # Rarer and rarer: all looks together take time in proportion to the run. By the number of
        # lines alone, so that a resumed run says the same.
        if lines % max(1, lines // 20):
            return
        step = self.log.last_step
        self._report(check_log(self.log, self.baseline), step)
        self._report(self._check_memory(), step)

    def after_validation(self, record: Mapping[str, Any]) -> None:
        self.log.add(record)
        # At validations alone: reading the state of Adam waits for the device.
        ratio = typical_update_ratio(
            dict(self.optimizer.named),
            self.optimizer.state(),
            self.optimizer.schedule(record["step"]),
            self.objective.settings.betas,
        )
        self._report(check_log(self.log, self.baseline), record["step"])
        if ratio is not None:
            self._report(check_rate(ratio, self.log, self.baseline), record["step"])

    def origin(self, batches: Sequence[Batch]) -> str | None:
        """Where a step that was skipped first had a value that is not finite."""
        if isinstance(self.objective, CarriesState):
            return None
        for batch in batches:
            tensors = batch.to(next(self.objective.model.parameters()).device).tensors
            place = first_nonfinite(self.objective.model, self.objective.loss, tensors)
            if place is not None:
                return place
        return None

    @property
    def _has_parts_from_outside(self) -> bool:
        """Whether the objective or a module is the user's: masks of the package are tested."""
        classes = {type(self.objective), *(type(m) for m in self.objective.model.modules())}
        return any(each.__module__.partition(".")[0] not in _TESTED for each in classes)

    @cached_property
    def baseline(self) -> Baseline:
        """By the labels of the first batches, which are the same in a resumed run."""
        return label_baseline(self.objective, BATCHES_COUNTED)

    def _check_memory(self) -> Iterable[Finding]:
        device = next(self.objective.model.parameters()).device
        if device.type == "cuda":
            total = torch.cuda.get_device_properties(device).total_memory
            used = torch.cuda.max_memory_allocated(device)
            is_low = used > MEMORY_SHARE * total
            evidence = f"{memory.amount(used)} of {memory.amount(total)}"
        else:
            free = memory.available()
            is_low = free is not None and free < LOW_MEMORY
            evidence = f"{memory.amount(free or 0)} are left"
        if is_low:
            yield Finding(
                "memory",
                evidence,
                "memory is about to run out",
                "lower batch_tokens and raise accumulate as much, or set "
                "gradient_checkpointing = true",
                0.9,
            )

    def _report(self, findings: Iterable[Finding], step: int) -> None:
        names = {finding.check for finding in self.log.findings}
        for finding in findings:
            if finding.check in names:
                continue
            names.add(finding.check)
            self.log.findings.append(finding)
            self.metrics.write(finding.record(step))
            self.say(f"step {step}  {finding.line()}")


# --- what labels alone say ------------------------------------------------------------------------

MAX_CLASSES = 1 << 20


def label_baseline(objective: Objective, batches: int) -> Baseline:
    """The entropy of the labels of the first batches, where they are classes."""
    train = objective.settings
    first = itertools.islice(objective.batches(0, 0), batches)
    counts = label_counts(batch for _, batch in first) if objective.labels_are_classes else None
    if counts is None:
        return Baseline(None, None, train.warmup_steps, train.steps)
    classes = max(2, len(counts))
    return Baseline(entropy(counts), math.log(classes), train.warmup_steps, train.steps)


def label_counts(batches: Iterable[Batch]) -> Tensor | None:
    """How often each class is a label of these batches; None where labels are not classes."""
    counted = []
    for batch in batches:
        labels = batch.tensors.get("labels")
        if labels is None or labels.is_floating_point():
            return None
        labels = labels[labels != IGNORED].cpu()  # [N]
        # Where the loss is a mean over something else (pairs, recordings), labels are no classes.
        if len(labels) != batch.tokens or not len(labels):
            return None
        if int(labels.max()) >= MAX_CLASSES or int(labels.min()) < 0:
            return None
        counted.append(labels)
    return torch.bincount(torch.cat(counted)) if counted else None


def entropy(counts: Tensor) -> float:
    """The entropy of these frequencies in nats, with Miller and Madow's correction of its bias."""
    total = float(counts.sum())
    shares = counts[counts > 0].double() / total
    plain = float(-(shares * shares.log()).sum())
    return min(plain + (len(shares) - 1) / (2 * total), math.log(max(2, len(counts))))


# --- update ratio ---------------------------------------------------------------------------------

HIGHEST = 0.1  # 100 times the usual one: a matrix is another one after ten steps
LOWEST = 1e-6  # a thousandth of it: after a thousand steps a matrix is what it was
DECAYED = 0.01  # of the highest rate: the end of a schedule, where small updates are meant


@torch.no_grad()
def typical_update_ratio(
    parameters: Mapping[str, nn.Parameter],
    state: Mapping[str, Tensor],
    learning_rate: float,
    betas: tuple[float, float],
) -> float | None:
    """How far the next update moves a matrix, as a share of its size: the median over matrices.

    `state` is `Optimizer.state()`; None where no matrix has been updated.
    """
    ratios = []
    for name, parameter in parameters.items():
        if parameter.ndim < 2 or f"exp_avg/{name}" not in state:
            continue
        count = float(state[f"step/{name}"])
        first = state[f"exp_avg/{name}"] / (1 - betas[0] ** count)  # bias-corrected m̂
        second = state[f"exp_avg_sq/{name}"] / (1 - betas[1] ** count)  # v̂
        update = learning_rate * _rms(first / (second.sqrt() + 1e-12))
        ratios.append(update / max(_rms(parameter.to(first.device)), 1e-12))
    return median(ratios) if ratios else None


def _rms(tensor: Tensor) -> float:
    return float(tensor.double().square().mean().sqrt())


def check_rate(ratio: float, log: RunLog, baseline: Baseline) -> Iterator[Finding]:
    """A rate far from the usual, in a run that has learnt less than the label frequencies."""
    if baseline.entropy is None or len(log.steps) < MIN_LINES or log.last_step <= baseline.warmup:
        return
    final = log.final_loss()
    has_decayed = log.learning_rates[-1] < DECAYED * max(log.learning_rates)
    if not final > 0.97 * baseline.entropy:
        return
    evidence = (
        f"one update changes the weights by {ratio:.1e} of their size, about 1e-3 is usual; "
        f"the loss is {final:.2f}, that of the label frequencies {baseline.entropy:.2f}"
    )
    if ratio > HIGHEST:
        yield Finding(
            "rate_too_high", evidence, "the learning rate is too high", "divide it by 10", 0.7
        )
    elif ratio < LOWEST and not has_decayed:
        yield Finding(
            "rate_too_low", evidence, "the learning rate is too low", "multiply it by 10", 0.7
        )
