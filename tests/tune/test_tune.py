"""`regard tune`: successive halving, resumed exactly, and a recipe that trains."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from regard.lab.measure.budget import Budget
from regard.lab.tune import tuning
from regard.lab.tune.settings import Sizes, stages
from regard.lab.tune.successive_halving import Stage, cost, longest_run, rungs, search
from regard.system.errors import CheckpointError, SettingError
from regard.training.recipe import loading
from regard.training.recipe.schema import Recipe

TINY: dict[str, Any] = {
    "builtin_lines": 120,
    "test_lines": 20,
    "preset": "tiny",
    "d_model": 8,
    "heads": 2,
    "d_ff": 16,
    "layers": 1,
    "vocabulary": 100,
    "batch_tokens": 128,
    "threads": 1,
}


def tiny_recipe() -> Recipe:
    return loading.choose("builtin", TINY)[0]


# --- the search itself ----------------------------------------------------------------------------


def test_rungs_halve_the_candidates_and_double_the_updates() -> None:
    assert rungs(8, 80) == [(8, 20), (4, 40), (2, 80)]
    assert rungs(5, 80) == [(5, 40), (2, 80)]
    assert rungs(1, 80) == [(1, 80)]


@pytest.mark.parametrize("budget", [50, 333, 1000, 12345])
def test_a_search_keeps_to_its_budget_and_uses_it(budget: int) -> None:
    plan = [Stage("a", (1, 2, 3, 4, 5)), Stage("b", (1, 2, 3))]
    most = longest_run(plan, budget)
    assert cost(plan, most) <= budget
    assert cost(plan, most + 4) > budget
    assert all(updates % rungs(5, most)[0][1] == 0 for _, updates in rungs(5, most))


def test_the_best_value_of_each_setting_is_found_in_order() -> None:
    plan = [Stage("a", (1, 2, 3, 4)), Stage("b", (10, 20, 30))]
    asked = []

    def evaluate(updates: int, changes: Any) -> float:
        asked.append((dict(changes), updates))
        distance = abs(changes["a"] - 3) + abs(changes.get("b", 10) - 20)
        return distance + 1.0 / updates

    assert search(plan, 8, evaluate) == {"a": 3, "b": 20}
    assert all(changes["a"] == 3 for changes, _ in asked if "b" in changes)
    # The worse half is not trained on.
    assert {c["a"] for c, updates in asked if updates == 8 and "b" not in c} == {2, 3}


def test_candidates_begin_with_the_present_value() -> None:
    recipe = tiny_recipe()
    for stage in stages(recipe, ["rate", "batch", "dropout", "size"], Sizes(8, 1, 100)):
        present = {
            "learning_rate": recipe.train.learning_rate,
            "batch_tokens": 128,
            "dropout": recipe.model.dropout,
            "layers": 1,
        }[stage.setting]
        assert stage.values[0] == present


# --- runs -----------------------------------------------------------------------------------------


def run(folder: Path, updates: int = 30) -> tuning.Tuned:
    return tuning.tune(
        tiny_recipe(), "builtin", folder, Budget(steps=updates), ["rate"], lambda _: None
    )


class Killed(BaseException):
    """As if the process had ended."""


@pytest.mark.slow
def test_a_search_that_was_killed_goes_on_to_the_same_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(tmp_path / "whole")
    counter = iter(range(100))
    original = tuning._Search._score

    def killed(self: Any, folder: Path, updates: int) -> float:
        # After the training of the fourth run, and before its score is stored.
        if next(counter) == 3:
            raise Killed
        return original(self, folder, updates)

    monkeypatch.setattr(tuning._Search, "_score", killed)
    with pytest.raises(Killed):
        run(tmp_path / "killed")
    monkeypatch.undo()
    stored = json.loads((tmp_path / "killed" / "tune.json").read_text())
    assert sum(len(trial["scores"]) for trial in stored["trials"]) == 3
    resumed = tuning.resume(tmp_path / "killed", lambda _: None)
    assert [vars(trial) for trial in resumed.trials] == [vars(trial) for trial in whole.trials]
    assert resumed.best == whole.best
    assert resumed.recipe.read_text() == whole.recipe.read_text()
    # The best recipe is one that `regard train` takes.
    recipe, _ = loading.choose(resumed.recipe, {})
    assert recipe.train.learning_rate == whole.best["learning_rate"]
    assert recipe.model.d_model == 8


def test_errors(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="exactly one positive budget"):
        Budget()
    with pytest.raises(SettingError, match="exactly one positive budget"):
        Budget(minutes=1, flops=1e9)
    with pytest.raises(SettingError, match="too few"):
        run(tmp_path / "few", updates=3)
    with pytest.raises(SettingError, match="unknown setting 'rates'"):
        stages(tiny_recipe(), ["rates"], Sizes(8, 1, 10))
    with pytest.raises(CheckpointError, match="does not contain a search"):
        tuning.resume(tmp_path / "nowhere")
    # What was refused does not stand in the way of the corrected command.
    assert not (tmp_path / "few").exists()
    (tmp_path / "few").mkdir()
    (tmp_path / "few" / tuning.STATE).touch()
    with pytest.raises(SettingError, match="already contains a search"):
        run(tmp_path / "few", updates=30)
