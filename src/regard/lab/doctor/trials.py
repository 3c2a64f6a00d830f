"""Short trials with one setting changed: the change that helps names the cause.

A run that learns nothing does so for many reasons that look alike in its log. Its first steps are
repeated from the same seed with one setting as it usually is; where that alone reaches a lower loss
than the whole run did, the setting was the cause.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from regard import spec
from regard.data.batching import Batch
from regard.families.preset_changes import CHANGES, with_changes
from regard.lab.doctor.gradient_checks import BLOCK_NAME
from regard.lab.doctor.run_evidence import RunEvidence
from regard.system.errors import RegardError
from regard.training import model_spec
from regard.training.assembly import assemble
from regard.training.diagnostics.finding import Finding
from regard.training.diagnostics.run_log import finite, median
from regard.training.engine.optimizer import autocast, make_optimizer
from regard.training.engine.train_step import Step
from regard.training.objectives.objective import Objective
from regard.training.parallel.strategy import Strategy
from regard.training.recipe.schema import Recipe
from regard.training.setup import Setup

MOST_STEPS = 80  # small models have learnt label frequencies by then, and something of the input
LEAST_STEPS = 15  # fewer do not tell a rate from one ten times lower
FIRST_STEPS = 30  # of a run, in which it is not judged
LAST = 5  # steps whose median is the loss of a trial
GAIN = 0.03  # of the loss without learning: what a trial must gain
# What a special setting must gain, as a share of the best trial's gain, to be named before the
# learning rate: a lower rate eases almost every trouble.
SHARE_OF_BEST = 0.6
USUAL_CLIP = 1.0
LONGER = 4  # times as many steps has the last trial, of the treatment that did best
# The peak rate as a share of the initial weights: 0.016 in the Transformer's base model (7e-4 of
# 0.044), 0.03 to 0.003 in GPT-3's sizes (6e-4 to 6e-5 of 0.02). Outside of this range a rate is
# tried even where the run has learnt something.
HIGH_STEP = 0.05
LOW_STEP = 1e-3
EXTREME_STEP = 0.5
# The same where the run learns, or its rate is in that range. Few runs have the best rate of all,
# and a higher one is often faster at first.
CLEAR_GAIN = 0.1
OWN_SCALE_GAIN = 0.2  # of the final loss, where labels are not classes
LEARNT_NOTHING = 0.97  # of the loss without learning: within the noise of batches
# Twelve post-norm layers train with a warm-up, eighteen diverge (Liu et al. 2020).
MANY_LAYERS = 12
# Symptoms of updates that were too large, unless the model had learnt before they came.
COLLAPSE = ("dead_units", "saturated_attention", "uniform_attention")


@dataclass(frozen=True)
class Treatment:
    """One setting changed: what it was, and what it is in the trial."""

    check: str
    cause: str
    change: str
    train: dict[str, Any] = field(default_factory=dict)  # changes of [train]
    model: dict[str, Any] = field(default_factory=dict)  # changes of [model]


def check_settings(run: RunEvidence, seconds: float) -> Iterator[Finding]:
    """Trials of a run that has learnt little, has broken off, or has an unusual learning rate.

    All of them together take at most that many seconds of the processor.
    """
    broke_off = math.isinf(run.final_loss)
    # The first steps of a healthy run learn little, too.
    is_early = run.log.last_step < FIRST_STEPS and not broke_off
    if not run.has_run or is_early:
        return
    special: list[Treatment] = []
    rates = list(_unusual_rates(run))
    if run.is_weak:
        special = [*_special_settings(run), *_warmup(run)]
        rates = list(_learning_rates(run))
    if not rates:
        return
    # With the control and the last, longer one; of the rates half are tried on average.
    trials = 1 + len(special) + -(-len(rates) // 2) + LONGER
    steps = _affordable_steps(run, seconds, trials)
    if steps < LEAST_STEPS:
        run.problems.append("trials of other settings: one step takes too long")
        return
    # The control: where the first steps, repeated as they were, do as well as a treatment, the
    # settings were not the cause.
    control = _trial(run, Treatment("", "", ""), steps)
    # A run that broke off is compared with what is reached without learning.
    reference = min(run.final_loss, run.reference * 1.5, control)
    outcomes: list[Outcome] = []
    for treatment in (*special, *rates):
        loss = _trial(run, treatment, steps)
        outcome = Outcome(treatment, loss, reference, _margin(run, treatment))
        outcomes.append(outcome)
        # The rates stand in the order of what is likeliest: the first that helps will do.
        if treatment in rates and outcome.helps:
            break
    if run.is_weak and not any(outcome.helps for outcome in outcomes):
        # A lower rate, or a deeper signal, is slower at first: the best of them has as many steps
        # as the run had. A higher rate would have shown by now.
        slow = [each for each in outcomes if each.treatment.check != "rate_too_low"]
        best = max(slow, key=lambda outcome: outcome.gain)
        steps = min(LONGER * steps, run.log.last_step)
        outcomes = [replace(best, loss=_trial(run, best.treatment, steps))]
    yield from _verdict(run, [outcome for outcome in outcomes if outcome.helps], steps)


def _margin(run: RunEvidence, treatment: Treatment) -> float:
    """What a trial must gain over the run, in nats: more than the noise between batches.

    A rate in the usual range has to be far worse than another to be called sick.
    """
    is_unusual = {
        "rate_too_high": run.relative_step > HIGH_STEP,
        "rate_too_low": run.relative_step < LOW_STEP,
    }
    if run.is_weak and is_unusual.get(treatment.check, True):
        return max(0.03, GAIN * run.reference)
    if run.baseline.entropy is None:
        # Squared errors fall by orders of magnitude: their scale is where the run ended.
        return OWN_SCALE_GAIN * min(run.final_loss, run.reference)
    return max(0.1, CLEAR_GAIN * run.reference)


@dataclass(frozen=True)
class Outcome:
    """The loss that a treatment reaches, beside that of the run."""

    treatment: Treatment
    loss: float
    reference: float
    margin: float

    @property
    def gain(self) -> float:
        return self.reference - self.loss

    @property
    def helps(self) -> bool:
        return self.gain > self.margin


def _verdict(run: RunEvidence, outcomes: list[Outcome], steps: int) -> Iterator[Finding]:
    most = max((outcome.gain for outcome in outcomes), default=0.0)
    for outcome in outcomes:
        # In their order: special settings before the learning rate.
        if outcome.gain < SHARE_OF_BEST * most:
            continue
        ending = "diverged" if math.isinf(run.final_loss) else f"ended at {run.final_loss:.2f}"
        treatment = outcome.treatment
        yield Finding(
            treatment.check,
            f"the run {ending} after {run.log.last_step:,} steps; "
            f"{steps} steps with the changed setting reach {outcome.loss:.2f}",
            treatment.cause,
            treatment.change,
            min(0.95, 0.6 + 0.4 * outcome.gain / max(run.reference, 0.1)),
        )
        return


def check_collapse(run: RunEvidence, symptoms: Sequence[Finding]) -> Iterator[Finding]:
    """A model that has collapsed without ever learning, at a rate above the usual range.

    For runs too short to show by trials what a lower rate, or other residuals, would reach.
    """
    signs = [each for each in symptoms if each.check in COLLAPSE]
    never_learnt = run.is_weak and not run.log.best_loss() < LEARNT_NOTHING * run.reference
    # Updates of half the weights leave nothing of what a model had learnt.
    is_extreme = bool(signs) and run.relative_step > EXTREME_STEP
    if not signs or not (never_learnt or is_extreme):
        return
    for treatment in _residuals(run):
        if not is_extreme:
            yield Finding(
                treatment.check, signs[0].evidence, treatment.cause, treatment.change, 0.6
            )
    if run.relative_step <= HIGH_STEP:
        return
    yield Finding(
        "rate_too_high",
        f"the learning rate is {run.relative_step:.2f} of the initial weights, about 0.01 is "
        f"usual; the loss was never below {run.log.best_loss():.2f}, and {signs[0].evidence}",
        f"the learning rate of {run.peak_rate:.1e} is too high, or its warmup too short",
        f"set learning_rate = {run.peak_rate / 10:.1e}, and warmup to a tenth of the steps",
        0.6,
    )


# --- what is tried --------------------------------------------------------------------------------


def _warmup(run: RunEvidence) -> Iterator[Treatment]:
    train = run.recipe.train
    if train.warmup_steps < max(10, 0.02 * train.steps) and train.schedule != "paper":
        yield Treatment(
            "no_warmup",
            f"the warmup is too short: {train.warmup_steps} steps to the full learning rate",
            "set warmup to a tenth of the steps",
            # A quarter of the trial; the rest has the full rate, as the run had.
            {"schedule": "constant", "learning_rate": run.peak_rate, "warmup_steps": 20},
        )


def _learning_rates(run: RunEvidence) -> Iterator[Treatment]:
    """Lower rates, then higher ones, unless the rate is above the usual range as it is."""
    train = run.recipe.train
    rate = run.peak_rate
    constant = {"schedule": "constant", "warmup_steps": 5}
    # Steps of ten: a rate that is wrong by less still learns.
    for factor in (0.1, 0.01, 0.001):
        yield Treatment(
            "rate_too_high",
            f"the learning rate of {rate:.1e} is too high",
            f"set learning_rate = {rate * factor:.1e}",
            {**constant, "learning_rate": rate * factor},
        )
    if run.relative_step > HIGH_STEP:
        return
    ends_in_warmup = train.warmup_steps >= run.log.last_step
    for factor in (10.0, 100.0, 1000.0):
        yield Treatment(
            "rate_too_low",
            f"the learning rate of {rate:.1e} is too low",
            f"set learning_rate = {rate * factor:.1e}"
            + (" and a shorter warmup" if ends_in_warmup else ""),
            {**constant, "learning_rate": rate * factor},
        )


def _unusual_rates(run: RunEvidence) -> Iterator[Treatment]:
    """The next rate towards the usual ones, where that of the run is far from them."""
    for treatment in _learning_rates(run):
        factor = treatment.train["learning_rate"] / run.peak_rate
        if run.relative_step > HIGH_STEP and 0.05 < factor < 1:
            yield treatment
        # Fine-tuning takes small steps on purpose, away from weights that are good.
        if run.relative_step < LOW_STEP and 1 < factor < 20 and not run.recipe.is_finetuning:
            yield treatment


def _special_settings(run: RunEvidence) -> Iterator[Treatment]:
    train = run.recipe.train
    if train.precision == "fp16":
        yield Treatment(
            "half_precision_overflow",
            "values overflow in fp16, whose maximum is 65,504",
            "use precision = bf16 or float32",
            {"precision": "float32"},
        )
    # Whoever sets it departs from the usual one of the objective.
    if run.recipe.model.init is not None:
        yield Treatment(
            "bad_initialization",
            f"the scale of the initial weights (init = {run.recipe.model.init}) is wrong",
            "remove start to use the default initialization",
            model={"init": None},
        )
    yield from _residuals(run)
    # Norms of a healthy step are of the order of 1.
    is_unstable = bool(run.log.skipped) or max(finite(run.log.gradient_norms), default=0.0) > 100
    if train.max_grad_norm == 0 and is_unstable:
        yield Treatment(
            "no_clipping",
            "gradients are not clipped",
            f"set max_grad_norm = {USUAL_CLIP}",
            {"max_grad_norm": USUAL_CLIP},
        )


def _residuals(run: RunEvidence) -> Iterator[Treatment]:
    """Pre-norm, in place of no residual connections or of many post-norm layers.

    Norms keep the size of gradients; what they carry of the input fades all the same (Dong et al.
    2021, Attention is not all you need).
    """
    model = run.recipe.model
    depth = _depth(run)
    if run.recipe.is_finetuning:
        return
    if model.residual == "none" and depth >= 3:
        cause = f"without residual connections, the signal vanishes in {depth} layers"
    elif model.residual != "pre" and depth >= MANY_LAYERS:
        cause = f"the signal vanishes in {depth} post-norm layers"
    else:
        return
    yield Treatment(
        "vanishing_gradients",
        cause,
        "use pre-norm (residual = pre), or fewer layers",
        model={"residual": "pre"},
    )


def _depth(run: RunEvidence) -> int:
    """The blocks of the deepest stack."""
    numbers = [BLOCK_NAME.match(name) for name, _ in run.objective.model.named_parameters()]
    return max((int(match[2]) + 1 for match in numbers if match is not None), default=0)


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
    model = run.recipe.model.model_copy(update=treatment.model)
    recipe = run.recipe.model_copy(update={"train": train, "model": model})
    setup = Setup(run.run_folder, recipe, run.objective.setup.say, run.parts)
    try:
        objective = assemble(setup, again=True, description=_changed_spec(run, treatment))
    except RegardError:
        return math.inf  # the change does not fit the run
    losses = _losses(run, recipe, objective, steps)
    last = losses[-LAST:]
    return median(last) if len(finite(last)) == LAST else math.inf


def _changed_spec(run: RunEvidence, treatment: Treatment) -> spec.Model | None:
    """The spec of the run with what a treatment changes in its architecture; None: as it was."""
    changes = {key: value for key, value in treatment.model.items() if key in CHANGES}
    description = model_spec.read(run.run_folder, run.parts.kinds)
    if not changes or description is None:
        return None
    return with_changes(description, run.recipe.data.context, changes)


def _losses(run: RunEvidence, recipe: Recipe, objective: Objective, steps: int) -> list[float]:
    """−log p per label of each step, from the initial weights on."""
    model = objective.model
    model.train()  # with dropout, as in the run
    # Drawn before the first update overwrites them.
    began = run.initial if objective is run.objective else None
    device = next(model.parameters()).device
    optimizer = make_optimizer(Strategy(objective))
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
