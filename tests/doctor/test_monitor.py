"""What training says of itself: once, in one line, and as notes in metrics.jsonl."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import regard
from doctor_bench import load
from regard.lab.doctor import examine
from regard.system.errors import DivergenceError
from regard.training.diagnostics.nonfinite import first_nonfinite
from regard.training.engine.loop import Loop

cases = load("doctor_cases")


def settings(folder: Path, **changes: Any) -> dict[str, Any]:
    values = cases.family_settings("gpt2", folder, random.Random(0))
    values |= {"tokenizer": "characters", "layers": 1, "steps": 24, "validate_every": 12}
    return values | {"save_every": 12, "log_every": 2, "context": 16} | changes


def notes(run: Path) -> list[dict[str, Any]]:
    records = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [record for record in records if record.get("event") == "finding"]


def test_a_leak_is_noted_before_the_first_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = settings(tmp_path)
    regard.train(values, objective=cases.Unshifted, out=tmp_path / "run")
    (note,) = [n for n in notes(tmp_path / "run") if n["check"] == "targets_not_shifted"]
    assert note["step"] == 0
    assert capsys.readouterr().err.count("targets_not_shifted") == 1
    # The doctor reads the note where it cannot have the class, and tests it where it can.
    for parts in ({}, {"objective": cases.Unshifted}):
        report = examine(tmp_path / "run", trial_seconds=0, **parts)
        assert report.findings[0].check == "targets_not_shifted"


def test_a_healthy_run_says_nothing(tmp_path: Path) -> None:
    regard.train(settings(tmp_path), out=tmp_path / "run")
    assert notes(tmp_path / "run") == []
    report = examine(tmp_path / "run", trial_seconds=0)
    assert report.is_healthy
    assert report.problems == []


def test_a_damaged_weight_is_named_with_its_step(tmp_path: Path) -> None:
    def on_step(loop: Loop) -> None:
        if loop.progress.step == 13:
            with torch.no_grad():
                loop.model.stack.blocks[0].feedforward.inner.weight[0, 0] = torch.nan

    with pytest.raises(DivergenceError):
        regard.train(settings(tmp_path), out=tmp_path / "run", on_step=on_step)
    finding = examine(tmp_path / "run", trial_seconds=0).findings[0]
    assert finding.check == "nonfinite_weights"
    assert finding.step == 14
    assert "stack.blocks.0.feedforward.inner.weight" in finding.evidence


class Overflowing(nn.Module):
    """exp of the second layer overflows."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        masked = self.first(x).masked_fill(x < 0, -torch.inf).softmax(dim=-1)
        return (self.second(masked) * self.scale).exp()


def test_the_first_module_that_is_not_finite() -> None:
    def place(model: Overflowing) -> str | None:
        def loss(tensors: Any) -> tuple[Tensor, Tensor]:
            total = model(tensors["x"]).sum()
            return total, total.detach()

        return first_nonfinite(model, loss, {"x": torch.rand(3, 4) + 0.1})

    assert place(Overflowing(1.0)) is None  # −∞ in a mask is no trouble
    model = Overflowing(1e6)
    with torch.no_grad():
        model.second.bias.fill_(1.0)
    assert place(model) == "Overflowing (exp)"
    with torch.no_grad():
        model.first.weight[0, 0] = torch.inf
    assert place(model) == "the weights first.weight"
