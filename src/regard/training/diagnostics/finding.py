"""Findings of the diagnostics: evidence, cause, the change to make, and how sure that is.

No torch here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

EVENT = "finding"  # of the lines in metrics.jsonl


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong. `check` is its name, the same in every version."""

    check: str
    evidence: str  # what was measured
    cause: str
    change: str  # what to do about it
    confidence: float  # probability that the cause is this one, from 0 to 1
    step: int | None = None  # where it was first seen

    def record(self, step: int) -> dict[str, Any]:
        """The line of metrics.jsonl."""
        return {"event": EVENT, **asdict(self), "step": step}

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Finding:
        return cls(**{name: record[name] for name in cls.__dataclass_fields__})

    def line(self) -> str:
        """The finding as one line of text."""
        return f"{self.check}: {self.cause} ({self.evidence}) → {self.change}"


# Tiers of causes: a finding explains those of later tiers, and stands above them. What a file or
# the wiring holds explains what happens in training, and not vice versa.
_TIERS: tuple[tuple[str, ...], ...] = (
    ("memory",),
    # stored weights
    ("nonfinite_weights", "zero_weights", "altered_weights", "unmoved_weights"),
    # wiring and data
    (
        "future_leak",
        "targets_not_shifted",
        "answers_in_input",
        "wrong_sign",
        "no_gradient",
        "padding_in_loss",
        "padding_attended",
        "swapped_sides",
        "misaligned_sides",
        "tokenizer_mismatch",
        "unknown_tokens",
        "identical_inputs",
        "cut_off_inputs",
        "dropped_examples",
        "majority_only",
        "untranslated_lines",
        "duplicate_examples",
        "conflicting_labels",
        "labels_unrelated",
        "label_scale",
        "split_mismatch",
        "test_in_train",
    ),
    # how training begins
    ("half_precision_overflow", "bad_initialization"),
    ("vanishing_gradients", "exploding_gradients"),
    # settings, by trials
    (
        "no_warmup",
        "no_clipping",
        "batch_too_large",
        "setting_out_of_range",
        "weight_decay_too_high",
        "dropout_too_high",
        "rate_too_high",
    ),
    # what becomes of a model
    ("dead_units", "saturated_attention", "uniform_attention"),
    # A low rate leaves a model as it began, so that it explains none of these.
    ("rate_too_low",),
    ("nonfinite",),
    ("order_unseen",),
    ("overfitting",),
    ("diverging_loss", "loss_spike", "plateau"),
)
_TIER = {check: number for number, checks in enumerate(_TIERS) for check in checks}


def ranked(findings: Iterable[Finding]) -> list[Finding]:
    """The findings, causes before the symptoms that they explain; each check once."""
    best: dict[str, Finding] = {}
    for finding in findings:
        earlier = best.get(finding.check)
        if earlier is None or finding.confidence > earlier.confidence:
            best[finding.check] = finding
    last = len(_TIERS)  # the tier of a check that this version does not know
    return sorted(
        best.values(), key=lambda finding: (_TIER.get(finding.check, last), -finding.confidence)
    )
