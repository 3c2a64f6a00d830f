"""The examination of a run or a recipe: all checks, and their findings in order."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from regard.lab.doctor.activation_checks import check_activations
from regard.lab.doctor.data_checks import check_inputs
from regard.lab.doctor.gradient_checks import check_gradients
from regard.lab.doctor.information_checks import check_information
from regard.lab.doctor.memory_checks import check_memory
from regard.lab.doctor.pair_checks import check_pairs
from regard.lab.doctor.run_evidence import RunEvidence, open_recipe, open_run
from regard.lab.doctor.settings_checks import check_ranges
from regard.lab.doctor.split_checks import check_splits
from regard.lab.doctor.start_checks import check_batch_size, check_start, check_step_size
from regard.lab.doctor.trials import check_collapse, check_settings
from regard.lab.doctor.weight_checks import check_stored_weights, check_weights
from regard.system.errors import ModelError
from regard.training.diagnostics.finding import Finding, ranked
from regard.training.diagnostics.information_flow import check_information_flow
from regard.training.diagnostics.monitor import (
    check_rate,
    typical_update_ratio,
)
from regard.training.diagnostics.run_log import RunLog, check_log
from regard.training.engine.optimizer import lr_schedule
from regard.training.objectives.objective import Objective
from regard.training.recipe import loading
from regard.training.run_folder import read_run
from regard.training.setup import DataSource, Parts

TRIAL_SECONDS = 60.0  # of the processor: about 20 trials of 80 steps of a small model
SURE = 0.8  # of a learning rate that needs no trial
# What may follow from a setting: it is still to be tried which one.
CONSEQUENCES = (
    "nonfinite",
    "plateau",
    "diverging_loss",
    "loss_spike",
    "overfitting",
    "exploding_gradients",
    "dead_units",
    "saturated_attention",
    "uniform_attention",
)

Check = Callable[[RunEvidence], Iterator[Finding]]


@dataclass(frozen=True)
class Report:
    """The findings of an examination, causes first, and what could not be examined."""

    name: str
    findings: list[Finding]
    problems: list[str]
    log: RunLog | None = None

    @property
    def is_healthy(self) -> bool:
        return not self.findings

    def to_dict(self) -> dict[str, Any]:
        return {
            "run": self.name,
            "healthy": self.is_healthy,
            "findings": [asdict(finding) for finding in self.findings],
            "not_examined": self.problems,
        }

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), ensure_ascii=False)


def examine(
    run: str | Path,
    *,
    kinds: Sequence[type] = (),
    objective: type[Objective] | None = None,
    data: DataSource | None = None,
    data_root: str | None = None,
    trial_seconds: float = TRIAL_SECONDS,
) -> Report:
    """Examines a run folder or a recipe: `regard.doctor.examine("runs/mine")`.

    `data_root` is where the files of a recipe of the package are; without it, $REGARD_DATA.
    Parts from outside the package are given again, as to `regard.resume`. Trials of a
    run that has learnt nothing take at most `trial_seconds`; 0 makes none.
    """
    parts = Parts(data, objective, kinds)
    if Path(run).is_dir():
        run_folder, recipe, _ = read_run(Path(run))
        evidence = open_run(run_folder, recipe, parts)
        findings = list(_findings(evidence, trial_seconds))
        return Report(str(run), ranked(findings), evidence.problems, evidence.log)
    return _examine_recipe(str(run), data_root, parts)


def _examine_recipe(target: str, data_root: str | None, parts: Parts) -> Report:
    """A recipe, whose model may be too large to be built here."""
    recipe, name = loading.choose(target, {}, data_root)
    # First: a model that does not fit cannot be assembled for the other checks.
    too_large = list(check_memory(recipe, name))
    try:
        with open_recipe(recipe, name, parts) as evidence:
            findings = too_large + list(_findings(evidence, trial_seconds=0))
    except ModelError as error:
        if not too_large:
            raise
        return Report(target, too_large, [error.problem])
    return Report(target, ranked(findings), evidence.problems, evidence.log)


def _findings(run: RunEvidence, trial_seconds: float) -> Iterator[Finding]:
    # What was noticed while training: with parts from outside, nobody else can tell.
    yield from _from_training(run)
    direct: list[Finding] = []
    for check in CHECKS if run.objective is not None else CHECKS_OF_FILES:
        direct += _completed(check, run)
    by_trial: list[Finding] = []
    tries = trial_seconds and run.objective is not None
    if tries and not any(_explains_weakness(finding) for finding in direct):
        by_trial = _completed(partial(check_settings, seconds=trial_seconds), run)
        by_trial = by_trial or _completed(partial(check_collapse, symptoms=direct), run)
    if by_trial:
        # What was tried is better evidence than a ratio: decayed weights make every step large.
        direct = [finding for finding in direct if not _is_unsure_rate(finding)]
    yield from direct
    yield from by_trial


def _completed(check: Check, run: RunEvidence) -> list[Finding]:
    """The findings of a check; a check that fails must not hide the findings of the others."""
    try:
        return list(check(run))
    except Exception as error:
        run.problems.append(f"{_name(check)} could not run: {type(error).__name__}: {error}")
        return []


def _name(check: Check) -> str:
    function = check.func if isinstance(check, partial) else check
    return str(getattr(function, "__name__", function)).strip("_")


def _from_training(run: RunEvidence) -> Iterator[Finding]:
    """Findings of the monitor that are not judged again here."""
    # The monitor saw only the beginning of the log; here is all of it.
    judged_again = {"rate_too_high", "rate_too_low", "plateau", "memory", "loss_spike"}
    judged_again |= {"diverging_loss", "overfitting", "nonfinite", "exploding_gradients"}
    for finding in run.log.findings:
        if finding.check not in judged_again:
            yield finding


def _explains_weakness(finding: Finding) -> bool:
    """Whether a finding says by itself why little was learnt: no settings have to be tried."""
    return finding.check not in CONSEQUENCES and not _is_unsure_rate(finding)


def _is_unsure_rate(finding: Finding) -> bool:
    return finding.check in ("rate_too_high", "rate_too_low") and finding.confidence < SURE


def _check_log(run: RunEvidence) -> Iterator[Finding]:
    yield from check_log(run.log, run.baseline)


def _check_flow(run: RunEvidence) -> Iterator[Finding]:
    # What depends on what follows from the wiring; saturated weights would hide some of it.
    with run.loaded(run.initial):
        yield from list(check_information_flow(run.objective, run.batches))


def _check_update_ratio(run: RunEvidence) -> Iterator[Finding]:
    if run.saved is None or "optimizer" not in run.saved.groups:
        return
    with run.loaded(run.saved.groups["weights"]) as model:
        ratio = typical_update_ratio(
            dict(model.named_parameters()),
            run.saved.groups["optimizer"],
            lr_schedule(run.recipe, run.objective.d_model)(max(1, run.saved.step)),
            run.recipe.train.betas,
        )
    if ratio is not None:
        yield from check_rate(ratio, run.log, run.baseline)


def _check_memory(run: RunEvidence) -> Iterator[Finding]:
    """Of a run that has not made a step; its monitor watches over the others.

    What is free while a run goes on lacks what the run itself takes.
    """
    if run.has_run and run.log.last_step == 0:
        yield from check_memory(run.recipe, run.run_folder.folder.name)


CHECKS_OF_FILES: tuple[Check, ...] = (_check_memory, check_stored_weights, check_ranges, _check_log)
# Of a run whose model and data are there.
CHECKS: tuple[Check, ...] = (
    _check_memory,
    check_weights,
    _check_flow,
    check_inputs,
    check_splits,
    check_information,
    check_pairs,
    check_ranges,
    check_gradients,
    check_start,
    check_step_size,
    check_batch_size,
    check_activations,
    _check_log,
    _check_update_ratio,
)
