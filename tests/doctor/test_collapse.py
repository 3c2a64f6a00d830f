"""A collapsed model: which cause the doctor names before the symptom."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

from regard.lab.doctor.trials import check_collapse
from regard.training.diagnostics.finding import Finding, ranked

SATURATED = Finding("saturated_attention", "all heads are one-hot", "collapsed", "lower it", 0.85)


def run(relative_step: float, best_loss: float, residual: str = "pre") -> Any:
    """The evidence of a run of eight layers, with 3 nats without learning."""
    layers = nn.ModuleDict({"blocks": nn.ModuleList(nn.Linear(2, 2) for _ in range(8))})
    return SimpleNamespace(
        is_weak=best_loss > 2.9,
        reference=3.0,
        relative_step=relative_step,
        peak_rate=0.1,
        log=SimpleNamespace(best_loss=lambda: best_loss),
        objective=SimpleNamespace(model=layers),
        recipe=SimpleNamespace(model=SimpleNamespace(residual=residual), is_finetuning=False),
    )


@pytest.mark.parametrize(
    ("evidence", "first"),
    [
        (run(0.15, 2.99), "rate_too_high"),  # never learnt, at an unusual rate
        (run(18.0, 1.0), "rate_too_high"),  # learnt something; no weights outlive such steps
        (run(0.15, 1.0), "saturated_attention"),  # learnt, at a rate that may be right
        (run(0.01, 2.99), "saturated_attention"),  # never learnt, at a usual rate
        (run(0.15, 2.99, residual="none"), "vanishing_gradients"),
        (run(0.01, 2.99, residual="none"), "vanishing_gradients"),
        (run(18.0, 2.99, residual="none"), "rate_too_high"),
    ],
)
def test_the_cause_stands_before_the_symptom(evidence: Any, first: str) -> None:
    findings = ranked([SATURATED, *check_collapse(evidence, [SATURATED])])
    assert findings[0].check == first
    assert list(check_collapse(evidence, [])) == []  # without a symptom nothing is said
