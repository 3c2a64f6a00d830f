"""Numbers of the studies of training, and the outcomes that follow from them."""

from __future__ import annotations

from typing import Any

from regard.lab.study.language_models import BUDGETS
from regard.lab.study.memory import VARIANTS
from regard.lab.study.study import Numbers, Outcome

Case = tuple[Numbers, Outcome]


def warmup(warm: list[float], cold: list[float]) -> Numbers:
    rates = [0.001, 0.003, 0.01]
    losses = {}
    for name, values in (("with", warm), ("without", cold)):
        losses[name] = {
            str(rate): [value, value] for rate, value in zip(rates, values, strict=True)
        }
    return {"rates": rates, "losses": losses}


def label_smoothing(perplexity: float, bleu: float) -> Numbers:
    def run(perplexity: float, bleu: float) -> dict[str, float]:
        return {"perplexity": perplexity, "bleu": bleu, "calibration": 3.0, "confidence": 80.0}

    smoothed = [run(perplexity, bleu), run(perplexity + 0.1, bleu + 0.1)]
    return {"runs": {"none": [run(5.0, 30.0), run(5.0, 30.0)], "smoothed": smoothed}}


def teacher_forcing(early: float, late: float) -> Numbers:
    """Accuracies of 90 with the true tokens, and less by these gaps with its own."""
    free = [90 - early] * 6 + [90 - late] * 6
    run = {"forced": [90.0] * 12, "free": free}
    return {"positions": list(range(1, 13)), "runs": [run, run]}


def training_memory(**changes: dict[str, float]) -> Numbers:
    values: dict[str, tuple[float, float]] = {
        "float32": (100, 1.0),
        "bfloat16": (55, 0.5),
        "accumulation": (25, 1.1),
        "checkpointing": (30, 1.4),
    }
    run: dict[str, Any] = {}
    for name in VARIANTS:
        size, seconds = values[name]
        run[name] = {"bytes": size, "seconds": seconds, "difference": 1e-7}
        run[name] |= changes.get(name, {})
    return {"device": "cpu", "runs": [run]}


def depth(*losses: float) -> Numbers:
    depths = ["1", "2", "4", "8"]
    values = {d: [loss, loss + 0.001] for d, loss in zip(depths, losses, strict=True)}
    return {
        "widths": dict.fromkeys(depths, 32),
        "parameters": dict.fromkeys(depths, 50_000),
        "losses": values,
    }


def batch_size(
    at_examples: tuple[float, float], at_updates: tuple[float, float], seeds: int = 2
) -> Numbers:
    """Losses with the smallest and with the largest batches, of both budgets."""
    return {
        budget: {
            size: {"steps": 10, "rate": 0.003, "losses": [loss] * seeds}
            for size, loss in zip(("4", "16", "64"), (first, first, last), strict=True)
        }
        for budget, (first, last) in zip(BUDGETS, (at_examples, at_updates), strict=True)
    }


VERDICTS: dict[str, list[Case]] = {
    "batch_size": [
        (batch_size((2.0, 1.9), (2.0, 1.9)), Outcome.HOLDS),
        (batch_size((2.0, 2.2), (2.0, 1.9)), Outcome.LIMITED),
        (batch_size((2.0, 2.2), (2.0, 2.0)), Outcome.FAILS),
        (batch_size((2.0, 1.9), (2.0, 1.9), seeds=1), Outcome.UNDECIDED),
    ],
    "warmup": [
        (warmup([3.0, 2.8, 2.9], [3.0, 3.0, 4.0]), Outcome.HOLDS),
        (warmup([3.0, 2.8, 2.9], [3.0, 2.8, 4.0]), Outcome.LIMITED),
        (warmup([3.0, 2.8, 2.9], [3.0, 2.8, 2.9]), Outcome.FAILS),
    ],
    "label_smoothing": [
        (label_smoothing(6.0, 32.0), Outcome.HOLDS),
        (label_smoothing(6.0, 29.0), Outcome.LIMITED),
        (label_smoothing(4.0, 32.0), Outcome.FAILS),
    ],
    "teacher_forcing": [
        (teacher_forcing(1, 20), Outcome.HOLDS),
        (teacher_forcing(20, 10), Outcome.LIMITED),
        (teacher_forcing(0, 1), Outcome.FAILS),
    ],
    "training_memory": [
        (training_memory(), Outcome.HOLDS),
        (training_memory(bfloat16={"seconds": 1.5}), Outcome.LIMITED),
        (training_memory(accumulation={"difference": 0.1}), Outcome.FAILS),
        (training_memory(checkpointing={"bytes": 90}), Outcome.FAILS),
        (training_memory(bfloat16={"bytes": 90}), Outcome.FAILS),
    ],
    "depth": [
        (depth(3.0, 2.9, 2.8, 2.7), Outcome.HOLDS),
        (depth(3.0, 2.9, 2.8, 2.9), Outcome.LIMITED),
        (depth(2.7, 2.8, 2.9, 3.0), Outcome.FAILS),
    ],
}
