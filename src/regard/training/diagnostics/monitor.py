"""The monitor of a running training: it speaks up once about each thing that looks wrong.

What it says goes to standard error as one line, and into metrics.jsonl, where the studio and
`regard doctor` find it. Per log line it does arithmetic on a few numbers; the tests of masks and
padding take some forward passes of four rows, once, and only where an objective or an attention
comes from outside the package.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch

from regard.data.batching import Batch
from regard.system import memory
from regard.training.diagnostics import labels
from regard.training.diagnostics.finding import Finding
from regard.training.diagnostics.information_flow import check_information_flow
from regard.training.diagnostics.log_checks import Baseline, check_log
from regard.training.diagnostics.nonfinite import first_nonfinite
from regard.training.diagnostics.run_log import RunLog
from regard.training.diagnostics.update_ratio import check_rate, parameter_updates, typical_ratio
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
        if step == 0 and self._has_parts_from_outside and not self._carries_state:
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
        settings = self.objective.settings
        # At validations alone: reading the state of Adam waits for the device.
        updates = parameter_updates(
            dict(self.optimizer.named),
            self.optimizer.state(),
            self.optimizer.schedule(record["step"]),
            settings.betas,
        )
        self._report(check_log(self.log, self.baseline), record["step"])
        if updates:
            ratio = typical_ratio(updates)
            self._report(check_rate(ratio, self.log, self.baseline), record["step"])

    def origin(self, batches: Sequence[Batch]) -> str | None:
        """Where a step that was skipped first had a value that is not finite."""
        if self._carries_state:
            return None
        for batch in batches:
            tensors = batch.to(next(self.objective.model.parameters()).device).tensors
            place = first_nonfinite(self.objective.model, self.objective.loss, tensors)
            if place is not None:
                return place
        return None

    @property
    def _carries_state(self) -> bool:
        return isinstance(self.objective, CarriesState)

    @property
    def _has_parts_from_outside(self) -> bool:
        """Whether the objective or a module is the user's: masks of the package are tested."""
        classes = {type(self.objective), *(type(m) for m in self.objective.model.modules())}
        return any(each.__module__.partition(".")[0] not in _TESTED for each in classes)

    @cached_property
    def baseline(self) -> Baseline:
        """By the labels of the first batches, which are the same in a resumed run."""
        settings = self.objective.settings
        batches = itertools.islice(self.objective.batches(0, 0), BATCHES_COUNTED)
        counts = None
        if self.objective.labels_are_classes:
            counts = labels.label_counts(batch for _, batch in batches)
        entropy = None if counts is None else labels.entropy(counts)
        return Baseline(entropy, warmup=settings.warmup_steps, steps=settings.steps)

    def _check_memory(self) -> Iterable[Finding]:
        device = next(self.objective.model.parameters()).device
        if device.type == "cuda":
            total = torch.cuda.get_device_properties(device).total_memory
            used = torch.cuda.max_memory_allocated(device)
            if used > MEMORY_SHARE * total:
                yield _memory_finding(f"{memory.amount(used)} of {memory.amount(total)}")
            return
        free = memory.available()
        if free is not None and free < LOW_MEMORY:
            yield _memory_finding(f"{memory.amount(free)} are left")

    def _report(self, findings: Iterable[Finding], step: int) -> None:
        names = {finding.check for finding in self.log.findings}
        for finding in findings:
            if finding.check in names:
                continue
            names.add(finding.check)
            self.log.findings.append(finding)
            self.metrics.write(finding.record(step))
            self.say(f"step {step}  {finding.line()}")


def _memory_finding(evidence: str) -> Finding:
    return Finding(
        "memory",
        evidence,
        "memory is about to run out",
        "lower batch_tokens and raise accumulate as much, or set gradient_checkpointing = true",
        0.9,
    )
