"""Checks of a run's first moment: the loss of its initial weights."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from regard.doctor.run_evidence import RunEvidence
from regard.training.diagnostics.finding import Finding

# A new model knows nothing: its loss is about the logarithm of the number of classes.
HIGHEST = 1.5


def check_start(run: RunEvidence) -> Iterator[Finding]:
    """Initial weights that predict worse than chance."""
    objective = run.objective
    if objective is None or run.baseline.uniform is None or not run.batches:
        return
    if run.has_run and not run.is_weak:
        return  # whatever it was, training has mended it
    model = objective.model
    model.eval()
    batch = run.batches[0].to(next(model.parameters()).device)
    with torch.no_grad(), run.loaded(run.initial):
        loss = float(objective.loss(batch.tensors)[1]) / max(1, batch.tokens)
    chance = max(run.baseline.uniform, math.log(2))
    if loss < HIGHEST * chance and math.isfinite(loss):
        return
    if run.recipe.is_finetuning:
        yield Finding(
            "tokenizer_mismatch",
            f"the base model begins with a loss of {loss:.2f}; guessing has {chance:.2f}",
            "the base model does not know these token ids: its tokenizer is another one",
            "put the tokenizer into the folder that the base model was trained with",
            0.7,
        )
        return
    yield Finding(
        "bad_initialization",
        f"the initial weights have a loss of {loss:.2f}; guessing has {chance:.2f}",
        "the initial weights are too large",
        "leave start out, or choose a smaller deviation, e.g. start = normal:0.02",
        0.85,
    )
