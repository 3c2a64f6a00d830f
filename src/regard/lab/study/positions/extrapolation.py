"""Beyond the training length: which positions extrapolate."""

from __future__ import annotations

import random

from regard.data.generated.algorithmic_tasks import LETTERS, Copying
from regard.lab.study.figure import Table, mean, mean_text
from regard.lab.study.study import Effort, Numbers, Progress, Study, Verdict, judge
from regard.lab.study.training_run import Batch, TaskBatches, evaluate, language_model, trained
from regard.look.drawing import Axis, Chart, Figure, Series

# Words of `families/preset_changes.parse_position`.
KINDS = {
    "sinusoidal": "sinusoidal",
    "learned": "learned",
    "relative": "relative:16",
    "T5 bias": "buckets:32:128",
    "ALiBi": "alibi",
    "rotary": "rope",
}
TRAINED = 6  # letters in training, at most
LENGTHS = (3, 6, 9, 12)
LONGER = 9  # half as long again as in training
EXTRAPOLATES = 0.9  # share of the accuracy within the training length that is left beyond it


class Extrapolation(Study):
    name = "extrapolation"
    claim = (
        "Sinusoids may allow a model to extrapolate to sequences longer than those of training; "
        "learned positions do not, and ALiBi extrapolates better than either."
    )
    source = (
        "Vaswani et al. 2017, Section 3.5 (sinusoids “may allow”); Press et al. 2022, Figure 1 "
        "(ALiBi, rotary, T5 bias, on text)"
    )
    measurement = (
        f"Language models of two layers that learn to copy 1 to {TRAINED} letters, with six kinds "
        f"of position; then the accuracy of each letter, after the right ones before it, for up to "
        f"{max(LENGTHS)} letters. Copying, because the built-in English hardly needs positions "
        "(see learned_positions). The learned table has rows for all positions, of which training "
        "reaches the first; in use such a model refuses longer inputs."
    )
    rule = (
        f"A kind extrapolates if its accuracy at {LONGER} letters is at least "
        f"{100 * EXTRAPOLATES:.0f} % of that at {TRAINED}. Holds if sinusoids do, learned "
        "positions do not, and ALiBi keeps more than both; within limits if learned positions do "
        "not and ALiBi keeps more than they do; else it does not hold."
    )
    full_seeds = 4

    def measure(self, effort: Effort, progress: Progress) -> Numbers:
        steps = effort.choose(130, 500)
        task = TaskBatches(Copying(max_length=TRAINED), LETTERS)
        # The same inputs for all kinds and seeds.
        tests = {length: [_test(task, length, effort.choose(64, 256))] for length in LENGTHS}
        longest = 2 * max(LENGTHS) + 2  # start, letters, separator, letters

        def accuracies(kind: str, seed: int) -> list[float]:
            description = language_model(len(task.vocabulary), longest, position=KINDS[kind])
            model = trained(description, seed, task.stream("train", seed), steps)
            return [evaluate(model, tests[length]).accuracy for length in LENGTHS]

        scores = effort.each(progress, KINDS, accuracies)
        return {"lengths": list(LENGTHS), "accuracies": scores, "steps": steps}

    def verdict(self, numbers: Numbers) -> Verdict:
        shares = {kind: share_left(numbers, kind) for kind in numbers["accuracies"]}
        listed = ", ".join(f"{kind} {100 * share:.0f} %" for kind, share in shares.items())
        reason = (
            f"Accuracy at {LONGER} letters as a share of that at {TRAINED}, the longest in "
            f"training: {listed}."
        )
        # The paper only says that sinusoids may extrapolate: the claim is theirs alone.
        sinusoids_do = shares["sinusoidal"] >= EXTRAPOLATES
        is_best = shares["ALiBi"] > shares["sinusoidal"]
        learned_do_not = shares["learned"] < EXTRAPOLATES and shares["ALiBi"] > shares["learned"]
        return judge(sinusoids_do and is_best, learned_do_not, reason)

    def figures(self, numbers: Numbers) -> list[Figure]:
        lengths = numbers["lengths"]
        series = [
            Series.over_seeds(kind, lengths, runs) for kind, runs in numbers["accuracies"].items()
        ]
        return [
            Chart(
                "Copying beyond the training length",
                Axis("letters", ticks=tuple(lengths)),
                Axis("accuracy of a letter, %", low=0.0, high=100.0),
                series,
                note=f"Trained on up to {TRAINED} letters; bands: worst to best seed.",
            )
        ]

    def tables(self, numbers: Numbers) -> list[Table]:
        rows = []
        for kind, runs in numbers["accuracies"].items():
            left = f"{100 * share_left(numbers, kind):.0f} %"
            rows.append([kind, *map(mean_text, zip(*runs, strict=True)), left])
        columns = ["positions", *(f"{n} letters" for n in numbers["lengths"]), "left"]
        return [Table(f"Accuracy in % after {numbers['steps']} steps", columns, rows)]


def share_left(numbers: Numbers, kind: str) -> float:
    """The accuracy beyond the training length, relative to that at it."""
    # The longest of training, and one half longer.
    inside = numbers["lengths"].index(TRAINED)
    beyond = numbers["lengths"].index(LONGER)
    runs = numbers["accuracies"][kind]
    return mean([run[beyond] for run in runs]) / mean([run[inside] for run in runs])


def _test(task: TaskBatches, length: int, rows: int) -> Batch:
    """Inputs of exactly this length; which are in training too is too unlikely to matter."""
    rng = random.Random(length)
    # Seeded by the length: a test set does not depend on which others are made.
    letters = [" ".join(rng.choices(LETTERS, k=length)) for _ in range(rows)]
    return task.batch([(text, text) for text in letters])
