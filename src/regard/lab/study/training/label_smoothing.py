"""Label smoothing: perplexity, BLEU and calibration."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from regard.lab.study.figure import Table, bars, cells, column, deviation, mean
from regard.lab.study.study import Effort, Numbers, Progress, Study, Verdict, judge
from regard.lab.study.training_run import (
    NO_TARGET,
    Batch,
    bleu,
    builtin_pairs,
    builtin_vocabulary,
    evaluate,
    logits,
    trained,
    translator,
)
from regard.look.drawing import Axis, BarChart, Figure

SMOOTHING = 0.1  # ε_ls of the paper
BINS = 10  # of the expected calibration error
VARIANTS = {"none": 0.0, "smoothed": SMOOTHING}
SCORES = ("perplexity", "bleu", "calibration", "confidence")


class LabelSmoothing(Study):
    name = "label_smoothing"
    claim = (
        "Label smoothing with ε = 0.1 hurts perplexity, as the model learns to be more unsure, but "
        "improves accuracy and BLEU."
    )
    source = "Vaswani et al. 2017, Section 5.4; Müller et al. 2019 on calibration"
    measurement = (
        "Small translators of the built-in language, trained with ε = 0 and ε = 0.1 (targets that "
        "sum to one: 1 − ε + ε/V for the true token): perplexity, BLEU of greedy translations, and "
        f"expected calibration error ({BINS} bins) on held-out sentences."
    )
    rule = (
        "Holds if smoothing raises the perplexity and raises BLEU, each by more than the standard "
        "deviation over the seeds; within limits if only the perplexity rises. A calibration error "
        "that shrinks is reported, not required."
    )
    quick_seeds = 1
    full_seeds = 3

    def measure(self, effort: Effort, progress: Progress) -> Numbers:
        steps = effort.choose(400, 2000)
        runs = effort.each(
            progress,
            VARIANTS,
            lambda variant, seed: _scores(seed, VARIANTS[variant], steps, effort),
        )
        return {"runs": runs}

    def verdict(self, numbers: Numbers) -> Verdict:
        change = {score: _difference(numbers, score) for score in SCORES}
        # A change counts if it is larger than its own spread over the seeds.
        worse = change["perplexity"][0] > change["perplexity"][1]
        better = change["bleu"][0] > change["bleu"][1]
        reason = (
            f"Smoothing changes the perplexity by {change['perplexity'][0]:+.2f}, BLEU by "
            f"{change['bleu'][0]:+.1f} and the calibration error by "
            f"{change['calibration'][0]:+.1f} points."
        )
        return judge(better, worse, reason)

    def figures(self, numbers: Numbers) -> list[Figure]:
        titles = {"perplexity": "Perplexity", "bleu": "BLEU", "calibration": "Calibration error"}
        return [
            BarChart(
                title,
                Axis(title.lower(), low=0.0),
                ["ε = 0", "ε = 0.1"],
                [bars(numbers["runs"], score, title)],
            )
            for score, title in titles.items()
        ]

    def tables(self, numbers: Numbers) -> list[Table]:
        rows = [
            [f"ε = {smoothing:g}", *cells(numbers["runs"][variant], SCORES)]
            for variant, smoothing in VARIANTS.items()
        ]
        columns = ["", "perplexity", "BLEU", "calibration error, %", "mean confidence, %"]
        return [Table("Held-out sentences", columns, rows)]


def _difference(numbers: Numbers, score: str) -> tuple[float, float]:
    """The mean change by smoothing, and the standard deviation of the paired changes."""
    runs = numbers["runs"]
    pairs = zip(column(runs["smoothed"], score), column(runs["none"], score), strict=True)
    changes = [smoothed - none for smoothed, none in pairs]
    return mean(changes), deviation(changes)


def _scores(seed: int, smoothing: float, steps: int, effort: Effort) -> dict[str, float]:
    words = builtin_vocabulary()
    description = translator(len(words), 64, d_model=32, d_ff=128)
    batches = builtin_pairs("train", 20_000, seed)
    model = trained(description, seed, batches, steps, smoothing=smoothing)
    # One batch, the same for all models.
    held_out = builtin_pairs("test", 500, seed=0, rows=effort.choose(60, 300))
    batch = next(held_out)
    # [B, T, V], with the true tokens before each position
    with torch.no_grad():
        probabilities = logits(model, batch).softmax(-1)
    nll = evaluate(model, [batch]).loss
    confidence, correct = _confidence(probabilities, batch)
    return {
        "perplexity": math.exp(nll),
        "bleu": bleu(model, batch, words),
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
