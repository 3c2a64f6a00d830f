"""Label smoothing: perplexity, BLEU and calibration."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from regard.lab.study import training_run
from regard.lab.study.figure import Table, mean, mean_text
from regard.lab.study.greedy_decoding import bleu
from regard.lab.study.study import Effort, Numbers, Outcome, Progress, Study, Verdict
from regard.lab.study.training_run import NO_TARGET, Batch
from regard.look.drawing import Axis, BarChart, Bars, Figure

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
        jobs = [(seed, variant) for seed in effort.seeds for variant in VARIANTS]
        runs: dict[str, list[dict[str, float]]] = {variant: [] for variant in VARIANTS}
        for seed, variant in progress.over(jobs, lambda job: f"{job[1]}, seed {job[0]}"):
            runs[variant].append(_scores(seed, VARIANTS[variant], steps, effort))
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
        if not worse:
            return Verdict(Outcome.FAILS, reason)
        return Verdict(Outcome.HOLDS if better else Outcome.LIMITED, reason)

    def figures(self, numbers: Numbers) -> list[Figure]:
        titles = {"perplexity": "Perplexity", "bleu": "BLEU", "calibration": "Calibration error"}
        figures: list[Figure] = []
        for score, title in titles.items():
            values = [[run[score] for run in numbers["runs"][variant]] for variant in VARIANTS]
            bars = [Bars(title, values)]
            figures.append(
                BarChart(title, Axis(title.lower(), low=0.0), ["ε = 0", "ε = 0.1"], bars)
            )
        return figures

    def tables(self, numbers: Numbers) -> list[Table]:
        rows = []
        for variant, smoothing in VARIANTS.items():
            runs = numbers["runs"][variant]
            cells = [mean_text([run[score] for run in runs]) for score in SCORES]
            rows.append([f"ε = {smoothing:g}", *cells])
        columns = ["", "perplexity", "BLEU", "calibration error, %", "mean confidence, %"]
        return [Table("Held-out sentences", columns, rows)]


def _difference(numbers: Numbers, score: str) -> tuple[float, float]:
    """The mean change by smoothing, and the standard deviation of the paired changes."""
    pairs = zip(numbers["runs"]["smoothed"], numbers["runs"]["none"], strict=True)
    changes = torch.tensor([smoothed[score] - none[score] for smoothed, none in pairs])
    spread = float(changes.std()) if len(changes) > 1 else 0.0
    return mean(changes.tolist()), spread


def _scores(seed: int, smoothing: float, steps: int, effort: Effort) -> dict[str, float]:
    words = training_run.builtin_vocabulary()
    description = training_run.translator(len(words), 64, d_model=32, d_ff=128)
    model = training_run.build_seeded(description, seed)
    batches = training_run.builtin_pairs("train", 20_000, seed)
    training_run.train(model, batches, steps, smoothing=smoothing)
    # One batch, the same for all models.
    held_out = training_run.builtin_pairs("test", 500, seed=0, rows=effort.choose(60, 300))
    batch = next(held_out)
    # [B, T, V], with the true tokens before each position
    with torch.no_grad():
        probabilities = training_run.logits(model, batch).softmax(-1)
    nll = training_run.evaluate(model, [batch]).loss
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
