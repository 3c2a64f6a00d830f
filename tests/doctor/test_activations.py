"""Checks of a forward pass: they run where parameters are inputs of modules, and uniform
cross-attention is none where a translator still learns."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import regard
from regard.lab.doctor import activation_checks, examine
from regard.lab.doctor.activation_checks import AttentionSummary


def test_disentangled_attention_is_examined(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("The dog sees a cat.\nA bird sings in the tree.\n" * 40)
    settings = {
        "model": "deberta:tiny", "objective": "masked", "text": str(tmp_path / "text"),
        "steps": 2, "context": 16, "d_model": 16, "heads": 2, "layers": 1, "d_ff": 16,
        "batch_tokens": 128, "vocabulary": 300, "device": "cpu", "threads": 1, "samples": 0,
    }  # fmt: skip
    run = regard.train(settings, out=tmp_path / "run").folder
    assert examine(run, trial_seconds=0).problems == []


@pytest.mark.parametrize(
    ("attention", "better", "is_finding"),
    [
        ("decoder.0.cross", True, False),  # it has not learnt where to look yet
        ("decoder.0.cross", False, True),
        ("encoder.0.self", True, True),
    ],
)
def test_uniform_attention(
    attention: str, better: bool, is_finding: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = AttentionSummary(deviation=1e-6, second=0.1)
    began = AttentionSummary(deviation=0.1, second=0.1)
    monkeypatch.setattr(activation_checks, "_summaries", lambda run: {attention: now})
    monkeypatch.setattr(activation_checks, "_earlier_summaries", lambda run: {attention: began})
    losses = iter([2.0, 3.0] if better else [3.0, 2.0])
    run: Any = SimpleNamespace(
        weights={},
        earlier=SimpleNamespace(groups={"weights": {}}),
        loaded=lambda weights: nullcontext(),
        losses=lambda count: [torch.tensor([0.0, next(losses)])],
    )
    findings = list(activation_checks.attention_weights(run))
    assert [finding.check for finding in findings] == ["uniform_attention"] * is_finding
