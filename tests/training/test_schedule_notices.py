"""The number of steps and the warm-up are said before a run begins."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import regard
from command_line import SIZES, Command
from regard.system.errors import TrainingInterrupted
from regard.training.engine.loop import Loop
from regard.training.engine.progress_bar import duration


def stop_at_once(loop: Loop) -> None:
    loop.request_stop()


def begun(tmp_path: Path, files: Path, **changes: object) -> dict[str, object]:
    """The settings that a run has settled on, once its first step is done."""
    data = {"source": str(files / "s.en"), "target": str(files / "s.de")}
    with pytest.raises(TrainingInterrupted):
        regard.train({**SIZES, **data, **changes}, out=tmp_path / "run", on_step=stop_at_once)
    settings: dict[str, object] = json.loads((tmp_path / "run/state/recipe.json").read_text())[
        "train"
    ]
    return settings


def test_steps_warm_up_and_batch_follow_from_the_data(
    tmp_path: Path, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = begun(tmp_path, files)
    assert settings["batch_tokens"] == 512
    steps = settings["steps"]
    assert isinstance(steps, int)
    assert 300 <= steps < 1000
    assert settings["warmup_steps"] == steps // 10
    # The peak of the paper's own 4,000 steps, not the higher one of a shorter warm-up.
    assert settings["learning_rate"] == pytest.approx((32 * 4000) ** -0.5)
    told = capsys.readouterr().err
    assert f"schedule: {steps} steps" in told
    assert "estimate: " in told
    assert told.index("estimate: ") < told.index("saved at step 1")


def test_what_is_given_stands(
    tmp_path: Path, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = begun(tmp_path, files, steps=60, warmup_steps=4000, batch_tokens=1024)
    assert [settings[key] for key in ("steps", "warmup_steps", "batch_tokens")] == [60, 4000, 1024]
    assert settings["learning_rate"] is None
    assert "warning: the warm-up of 4,000 steps does not end" in capsys.readouterr().err


def test_few_steps_warm_up_within_them(
    tmp_path: Path, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = begun(tmp_path, files, steps=60)
    assert settings["warmup_steps"] == 6
    assert "warning" not in capsys.readouterr().err


def test_a_packaged_recipe_keeps_its_numbers(command: Command, tmp_path: Path) -> None:
    from regard.training.recipe import loading
    from regard.training.run_folder import begin

    for name in loading.packaged():
        recipe = loading.load(name, {}, str(tmp_path))
        folder = begin(recipe, tmp_path / name, name)
        # Only batches of pairs follow from the data.
        keys = ["steps", "warmup_steps"]
        if recipe.objective_settings.data == "pairs":
            keys.append("batch_tokens")
        assert not set(keys) & set(folder.unset_settings()), name


def test_hours_are_written_as_hours() -> None:
    assert duration(12) == "12 s"
    assert duration(649) == "10 min 49 s"
    assert duration(21588) == "5 h 59 min"  # was 359:48
    assert duration(273_000) == "3 d 3 h"


def test_the_peak_is_the_same_by_epochs_and_by_steps(tmp_path: Path, files: Path) -> None:
    by_epochs = begun(tmp_path / "epochs", files, epochs=2)
    steps = by_epochs["steps"]
    by_steps = begun(tmp_path / "steps", files, steps=steps)
    for key in ("learning_rate", "warmup_steps", "batch_tokens"):
        assert by_epochs[key] == by_steps[key], key
    assert by_epochs["learning_rate"] == pytest.approx((32 * 4000) ** -0.5)
