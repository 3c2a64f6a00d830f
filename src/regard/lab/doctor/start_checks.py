"""Checks of how a run begins: the loss of its initial weights, and the size of its first steps."""

from __future__ import annotations

import math
from collections.abc import Iterator

from regard.lab.doctor.run_evidence import RunEvidence
from regard.training.diagnostics.finding import Finding
from regard.training.engine.optimizer import lr_schedule

# One update of Adam changes a weight by about the learning rate, whatever the gradient is.
LARGEST_STEP = 1.0  # of an update as a share of the weights; 1e-3 is usual
# Of all updates together, as a share of the weights. Even if all had the same sign, the weights
# would be those of the start within two per cent.
SHORTEST_WAY = 0.02
FEW_UPDATES = 50  # fewer than any schedule here has for its warm-up alone
FEWEST_UPDATES = 5  # of a run that is meant to learn
# A new model knows nothing: its loss is about the logarithm of the number of classes. Half more is
# outside what the usual initializations give, with and without scaled embeddings.
HIGHEST = 1.5
# Logits of unit variance cost half a nat, however few classes there are.
LEAST_EXCESS = 1.0  # nats
# The root mean square of the initial matrices, the median: 0.02 is usual, 0.006 the least of
# initializations that scale with depth.
SMALLEST_WEIGHTS = 1e-3


def check_step_size(run: RunEvidence) -> Iterator[Finding]:
    """Learning rates that replace the weights at once, or never move them."""
    if not run.is_weak or run.log.last_step <= 0:
        return
    largest = run.relative_step
    weight = run.peak_rate / largest
    schedule = lr_schedule(run.recipe, run.objective.d_model)
    if weight < SMALLEST_WEIGHTS:
        yield Finding(
            "bad_initialization",
            f"the initial matrices have a root mean square of {weight:.1e}; about 2e-2 is usual",
            "the initial weights are too small: the outputs of layers are close to zero",
            f"{_without_start(run)}use a usual standard deviation, e.g. init = normal:0.02",
            0.85,
        )
        return
    way = sum(schedule(step) for step in range(1, run.log.last_step + 1)) / weight
    if largest > LARGEST_STEP:
        yield Finding(
            "rate_too_high",
            f"one update changes a weight by {run.peak_rate:.1e}, {largest:.0f} times its initial "
            f"size of {weight:.1e}; about a thousandth of that is usual",
            f"the learning rate of {run.peak_rate:.1e} is too high",
            f"set learning_rate = {1e-2 * weight:.1e}, or less",
            0.85,
        )
    elif way < SHORTEST_WAY and run.log.last_step > run.recipe.train.warmup_steps:
        yield Finding(
            "rate_too_low",
            f"all {run.log.last_step:,} updates together can change the weights by "
            f"{100 * way:.2g} % of their size",
            f"the learning rate of {run.peak_rate:.1e} is too low",
            f"set learning_rate = {1e-2 * weight:.1e}",
            0.85,
        )


def check_batch_size(run: RunEvidence) -> Iterator[Finding]:
    """Batches of half the data or more, so that few updates are made of many passes."""
    steps = run.log.last_step
    if not run.is_weak or not 0 < steps < FEW_UPDATES:
        return
    updates = run.objective.batches_per_epoch() / run.recipe.train.accumulate
    # A run of a few steps is a trial, and too short to learn whatever its batches are.
    if updates > 2 or steps < FEWEST_UPDATES:
        return
    yield Finding(
        "batch_too_large",
        f"the run made only {steps} updates in {steps / updates:.0f} epochs; its loss is "
        f"{run.final_loss:.2f}, predicting label frequencies has {run.reference:.2f}",
        "a batch contains at least half of the data, so there are few updates",
        f"set batch_tokens = {max(64, run.recipe.train.batch_tokens // 16):,} and more steps",
        0.75,
    )


def check_start(run: RunEvidence) -> Iterator[Finding]:
    """Initial weights that predict worse than chance."""
    if run.baseline.uniform is None or not run.batches:
        return
    if run.has_run and not run.is_weak:
        return  # whatever it was, training has mended it
    loss = run.initial_loss
    chance = max(run.baseline.uniform, math.log(2))
    if loss < max(HIGHEST * chance, chance + _usual_excess(run)) and math.isfinite(loss):
        return
    if run.recipe.is_finetuning:
        yield Finding(
            "tokenizer_mismatch",
            f"the base model has an initial loss of {loss:.2f}; uniform predictions {chance:.2f}",
            "the base model was trained with a different tokenizer",
            "put the tokenizer of the base model into its folder",
            0.7,
        )
        return
    yield Finding(
        "bad_initialization",
        f"the initial loss is {loss:.2f}; uniform predictions have {chance:.2f}",
        "the initial weights are too large",
        f"{_without_start(run)}use a smaller standard deviation, e.g. init = normal:0.02",
        0.85,
    )


def _usual_excess(run: RunEvidence) -> float:
    """By how many nats a new model may be worse than guessing."""
    if run.recipe.model.init is not None or run.recipe.is_finetuning:
        return LEAST_EXCESS
    # Tied embeddings of the default initialization give the token that is read a logit of up to
    # √d_model, which among few tokens outweighs all others. The first updates of warm-up undo it.
    return math.sqrt(run.objective.d_model)


def _without_start(run: RunEvidence) -> str:
    """The first half of a repair, for recipes that set `init`."""
    return "" if run.recipe.model.init is None else "remove init, or "
