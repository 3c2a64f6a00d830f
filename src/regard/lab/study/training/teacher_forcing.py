"""Teacher forcing and exposure bias: errors of a model that reads its own output."""

from __future__ import annotations

from regard.lab.study.figure import Table, column, line, mean, mean_text
from regard.lab.study.study import Effort, Numbers, Progress, Study, Verdict, judge
from regard.lab.study.training_run import (
    END,
    NO_TARGET,
    builtin_pairs,
    builtin_vocabulary,
    logits,
    trained,
    translate,
    translator,
)
from regard.look.drawing import Axis, Chart, Figure

POSITIONS = 12  # of a translation; longer ones are few


class TeacherForcing(Study):
    name = "teacher_forcing"
    claim = (
        "A model that was trained with the true tokens before each position does worse when it "
        "reads its own output, and its errors accumulate along the text (exposure bias)."
    )
    source = "Bengio et al. 2015, Section 1; Ranzato et al. 2016, Section 1"
    measurement = (
        "A small translator of the built-in language, stopped while it still makes mistakes: the "
        f"share of right tokens at each of the first {POSITIONS} positions of held-out sentences, "
        "with the true tokens before them and with its own (greedy decoding)."
    )
    rule = (
        "Holds if accuracy with its own output is lower in the last third of the positions by at "
        "least 2 points, and by more than in the first third; within limits if it is lower but the "
        "gap does not grow."
    )
    quick_seeds = 1
    full_seeds = 3

    def measure(self, effort: Effort, progress: Progress) -> Numbers:
        # Not until it is perfect: a model without errors has none to accumulate.
        steps = effort.choose(600, 1500)
        sentences = effort.choose(150, 500)
        runs = effort.each_seed(progress, lambda seed: _accuracies(seed, steps, sentences))
        return {"positions": list(range(1, POSITIONS + 1)), "runs": runs}

    def verdict(self, numbers: Numbers) -> Verdict:
        # Thirds and not single positions: late ones are few and noisy.
        first = _gap(numbers, slice(0, POSITIONS // 3))
        last = _gap(numbers, slice(-(POSITIONS // 3), None))
        reason = (
            f"With its own output the model is right {first:.1f} points less often in the first "
            f"third of the positions, and {last:.1f} points in the last."
        )
        return judge(last > first, last >= 2, reason)

    def figures(self, numbers: Numbers) -> list[Figure]:
        series = [
            line("true tokens before", numbers["positions"], numbers["runs"], "forced"),
            line("own tokens before", numbers["positions"], numbers["runs"], "free"),
        ]
        y = Axis("right tokens, %", low=0.0, high=100.0)
        return [Chart("Accuracy along a translation", Axis("position"), y, series)]

    def tables(self, numbers: Numbers) -> list[Table]:
        columns = [map(str, numbers["positions"])]
        for key in ("forced", "free"):
            columns.append(map(mean_text, zip(*column(numbers["runs"], key), strict=True)))
        rows = list(zip(*columns, strict=True))
        return [Table("Right tokens, %", ["position", "true before", "own before"], rows)]


def _gap(numbers: Numbers, part: slice) -> float:
    """By how many points teacher forcing is better, in a part of the positions."""
    return mean([mean(run["forced"][part]) - mean(run["free"][part]) for run in numbers["runs"]])


def _accuracies(seed: int, steps: int, sentences: int) -> dict[str, list[float]]:
    words = builtin_vocabulary()
    description = translator(len(words), 64, d_model=32, d_ff=128)
    model = trained(description, seed, builtin_pairs("train", 20_000, seed), steps)
    batch = next(builtin_pairs("test", 600, seed=0, rows=sentences))
    assert batch.source is not None
    # [B][T] of ids: what the model would say after the true tokens
    forced = logits(model, batch).argmax(-1).tolist()
    free = translate(model, batch.source, limit=POSITIONS + 1)
    # By position: sentences differ in length, so later positions have fewer.
    right_forced: list[list[int]] = [[] for _ in range(POSITIONS)]
    right_free: list[list[int]] = [[] for _ in range(POSITIONS)]
    for row, targets in enumerate(batch.targets.tolist()):
        # A translation that has ended goes on with ends, which are wrong where words are due.
        generated = [*free[row], *[END] * (POSITIONS + 1)]
        for position, target in enumerate(targets[:POSITIONS]):
            if target == NO_TARGET:
                break
            right_forced[position].append(100 * (forced[row][position] == target))
            right_free[position].append(100 * (generated[position] == target))
    return {"forced": [mean(x) for x in right_forced], "free": [mean(x) for x in right_free]}
