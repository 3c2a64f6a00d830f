"""Learned against sinusoidal positions in quality."""

from __future__ import annotations

from itertools import islice

from regard.data.generated.algorithmic_tasks import LETTERS, Reversing
from regard.lab.study.figure import Table, bars, cells, column, deviation, mean, mean_text
from regard.lab.study.study import Effort, Numbers, Progress, Study, Verdict, judge
from regard.lab.study.training_run import (
    TaskBatches,
    Variants,
    builtin_vocabulary,
    compare,
    compare_on_english,
    language_model,
)
from regard.look.drawing import Axis, BarChart, Figure

# `none` shows how much positions matter for the task at all.
KINDS = ("sinusoidal", "learned", "none")
LENGTH = 32  # tokens; no input is longer


class LearnedPositions(Study):
    name = "learned_positions"
    claim = "Learned positional embeddings and sinusoids give nearly identical results."
    source = "Vaswani et al. 2017, Section 3.5 and Table 3 (E): 25.7 and 25.8 BLEU"
    measurement = (
        "Language models of two layers with sinusoidal, learned and no positions: on the built-in "
        "English, and on reversing letters, where positions are all that matters. Loss on test "
        "data within the training length."
    )
    rule = (
        "The two kinds are alike on a task if their losses differ by less than 2 % or by less than "
        "the standard deviations of both. Holds if they are alike on both tasks, within limits on "
        "one; else it does not hold."
    )
    full_seeds = 4

    def measure(self, effort: Effort, progress: Progress) -> Numbers:
        # Each task is half of the progress.
        first = Progress(lambda share, text: progress(share / 2, text))
        second = Progress(lambda share, text: progress(0.5 + share / 2, text))
        words = len(builtin_vocabulary())
        # Enough for the loss to fall well below that of word frequencies.
        english = compare_on_english(_variants(words), effort.choose(100, 600), effort, first)
        # Which letter comes next follows from positions alone.
        task = TaskBatches(Reversing(max_length=4), LETTERS)
        reversing = compare(
            _variants(len(task.vocabulary)),
            lambda seed: task.stream("train", seed),
            list(islice(task.stream("test", 0), effort.choose(4, 16))),
            effort.choose(130, 400),
            effort,
            second,
        )
        return {"runs": {"English": english, "reversing": reversing}}

    def verdict(self, numbers: Numbers) -> Verdict:
        alike = []
        parts = []
        for task, runs in numbers["runs"].items():
            fixed = column(runs["sinusoidal"], "loss")
            learned = column(runs["learned"], "loss")
            # Alike: within the noise, or too near to matter.
            difference = abs(mean(fixed) - mean(learned))
            noise = deviation(fixed) + deviation(learned)
            alike.append(difference < 0.02 * mean(fixed) or difference < noise)
            parts.append(
                f"{task}: loss {mean_text(fixed)} sinusoidal, {mean_text(learned)} learned"
            )
        # By the number of tasks on which they are alike.
        return judge(all(alike), any(alike), "; ".join(parts) + ".")

    def figures(self, numbers: Numbers) -> list[Figure]:
        return [
            BarChart(
                f"Loss on {task}",
                Axis("test loss, nats a token"),
                list(runs),
                [bars(runs, "loss")],
            )
            for task, runs in numbers["runs"].items()
        ]

    def tables(self, numbers: Numbers) -> list[Table]:
        rows = [
            [task, kind, *cells(scores, ["loss", "accuracy"])]
            for task, runs in numbers["runs"].items()
            for kind, scores in runs.items()
        ]
        columns = ["task", "positions", "loss", "accuracy, %"]
        return [Table("Mean ± standard deviation over the seeds", columns, rows)]


def _variants(vocabulary: int) -> Variants:
    return {kind: language_model(vocabulary, LENGTH, position=kind) for kind in KINDS}
