"""What a model would answer after each layer: the logit lens, of words and of classes.

nostalgebraist, "interpreting GPT: the logit lens" (2020): final norm and output head are applied
to the residual stream, as if no layer followed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from regard.core.finite_outputs import require_finite
from regard.core.heads.head import ClassifierHead
from regard.core.stack import Stack
from regard.look import Look, fitting_views, lens
from regard.look.forward import evaluation_mode
from regard.look.inspectable import Inspectable
from regard.look.probe_names import residual_probes
from regard.models import Model
from regard.studio.answers import task_of

# The likeliest token or class of a position, with its probability; None where nothing is said.
Guess = tuple[str, float] | None


def layer_guesses(run: Look, stack: str, rows: Sequence[int]) -> list[list[Guess]] | None:
    """[layers + 1][rows]: the likeliest answer at some positions, before and after each layer.

    None for a stack on which no vocabulary and no classes stand.
    """
    if stack != list(run.model.model.stacks())[-1]:
        return None
    if "lens" in fitting_views(run.model):
        return _words(run, rows)
    return _classes(run, stack, rows)


def _words(run: Look, rows: Sequence[int]) -> list[list[Guess]]:
    result = lens(run, top=1, positions=rows)
    guesses: list[list[Guess]] = []
    for tokens, probabilities in zip(result.tokens, result.probabilities, strict=True):
        best = zip(tokens, probabilities, strict=True)
        guesses.append([(token[0], float(probability[0])) for token, probability in best])
    return guesses


def _classes(run: Look, stack: str, rows: Sequence[int]) -> list[list[Guess]] | None:
    """Of classes of each position, or of the first one, which is read for the whole input."""
    core: Any = run.model.model
    side = core.stacks()[stack]
    labels = core.heads().get("labels")
    pool = core.heads().get("pool")
    # Scores of other tasks, and of several labels at once, are not shares of one answer.
    is_choice = isinstance(labels, ClassifierHead) and _chooses_one(run.model)
    if not isinstance(side, Stack) or not is_choice:
        return None
    of_first = pool is not None and pool.which == "first" and labels.scores == "pooled"
    if not labels.per_token and not of_first:
        return None
    guesses = []
    with evaluation_mode(core):
        for name in residual_probes(core, stack):
            residual = run.tensor(name)
            if name.endswith(".embedded"):
                residual = side.residual_stream(residual)
            hidden = side.finish(residual)
            logits = require_finite(core.classes(hidden, inputs=run.model_inputs.inputs), core)
            guesses.append(_likeliest(run, logits[0].float(), rows))
    return guesses


def _chooses_one(model: Inspectable) -> bool:
    if not isinstance(model, Model) or model.config.get("problem_type") is not None:
        return False
    return task_of(model) in ("classify", "tag", "transcribe")


def _likeliest(run: Look, logits: Tensor, rows: Sequence[int]) -> list[Guess]:
    """Of logits [T, L] those of the rows; of [L] that of the first position alone."""
    best = logits.softmax(dim=-1).max(dim=-1)

    def guess(index: Tensor, probability: Tensor) -> Guess:
        return run.model.label_name(int(index)), float(probability)

    if logits.ndim == 1:
        return [guess(best.indices, best.values) if row == 0 else None for row in rows]
    return [guess(best.indices[row], best.values[row]) for row in rows]
