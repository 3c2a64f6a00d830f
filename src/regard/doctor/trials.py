"""Short trials with one setting changed: the change that helps names the cause.

A run that learns nothing does so for many reasons that look alike in its log. Its first steps are
repeated from the same seed with one setting as it usually is; where that alone reaches a lower loss
than the whole run did, the setting was the cause.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from regard.core.dropout import Dropout
from regard.data.batching import Batch
from regard.doctor.run_evidence import RunEvidence
from regard.errors import RegardError
from regard.training.assembly import reassemble
from regard.training.diagnostics.finding import Finding
from regard.training.diagnostics.run_log import finite, median
from regard.training.engine.mixed_precision import autocast
from regard.training.engine.train_step import Step
from regard.training.objectives.objective import Objective
from regard.training.recipe.schema import Recipe
from regard.training.run import make_optimizer
from regard.training.setup import Setup

MOST_STEPS = 80
LEAST_STEPS = 15
FIRST_STEPS = 30
LAST = 5  # steps whose median is the loss of a trial
GAIN = 0.03  # of the loss without learning: what a trial must gain
# What a special setting must gain, as a share of the best trial's gain, to be named before the
# learning rate: a lower rate eases almost every trouble.
SHARE_OF_BEST = 0.6
USUAL_CLIP = 1.0


@dataclass(frozen=True)
class Treatment:
    """One setting changed: what it was, and what it is in the trial."""

    check: str
    cause: str
    change: str
    train: dict[str, Any] = field(default_factory=dict)  # changes of [train]
    initialization: bool = False  # the usual one
    without_dropout: bool = False


def check_settings(run: RunEvidence, seconds: float) -> Iterator[Finding]:
    """Trials of a run that has learnt little or has broken off, within that many seconds."""
    broke_off = math.isinf(run.final_loss)
    # The first steps of a healthy run learn little, too.
    is_early = run.log.last_step < FIRST_STEPS and not broke_off
    if run.objective is None or not run.is_weak or is_early:
        return
    special = [*_special_settings(run), *_warmup(run)]
    rates = list(_learning_rates(run))
    # With the control; of the rates half are tried on average.
    steps = _affordable_steps(run, seconds, 1 + len(special) + len(rates) // 2)
    if steps < LEAST_STEPS:
        run.problems.append("one step takes too long for trials of other settings")
        return
    # The control: where the first steps, repeated as they were, do as well as a treatment, the
    # settings were not the cause.
    control = _trial(run, Treatment("", "", ""), steps)
    # A run that broke off is compared with what is reached without learning.
    reference = min(run.final_loss, run.reference * 1.5, control)
    margin = max(0.03, GAIN * run.reference)
    outcomes: list[Outcome] = []
    for treatment in (*special, *rates):
        outcome = Outcome(treatment, _trial(run, treatment, steps), reference)
        outcomes.append(outcome)
        # The rates stand in the order of what is likeliest: the first that helps will do.
        if treatment in rates and outcome.gain > margin:
            break
    yield from _verdict(run, [each for each in outcomes if each.gain > margin], steps)


@dataclass(frozen=True)
class Outcome:
    """The loss that a treatment reaches, beside that of the run."""

    treatment: Treatment
    loss: float
    reference: float

    @property
    def gain(self) -> float:
        return self.reference - self.loss


def _verdict(run: RunEvidence, outcomes: list[Outcome], steps: int) -> Iterator[Finding]:
    most = max((outcome.gain for outcome in outcomes), default=0.0)
    for outcome in outcomes:
        # In their order: special settings before the learning rate.
        if outcome.gain < SHARE_OF_BEST * most:
            continue
        ending = "broke off" if math.isinf(run.final_loss) else f"ended at {run.final_loss:.2f}"
        treatment = outcome.treatment
        yield Finding(
            treatment.check,
            f"the run {ending} after {run.log.last_step:,} steps; "
            f"{steps} steps with that changed reach {outcome.loss:.2f}",
            treatment.cause,
            treatment.change,
            min(0.95, 0.6 + 0.4 * outcome.gain / max(run.reference, 0.1)),
        )
        return


# --- what is tried --------------------------------------------------------------------------------


def _warmup(run: RunEvidence) -> Iterator[Treatment]:
    train = run.recipe.train
    if train.warmup < max(10, 0.02 * train.steps) and train.schedule != "paper":
        yield Treatment(
            "no_warmup",
            f"there is no warm-up: the full rate comes after {train.warmup} steps",
            "set warmup to a tenth of the steps",
            {"schedule": "constant", "learning_rate": run.peak_rate, "warmup": 20},
        )


def _learning_rates(run: RunEvidence) -> Iterator[Treatment]:
    """Lower rates, then higher ones."""
    train = run.recipe.train
    rate = run.peak_rate
    constant = {"schedule": "constant", "warmup": 5}
    # Steps of ten: a rate that is wrong by less still learns.
    for factor in (0.1, 0.01, 0.001):
        yield Treatment(
            "rate_too_high",
            f"the learning rate of {rate:.1e} is too high",
            f"set learning_rate = {rate * factor:.1e}",
            {**constant, "learning_rate": rate * factor},
        )
    ends_in_warmup = train.warmup >= run.log.last_step
    for factor in (10.0, 100.0, 1000.0):
        yield Treatment(
            "rate_too_low",
            f"the learning rate of {rate:.1e} is too low",
            f"set learning_rate = {rate * factor:.1e}"
            + (" and a shorter warmup" if ends_in_warmup else ""),
            {**constant, "learning_rate": rate * factor},
        )


def _special_settings(run: RunEvidence) -> Iterator[Treatment]:
    train = run.recipe.train
    if train.precision == "fp16":
        yield Treatment(
            "half_precision_overflow",
            "numbers overflow in fp16, whose largest is 65,504",
            "use precision = bf16 or float32",
            {"precision": "float32"},
        )
    # Whoever sets it departs from the usual one of the objective.
    if run.recipe.model.start is not None:
        yield Treatment(
            "bad_initialization",
            f"the initial weights ({run.recipe.model.start}) are of a bad size",
            "leave start out, which takes the usual initialization",
            initialization=True,
        )
    # 0.01 to 0.1 are usual.
    if train.weight_decay > 0.3:
        yield Treatment(
            "weight_decay_too_high",
            f"a weight decay of {train.weight_decay:g} erases what is learnt",
            "set weight_decay = 0.01",
            {"weight_decay": 0.01},
        )
    if _largest_dropout(run) > 0.4:
        yield Treatment(
            "dropout_too_high",
            f"a dropout of {_largest_dropout(run):g} leaves too little to learn from",
            "set dropout = 0.1",
            without_dropout=True,
        )
    is_unstable = bool(run.log.skipped) or max(finite(run.log.gradient_norms), default=0.0) > 100
    if train.clip == 0 and is_unstable:
        yield Treatment(
            "no_clipping",
            "gradients are not clipped",
            f"set clip = {USUAL_CLIP}",
            {"clip": USUAL_CLIP},
        )


def _largest_dropout(run: RunEvidence) -> float:
    assert run.objective is not None
    modules = run.objective.model.modules()
    return max((m.rate for m in modules if isinstance(m, Dropout)), default=0.0)


# --- how it is tried ------------------------------------------------------------------------------


def _affordable_steps(run: RunEvidence, seconds: float, trials: int) -> int:
    """So many steps that all trials fit into the time, measured by two of them.

    By the processor's time, so that a busy machine gives the same answer.
    """
    started = time.process_time()
    _losses(run, run.recipe, run.objective, 2)
    per_step = (time.process_time() - started) / 2
    return min(MOST_STEPS, run.recipe.train.steps, int(seconds / trials / max(per_step, 1e-4)))


def _trial(run: RunEvidence, treatment: Treatment, steps: int) -> float:
    """The loss at the end of a trial; infinite where it breaks off."""
    # Not checked again: what is changed fits every recipe.
    train = run.recipe.train.model_copy(update=treatment.train)
    update: dict[str, Any] = {"train": train}
    if treatment.initialization:
        update["model"] = run.recipe.model.model_copy(update={"start": None})
    recipe = run.recipe.model_copy(update=update)
    parts = run.parts
    assert run.objective is not None
    setup = Setup(run.run_folder, recipe, run.objective.setup.say, parts.source, parts.kinds)
    try:
        objective = reassemble(setup, parts.objective)
    except RegardError:
        return math.inf  # the change does not fit the run
    if treatment.without_dropout:
        _remove_dropout(objective.model)
    losses = _losses(run, recipe, objective, steps)
    last = losses[-LAST:]
    return median(last) if len(finite(last)) == LAST else math.inf


def _remove_dropout(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, Dropout):
            module.rate = 0.0


def _losses(
    run: RunEvidence, recipe: Recipe, objective: Objective | None, steps: int
) -> list[float]:
    """−log p per label of each step, from the initial weights on."""
    assert objective is not None
    model = objective.model
    model.train()  # with dropout, as in the run
    # Drawn before the first update overwrites them.
    began = run.initial if objective is run.objective else None
    device = next(model.parameters()).device
    optimizer = make_optimizer(recipe, model, objective.d_model)
    precision = recipe.train.precision
    step = Step(objective.loss, optimizer, lambda: autocast(precision, device), cuda_graphs=False)
    batches = objective.batches(0, 0)  # those of the run: their order follows from the seed
    losses = []
    for number in range(1, steps + 1):
        chosen: list[Batch] = [
            batch for _, batch in itertools.islice(batches, recipe.train.accumulate)
        ]
        # Without label smoothing: trials are compared with the entropy of the labels.
        _, _, _, nll = step(chosen, number, recipe.train.seed).tolist()
        losses.append(nll / max(1, sum(batch.tokens for batch in chosen)))
    if began is not None:
        with run.loaded(began):
            pass  # leaves the initial weights behind
    return losses
