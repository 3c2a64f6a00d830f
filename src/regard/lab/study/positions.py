"""Kinds of positions in trained models: learned and sinusoidal, and beyond the training length."""

from __future__ import annotations

import math
import random

from regard.data.generated.algorithmic_tasks import LETTERS, Copying, Reversing
from regard.lab.study.evidence import (
    above,
    differences,
    every,
    failures,
    finite,
    judge_sentences,
    judge_tasks,
    negated,
)
from regard.lab.study.figure import (
    Shown,
    chart_and_table,
    column,
    deviation,
    mean,
    mean_text,
    measured_bars,
    table,
)
from regard.lab.study.study import Effort, Numbers, Study, Verdict
from regard.lab.study.training_run import (
    POSITIONS,
    Batch,
    TaskBatches,
    english,
    evaluate,
    language_model,
    trained,
)

# `none` shows how much positions matter for the task at all.
KINDS = ("sinusoidal", "learned", "none")
LENGTH = 32  # tokens; no input is longer


class LearnedPositions(Study):
    """Learned positional embeddings and sinusoids give nearly identical results.

    Language models of two layers with sinusoidal, learned and no positions: on the built-in
    English, and on reversing letters, where positions are all that matters. Loss on test data
    within the training length.
    """

    source = "Vaswani et al. 2017, Section 3.5 and Table 3 (E): 25.7 and 25.8 BLEU"
    seeds = (2, 4)

    def measure(self, effort: Effort) -> Numbers:
        # Which letter comes next follows from positions alone.
        reversing = TaskBatches(Reversing(max_length=4)).learned(effort.choose(4, 16))
        tasks = {"English": english(effort), "reversing": reversing}
        # Enough for the loss to fall well below that of word frequencies.
        steps = {"English": effort.choose(100, 600), "reversing": effort.choose(130, 400)}

        def score(name: str, kind: str, seed: int) -> Numbers:
            model = language_model(tasks[name].vocabulary, LENGTH, position=kind)
            return tasks[name].score(model, seed, steps[name])._asdict()

        return {"runs": effort.each_pair(tasks, KINDS, score)}

    def verdict(self, numbers: Numbers) -> Verdict:
        """The two kinds are alike on a task if their losses differ by less than 2 % or by less than
        the standard deviations of both. Holds if they are alike on both tasks, within limits on
        one; else it does not hold."""
        alike = {}
        for task, runs in numbers["runs"].items():
            fixed, learned = (column(runs[kind], "loss") for kind in KINDS[:2])
            # Alike: within the noise, or too near to matter.
            noise = deviation(fixed) + deviation(learned)
            part = f"{task}: loss {mean_text(fixed)} sinusoidal, {mean_text(learned)} learned"
            alike[part] = abs(mean(fixed) - mean(learned)) < max(0.02 * mean(fixed), noise)
        return judge_tasks(alike)

    def show(self, numbers: Numbers) -> Shown:
        columns = {"loss": "loss", "accuracy": "accuracy, %"}
        return [
            shown
            for task, kinds in numbers["runs"].items()
            for shown in (
                measured_bars(f"Loss on {task}", "test loss, nats a token", kinds, {"loss": ""}),
                table(f"{task}, positions", columns, kinds),
            )
        ]


# ------------------------------------------------------------------ beyond the training length

TRAINED = 6  # letters in training, at most
LENGTHS = (3, 6, 9, 12)
LONGER = 9  # half as long again as in training
EXTRAPOLATES = 0.9  # share of the accuracy within the training length that is left beyond it
LEARNED = 75.0  # accuracy within it, in %, below which a model has not learned to copy


class Extrapolation(Study):
    """Sinusoids may allow a model to extrapolate to sequences longer than those of training;
    learned positions do not, and ALiBi extrapolates better than either.

    Language models of two layers that learn to copy 1 to {TRAINED} letters, with six kinds of
    position; then the accuracy of each letter, after the right ones before it, for up to 12
    letters. Copying, because the built-in English hardly needs positions (see learned_positions).
    The learned table has rows for all positions, of which training reaches the first; in use such a
    model refuses longer inputs.
    """

    source = (
        "Vaswani et al. 2017, Section 3.5 (sinusoids “may allow”); Press et al. 2022, Figure 1 "
        "(ALiBi, rotary, T5 bias, on text)"
    )
    seeds = (2, 4)

    def measure(self, effort: Effort) -> Numbers:
        steps = effort.choose(130, 500)
        task = TaskBatches(Copying(max_length=TRAINED))
        # The same inputs for all kinds and seeds.
        tests = [[_test(task, length, effort.choose(64, 256))] for length in LENGTHS]
        longest = 2 * max(LENGTHS) + 2  # start, letters, separator, letters

        def accuracies(kind: str, seed: int) -> list[float]:
            description = language_model(len(task.vocabulary), longest, position=POSITIONS[kind])
            model = trained(description, seed, task.stream("train", seed), steps)
            return [evaluate(model, test).accuracy for test in tests]

        scores = effort.each(POSITIONS, accuracies)
        return {"lengths": list(LENGTHS), "accuracies": scores, "steps": steps}

    def verdict(self, numbers: Numbers) -> Verdict:
        """A kind extrapolates if its accuracy at {LONGER} letters is at least 90 % of that at
        {TRAINED}, over the seeds (Student's t, 95 %); seeds below {LEARNED:.0f} % at {TRAINED}
        letters have not learned to copy and are left out. Holds if sinusoids do, learned positions
        do not, and ALiBi keeps more than both; within limits if sinusoids do, but one of the others
        is not so; else it does not hold, or is too small to say where the seeds do not tell."""
        shares = {kind: shares_left(numbers, kind) for kind in numbers["accuracies"]}
        listed = ", ".join(f"{kind} {_percent(values)}" for kind, values in shares.items())
        # ALiBi's share above the mean of another kind.
        sentences = {
            "sinusoids extrapolate": above(shares["sinusoidal"], EXTRAPOLATES),
            "learned positions do not": negated(above(shares["learned"], EXTRAPOLATES)),
            "ALiBi keeps more than both": every(
                above(differences(shares["ALiBi"], shares[kind]), 0.0)
                for kind in ("sinusoidal", "learned")
            ),
        }
        return judge_sentences(
            sentences,
            f"Accuracy at {LONGER} letters as a share of that at {TRAINED}, the longest in "
            f"training: {listed}.{failures(shares, ' to copy')}",
            main_first=True,
        )

    def show(self, numbers: Numbers) -> Shown:
        return chart_and_table(
            f"Copying beyond the training length, after {numbers['steps']} steps",
            "letters",
            "accuracy of a letter, %",
            numbers["lengths"],
            numbers["accuracies"],
            note=f"Trained on up to {TRAINED} letters; bands: worst to best seed.",
            low=0.0,
            high=100.0,
        )


def shares_left(numbers: Numbers, kind: str) -> list[float]:
    """Of each seed, the accuracy beyond the training length relative to that at it.

    NaN for one that has not learned to copy.
    """
    # The longest of training, and one half longer.
    inside, beyond = (numbers["lengths"].index(length) for length in (TRAINED, LONGER))
    return [
        run[beyond] / run[inside] if run[inside] >= LEARNED else math.nan
        for run in numbers["accuracies"][kind]
    ]


def _percent(shares: list[float]) -> str:
    learned = finite(shares)
    return f"{100 * mean(learned):.0f} %" if learned else "not learned"


def _test(task: TaskBatches, length: int, rows: int) -> Batch:
    """Inputs of exactly this length; which are in training too is too unlikely to matter."""
    rng = random.Random(length)
    # Seeded by the length: a test set does not depend on which others are made.
    letters = [" ".join(rng.choices(LETTERS, k=length)) for _ in range(rows)]
    return task.batch([(text, text) for text in letters])
