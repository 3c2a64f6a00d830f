"""A memory network by the same commands: trained, resumed, opened, asked, looked at, verified."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import regard
from regard import spec
from regard.evaluation.scores import Score
from regard.families import folder as folders
from regard.lab.verify.invariants import check_invariants
from regard.system.errors import DataError, SettingError
from regard.training.recipe import loading
from regard.training.result import Result
from regard.training.run import resume, run
from regard.training.run_folder import begin

FEW: dict[str, Any] = {
    "steps": 30, "builtin_lines": 300, "test_lines": 50, "validate_every": 10, "save_every": 10, "threads": 1,
    "device": "cpu",
}  # fmt: skip
STORY = "Mary went to the kitchen. John moved to the garden. Mary took the apple. Mary went to the office."


def trained(out: Path, on_step: Any = None, **changes: Any) -> Result:
    recipe, name = loading.choose(None, {"model": "memory"} | changes)
    return run(begin(recipe, out, name), recipe, name, quiet=True, on_step=on_step)


@pytest.fixture(scope="module")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Score]:
    """A third of the recipe's steps."""
    out = tmp_path_factory.mktemp("stories") / "run"
    found = trained(
        out,
        steps=600,
        builtin_lines=4000,
        test_lines=500,
        validate_every=300,
        save_every=300,
        threads=1,
    )
    score = found.scores["test"]
    assert isinstance(score, Score)
    return out, score


def test_it_learns_where_people_and_things_are(
    learnt: tuple[Path, Score],
) -> None:
    assert learnt[1].accuracy > 85
    assert learnt[1].majority < 25


def test_it_is_opened_and_asked(learnt: tuple[Path, Score]) -> None:
    model: Any = regard.load(learnt[0])
    assert isinstance(model.spec, spec.MemoryNetwork)
    said = model.answer("Where is John?", STORY)
    assert next(iter(said)) == "garden"
    assert sum(said.values()) == pytest.approx(1.0, abs=1e-4)
    with pytest.raises(DataError, match="before its question"):
        model.answer("Where is John?", " ")
    card = (learnt[0] / "README.md").read_text()
    assert "generated stories" in card
    assert "answer(" in card


def test_its_hops_are_seen(learnt: tuple[Path, Score]) -> None:
    model = regard.load(learnt[0])
    seen = model.look(f"{STORY} Where is John?", ask=["*"])
    shown = seen.attention("memory.0.cross")
    assert shown.rows == ("Where is John",)
    assert shown.columns[1] == "John moved to the garden"
    assert shown.weights.shape == (1, 1, 4)
    assert max(seen.weights(f"memory.{hop}.cross")[0, 0, 1] for hop in range(3)) > 0.5
    off = model.look(
        f"{STORY} Where is John?",
        ask=["logits"],
        off=[(f"memory.{hop}.cross", 0) for hop in range(3)],
    )
    assert seen["logits"].max() > off["logits"].max() + 1, "what is not looked up is not known"
    command = [
        sys.executable,
        "-m",
        "regard",
        "look",
        str(learnt[0]),
        f"{STORY} Where is John?",
        "--json",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert json.loads(done.stdout)["name"] == "memory.2.cross", done.stderr


def test_its_invariants_hold(learnt: tuple[Path, Score]) -> None:
    model, opened = folders.open_model(learnt[0])
    found = {finding.name: finding.verdict for finding in check_invariants(model.double(), opened)}
    assert found.pop("cached = uncached") == "skipped"
    assert set(found.values()) == {"holds"}
    assert "padded = unpadded" in found


def test_a_resumed_run_is_an_uninterrupted_one(
    tmp_path: Path, crash_at: Callable[[int], Any]
) -> None:
    trained(tmp_path / "whole", **FEW)
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "parts", crash_at(17), **FEW)
    resume(tmp_path / "parts", quiet=True)
    one, other = (folders.open_model(tmp_path / name)[0] for name in ("whole", "parts"))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_stories_of_ones_own(tmp_path: Path) -> None:
    lines = [
        f"The {a} sleeps. The {b} runs. Who runs?\t{b}\n"
        for a in ("cat", "dog")
        for b in ("cow", "owl")
    ] * 20
    (tmp_path / "own.tsv").write_text("".join(lines))
    given = {"text": str(tmp_path / "own.tsv"), "valid_text": str(tmp_path / "own.tsv")}
    recipe = loading.load(
        "stories", FEW | given | {"steps": 80, "layers": 1, "d_model": 8, "learning_rate": 0.05}
    )
    run(begin(recipe, tmp_path / "run", "own"), recipe, "own", quiet=True)
    model: Any = regard.load(tmp_path / "run")
    assert model.spec.hops == 1
    assert next(iter(model.answer("Who runs?", "The dog sleeps. The owl runs."))) == "owl"


def test_settings_of_others_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="not for the objective"):
        loading.load(None, {"model": "memory", "objective": "translate"})
    with pytest.raises(SettingError, match="no option 'heads'"):
        trained(tmp_path / "run", heads=2, **FEW)
