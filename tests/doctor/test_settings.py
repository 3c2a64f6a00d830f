"""Checks of settings before and after a run: learning rates outside the usual range, memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from regard.lab.doctor import examine
from regard.lab.doctor.run_evidence import RunEvidence, open_recipe
from regard.lab.doctor.settings_checks import check_ranges
from regard.lab.doctor.trials import HIGH_STEP, LOW_STEP, _margin, _unusual_rates
from regard.lab.plan.planner import HEADROOM, find_device, make_plan
from regard.lab.plan.subject import Request, of_recipe
from regard.system import memory
from regard.system.checkpoint import Checkpoints, Retention
from regard.training.recipe import loading
from regard.training.setup import Parts


def write_recipe(folder: Path, rate: float = 1e-3) -> Path:
    text = folder / "text.txt"
    text.write_text("".join(f"line {i} of some text\n" for i in range(400)))
    path = folder / "mine.toml"
    path.write_text(
        f'[data]\ntext = "{text}"\ncontext = 16\n'
        '[tokens]\ntokenizer = "characters"\n'
        '[model]\nmodel = "gpt2:tiny"\nlayers = 1\nd_model = 16\nheads = 2\n'
        f'[train]\nsteps = 50\nwarmup_steps = 5\nschedule = "constant"\nlearning_rate = {rate}\n'
        # Few rows: the planner traces every smaller batch that might fit.
        'device = "cpu"\nbatch_tokens = 64\ngradient_checkpointing = true\n'
    )
    return path


@pytest.mark.parametrize(
    ("rate", "check"), [(0.1, "rate_too_high"), (5e-4, None), (1e-6, "rate_too_low")]
)
def test_a_rate_is_judged_by_the_size_of_the_weights(
    rate: float, check: str | None, tmp_path: Path
) -> None:
    recipe, name = loading.choose(str(write_recipe(tmp_path, rate)), {})
    with open_recipe(recipe, name, Parts()) as run:
        # Matrices of GPT begin with a deviation of 0.02.
        assert run.relative_step == pytest.approx(rate / 0.02, rel=0.1)
        treatments = list(_unusual_rates(run))
        assert [each.check for each in treatments] == ([] if check is None else [check])
        for treatment in treatments:
            # The next decade towards the usual range, not past it.
            share = run.relative_step * treatment.train["learning_rate"] / rate
            assert share > HIGH_STEP / 10 if check == "rate_too_high" else share < 10 * LOW_STEP
            # No run yet, so that it is not weak: the gain has to be a clear one.
            assert _margin(run, treatment) >= 0.1


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, None),
        ({"betas": (0.9, 0.1)}, "β₂"),
        ({"betas": (0.9999, 0.98)}, "β₁"),
        ({"weight_decay": 20.0, "optimizer": "adamw"}, "weight_decay"),
    ],
)
def test_settings_far_off(changes: dict[str, Any], expected: str | None, tmp_path: Path) -> None:
    recipe, name = loading.choose(str(write_recipe(tmp_path)), changes)
    with open_recipe(recipe, name, Parts()) as run:
        found = [finding.evidence.split()[0] for finding in check_ranges(run)]
    assert found == ([] if expected is None else [expected])


@pytest.mark.parametrize("tokens", [16, 256])
def test_few_labels_an_update_in_a_run_that_learns_nothing(
    tokens: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RunEvidence, "is_weak", True)
    changes = {"objective": "classify", "batch_tokens": tokens, "model": "bert:tiny"}
    reviews = tmp_path / "reviews.tsv"
    reviews.write_text("".join(f"word {i}\t{i % 2}\n" for i in range(400)))
    recipe, name = loading.choose(str(write_recipe(tmp_path)), changes | {"text": str(reviews)})
    with open_recipe(recipe, name, Parts()) as run:
        found = [finding.evidence.split()[0] for finding in check_ranges(run)]
    assert ("labels_per_update" in found) == (tokens == 16)


def test_the_planner_says_when_memory_will_run_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_recipe(tmp_path)
    recipe, name = loading.choose(str(path), {})
    plan = make_plan(of_recipe(recipe, name, Request()), find_device("cpu"), calibrate=False)
    enough = int(plan.needed / HEADROOM) + 1
    monkeypatch.setattr(memory, "available", lambda: enough)
    assert "memory" not in {finding.check for finding in examine(path).findings}
    monkeypatch.setattr(memory, "available", lambda: enough // 2)
    report = examine(path)
    assert report.findings[0].check == "memory"
    assert memory.amount(plan.needed) in report.findings[0].evidence
    # The model itself does not fit: nothing can be assembled, and the finding is still there.
    monkeypatch.setattr(memory, "available", lambda: 1000)
    report = examine(path)
    assert [finding.check for finding in report.findings] == ["memory"]
    assert report.problems


def test_an_earlier_checkpoint_is_intact_and_earlier(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, Retention(3))
    for step in (10, 20, 30):
        checkpoints.save(step, {"weights": {}}, {"step": step})
    saved = checkpoints.before(30)
    assert saved is not None
    assert saved.step == 10
    (tmp_path / "step-000000010" / "progress.json").write_text("{}")  # damaged
    saved = checkpoints.before(30)
    assert saved is not None
    assert saved.step == 20
    assert checkpoints.before(10) is None
