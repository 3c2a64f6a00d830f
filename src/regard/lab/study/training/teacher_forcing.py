"""Teacher forcing and exposure bias: errors of a model that reads its own output."""

from __future__ import annotations

from regard.lab.study import greedy_decoding, training_run
from regard.lab.study.figure import Table, mean, mean_text
from regard.lab.study.study import Effort, Numbers, Outcome, Progress, Study, Verdict
from regard.lab.study.training_run import END
from regard.look.drawing import Axis, Chart, Figure, Series

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
        runs = []
        for seed in progress.over(effort.seeds, lambda seed: f"seed {seed}"):
            runs.append(_accuracies(seed, steps, sentences=effort.choose(150, 500)))
        return {"positions": list(range(1, POSITIONS + 1)), "runs": runs}

    def verdict(self, numbers: Numbers) -> Verdict:
        # Thirds and not single positions: late ones are few and noisy.
        first = _gap(numbers, slice(0, POSITIONS // 3))
        last = _gap(numbers, slice(-(POSITIONS // 3), None))
        reason = (
            f"With its own output the model is right {first:.1f} points less often in the first "
            f"third of the positions, and {last:.1f} points in the last."
        )
        if last < 2:
            return Verdict(Outcome.FAILS, reason)
        return Verdict(Outcome.HOLDS if last > first else Outcome.LIMITED, reason)

    def figures(self, numbers: Numbers) -> list[Figure]:
        series = []
        for name, key in (("true tokens before", "forced"), ("own tokens before", "free")):
            runs = [run[key] for run in numbers["runs"]]
            series.append(Series.over_seeds(name, numbers["positions"], runs))
        y = Axis("right tokens, %", low=0.0, high=100.0)
        return [Chart("Accuracy along a translation", Axis("position"), y, series)]

    def tables(self, numbers: Numbers) -> list[Table]:
        rows = []
        for index, position in enumerate(numbers["positions"]):
            cells = [
                mean_text([r[key][index] for r in numbers["runs"]]) for key in ("forced", "free")
            ]
            rows.append([str(position), *cells])
        return [Table("Right tokens, %", ["position", "true before", "own before"], rows)]


def _gap(numbers: Numbers, part: slice) -> float:
    """By how many points teacher forcing is better, in a part of the positions."""
    gaps = []
    for run in numbers["runs"]:
        gaps.append(mean(run["forced"][part]) - mean(run["free"][part]))
    return mean(gaps)


def _accuracies(seed: int, steps: int, sentences: int) -> dict[str, list[float]]:
    words = training_run.builtin_vocabulary()
    model = training_run.build_seeded(
        training_run.translator(len(words), 64, d_model=32, d_ff=128), seed
    )
    training_run.train(model, training_run.builtin_pairs("train", 20_000, seed), steps)
    batch = next(training_run.builtin_pairs("test", 600, seed=0, rows=sentences))
    assert batch.source is not None
    model.eval()
    # [B][T] of ids: what the model would say after the true tokens
    forced = training_run.logits(model, batch).argmax(-1).tolist()
    free = greedy_decoding.translate(model, batch.source, limit=POSITIONS + 1)
    # By position: sentences differ in length, so later positions have fewer.
    right_forced: list[list[int]] = [[] for _ in range(POSITIONS)]
    right_free: list[list[int]] = [[] for _ in range(POSITIONS)]
    for row, targets in enumerate(batch.targets.tolist()):
        # A translation that has ended goes on with ends, which are wrong where words are due.
        generated = [*free[row], *[END] * (POSITIONS + 1)]
        for position, target in enumerate(targets[:POSITIONS]):
            if target == training_run.NO_TARGET:
                break
            right_forced[position].append(100 * (forced[row][position] == target))
            right_free[position].append(100 * (generated[position] == target))
    return {"forced": [mean(x) for x in right_forced], "free": [mean(x) for x in right_free]}
