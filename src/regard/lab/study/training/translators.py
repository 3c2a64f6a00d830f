"""Training translators of the built-in language: smoothed targets, and true tokens before each."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from regard.lab.study.figure import (
    Shown,
    Table,
    bars,
    cells,
    column,
    curve_table,
    deviation,
    line,
    mean,
)
from regard.lab.study.study import Effort, Numbers, Study, Verdict, judge
from regard.lab.study.training_run import (
    END,
    NO_TARGET,
    Batch,
    bleu,
    builtin_pairs,
    builtin_vocabulary,
    evaluate,
    logits,
    trained,
    translate,
    translator,
)
from regard.look.drawing import Axis, BarChart, Chart

BINS = 10  # of the expected calibration error
VARIANTS = {"none": 0.0, "smoothed": 0.1}  # ε_ls of the paper
SCORES = {
    "perplexity": "perplexity",
    "bleu": "BLEU",
    "calibration": "calibration error, %",
    "confidence": "mean confidence, %",
}


class LabelSmoothing(Study):
    """Label smoothing with ε = 0.1 hurts perplexity, as the model learns to be more unsure, but
    improves accuracy and BLEU.

    Small translators of the built-in language, trained with ε = 0 and ε = 0.1 (targets that sum to
    one: 1 − ε + ε/V for the true token): perplexity, BLEU of greedy translations, and expected
    calibration error ({BINS} bins) on held-out sentences.
    """

    name = "label_smoothing"
    source = "Vaswani et al. 2017, Section 5.4; Müller et al. 2019 on calibration"

    def measure(self, effort: Effort) -> Numbers:
        steps = effort.choose(400, 2000)
        rows = effort.choose(60, 300)
        return {
            "runs": effort.each(
                VARIANTS, lambda variant, seed: _scores(seed, VARIANTS[variant], steps, rows)
            )
        }

    def verdict(self, numbers: Numbers) -> Verdict:
        """Holds if smoothing raises the perplexity and raises BLEU, each by more than the standard
        deviation over the seeds; within limits if only the perplexity rises. A calibration error
        that shrinks is reported, not required."""
        change = {score: _changes(numbers, score) for score in SCORES}
        by = {score: mean(values) for score, values in change.items()}
        # A change counts if it is larger than its own spread over the seeds.
        counts = {score: by[score] > deviation(values) for score, values in change.items()}
        reason = (
            f"Smoothing changes the perplexity by {by['perplexity']:+.2f}, BLEU by "
            f"{by['bleu']:+.1f} and the calibration error by {by['calibration']:+.1f} points."
        )
        return judge(counts["bleu"], counts["perplexity"], reason)

    def show(self, numbers: Numbers) -> list[Shown]:
        runs = numbers["runs"]
        names = [f"ε = {smoothing:g}" for smoothing in VARIANTS.values()]
        titles = {"perplexity": "Perplexity", "bleu": "BLEU", "calibration": "Calibration error"}
        rows = [
            [name, *cells(runs[variant], SCORES)]
            for name, variant in zip(names, VARIANTS, strict=True)
        ]
        return [
            *(
                BarChart(title, Axis(title.lower(), low=0.0), names, [bars(runs, score, title)])
                for score, title in titles.items()
            ),
            Table("Held-out sentences", ["", *SCORES.values()], rows),
        ]


def _changes(numbers: Numbers, score: str) -> list[float]:
    """The change by smoothing with each seed."""
    none, smoothed = (column(numbers["runs"][variant], score) for variant in VARIANTS)
    return [after - before for before, after in zip(none, smoothed, strict=True)]


def _translator(seed: int, steps: int, smoothing: float = 0.0) -> torch.nn.Module:
    description = translator(len(builtin_vocabulary()), 64, d_model=32, d_ff=128)
    batches = builtin_pairs("train", 20_000, seed)
    model: torch.nn.Module = trained(description, seed, batches, steps, smoothing=smoothing)
    return model


def _scores(seed: int, smoothing: float, steps: int, rows: int) -> dict[str, float]:
    model = _translator(seed, steps, smoothing)
    # One batch, the same for all models.
    batch = next(builtin_pairs("test", 500, seed=0, rows=rows))
    # [B, T, V], with the true tokens before each position
    with torch.no_grad():
        probabilities = logits(model, batch).softmax(-1)
    confidence, correct = _confidence(probabilities, batch)
    return {
        "perplexity": math.exp(evaluate(model, [batch]).loss),
        "bleu": bleu(model, batch, builtin_vocabulary()),
        "calibration": 100 * calibration_error(confidence, correct),
        "confidence": 100 * float(confidence.mean()),
    }


def _confidence(probabilities: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """The probability of the most probable token, and whether it is the true one."""
    has_target = batch.targets != NO_TARGET
    best, chosen = probabilities[has_target].max(-1)
    return best, (chosen == batch.targets[has_target]).float()


def calibration_error(confidence: Tensor, correct: Tensor) -> float:
    """Expected calibration error (Guo et al. 2017): |confidence − accuracy|, weighed by bin."""
    # A confidence of 1 belongs into the last bin.
    bins = (confidence * BINS).long().clamp_max(BINS - 1)
    weights = functional.one_hot(bins, BINS).float()  # [tokens, BINS]
    # Σ over bins of |Σ (confidence − correctness)|: each bin weighs by its tokens.
    gaps = (weights.mT @ (confidence - correct)).abs()
    return float(gaps.sum() / len(confidence))


# ------------------------------------------------------------------ teacher forcing

POSITIONS = 12  # of a translation; longer ones are few


class TeacherForcing(Study):
    """A model that was trained with the true tokens before each position does worse when it reads
    its own output, and its errors accumulate along the text (exposure bias).

    A small translator of the built-in language, stopped while it still makes mistakes: the share of
    right tokens at each of the first {POSITIONS} positions of held-out sentences, with the true
    tokens before them and with its own (greedy decoding).
    """

    name = "teacher_forcing"
    source = "Bengio et al. 2015, Section 1; Ranzato et al. 2016, Section 1"

    def measure(self, effort: Effort) -> Numbers:
        # Not until it is perfect: a model without errors has none to accumulate.
        steps = effort.choose(600, 1500)
        sentences = effort.choose(150, 500)
        runs = effort.each_seed(lambda seed: _accuracies(seed, steps, sentences))
        return {"positions": list(range(1, POSITIONS + 1)), "runs": runs}

    def verdict(self, numbers: Numbers) -> Verdict:
        """Holds if accuracy with its own output is lower in the last third of the positions by at
        least 2 points, and by more than in the first third; within limits if it is lower but the
        gap does not grow."""
        # Thirds and not single positions: late ones are few and noisy.
        first, last = (
            mean(mean(run["forced"][part]) - mean(run["free"][part]) for run in numbers["runs"])
            for part in (slice(0, POSITIONS // 3), slice(-(POSITIONS // 3), None))
        )
        reason = (
            f"With its own output the model is right {first:.1f} points less often in the first "
            f"third of the positions, and {last:.1f} points in the last."
        )
        return judge(last > first, last >= 2, reason)

    def show(self, numbers: Numbers) -> list[Shown]:
        positions = numbers["positions"]
        runs = numbers["runs"]
        names = {"forced": "true tokens before", "free": "own tokens before"}
        y = Axis("right tokens, %", low=0.0, high=100.0)
        return [
            Chart(
                "Accuracy along a translation",
                Axis("position"),
                y,
                [line(name, positions, runs, key) for key, name in names.items()],
            ),
            curve_table(
                "Right tokens, %",
                "position",
                map(str, positions),
                {name: column(runs, key) for key, name in names.items()},
            ),
        ]


def _accuracies(seed: int, steps: int, sentences: int) -> dict[str, list[float]]:
    model = _translator(seed, steps)
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
