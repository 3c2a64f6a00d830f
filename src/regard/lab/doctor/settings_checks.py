"""Settings far from the range in which runs of their kind learn, by one table."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from regard import spec
from regard.lab.doctor.run_evidence import RunEvidence
from regard.training.diagnostics.finding import Finding
from regard.training.recipe.schema import SECTIONS

INFINITE = math.inf


@dataclass(frozen=True)
class Range:
    """Where a setting usually is, and beyond which no run is expected to learn."""

    usual: tuple[float, float]
    possible: tuple[float, float]
    advice: float  # the value to begin with
    check: str = "setting_out_of_range"
    change: str = ""  # where no setting has that name


# 0.1 is usual, 0.3 in small models, 0.6 and 0.7 in graph networks.
_DROPOUT = Range((0.0, 0.75), (0.0, 0.85), 0.1, "dropout_too_high")
RANGES = {
    "dropout": _DROPOUT,
    "drop_path": Range((0.0, 0.6), (0.0, 0.85), 0.1, "dropout_too_high"),
    "lora_dropout": _DROPOUT,
    "weight_decay": Range((0.0, 0.3), (0.0, 5.0), 0.01, "weight_decay_too_high"),
    "label_smoothing": Range((0.0, 0.3), (0.0, 0.7), 0.1),
    "adam_eps": Range((0.0, 1e-4), (0.0, 0.1), 1e-8),
    "max_grad_norm": Range((0.01, INFINITE), (1e-5, INFINITE), 1.0),
    "r_drop": Range((0.0, 10.0), (0.0, 100.0), 1.0),
    "layer_decay": Range((0.5, 1.0), (0.05, 1.0), 0.9),
    "temperature": Range((0.5, 20.0), (0.05, 200.0), 2.0),
    "distillation_weight": Range((0.0, 1.0), (0.0, 1.0), 0.5),
    "noise_snr": Range((0.0, INFINITE), (-20.0, INFINITE), 10.0),
    "time_mask_width": Range((0.0, 0.5), (0.0, 0.8), 0.05),
    "frequency_mask_width": Range((0.0, 0.5), (0.0, 0.8), 0.1),
    "span_length": Range((1.0, 20.0), (1.0, 200.0), 3.0),
    "β₁": Range((0.0, 0.98), (0.0, 0.9995), 0.9),
    "β₂": Range((0.5, 0.99999), (0.3, 1.0), 0.98),
    "labels_per_update": Range(
        (8.0, INFINITE), (0.0, INFINITE), 64.0, change="raise batch_tokens or accumulate"
    ),
    "warmup_ratio": Range((0.0, 0.8), (0.0, INFINITE), 0.1),
}
# By what is masked: words (Wettig et al. 2023), patches (He et al. 2022), spans of sound.
MASK_RATIOS = {
    "masked_images": Range((0.2, 0.95), (0.02, 0.99), 0.75),
    "masked_clips": Range((0.5, 0.97), (0.02, 0.99), 0.9),
    "speech_contrastive": Range((0.2, 0.9), (0.02, 0.99), 0.65),
}
WORDS = Range((0.05, 0.6), (0.005, 0.9), 0.15)


def check_ranges(run: RunEvidence) -> Iterator[Finding]:
    """Values outside of what is usual, in a run that has learnt little, or far outside."""
    for name, value in _settings(run).items():
        limits = _range(run, name)
        if limits is None:
            continue
        is_far = not limits.possible[0] <= value <= limits.possible[1]
        is_unusual = not limits.usual[0] <= value <= limits.usual[1]
        if is_far or (is_unusual and run.is_weak):
            low, high = limits.usual
            usual = f"{low:g} or more"
            if high < INFINITE:
                usual = f"{low:g} to {high:g}"
            yield Finding(
                limits.check,
                f"{name} is {value:g}; {usual} is usual",
                f"{name} of {value:g} is far from the range in which such runs learn",
                limits.change or f"set {name} = {limits.advice:g}",
                0.9 if is_far and run.is_weak else 0.75,
            )


def _range(run: RunEvidence, name: str) -> Range | None:
    if name == "mask_ratio":
        return MASK_RATIOS.get(run.recipe.objective, WORDS)
    return RANGES.get(name, _DROPOUT if "dropout" in name else None)


def _settings(run: RunEvidence) -> dict[str, float]:
    """The numbers of the recipe that have an effect, and the dropout of the model."""
    recipe = run.recipe
    sections = {name: getattr(recipe, name) for name in SECTIONS}
    values = {
        key: float(value)
        for section in sections.values()
        for key, value in section.model_dump().items()
        if isinstance(value, int | float)
    }
    train = recipe.train
    values["β₁"], values["β₂"] = train.betas
    values["warmup_ratio"] = train.warmup_steps / train.steps
    if train.max_grad_norm == 0:
        del values["max_grad_norm"]  # off
    if train.optimizer == "adam":
        # L2, whose size is relative to the gradient's.
        del values["weight_decay"]
    if run.objective is not None and run.batches:
        labels = sum(batch.tokens for batch in run.batches) / len(run.batches)
        values["labels_per_update"] = labels * train.accumulate
        values |= _dropouts(spec.to_dict(run.objective.trained_model.spec))
    return values


def _dropouts(part: Any) -> dict[str, float]:
    """The largest rate of each name with "dropout" in it, anywhere in a spec."""
    largest: dict[str, float] = {}
    parts = part.items() if isinstance(part, Mapping) else enumerate(part)
    for name, value in parts:
        rates: dict[str, float] = {}
        if isinstance(value, Mapping | list | tuple):
            rates = _dropouts(value)
        elif "dropout" in str(name) and isinstance(value, int | float):
            rates = {str(name): float(value)}
        for key, rate in rates.items():
            largest[key] = max(rate, largest.get(key, 0.0))
    return largest
