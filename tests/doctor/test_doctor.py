"""The doctor on sick runs and on the installation; `python bench/doctor.py` has all cases."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from doctor_bench import load
from regard.cli import regard as command
from regard.core import amx
from regard.lab.doctor import Finding, Report, examine
from regard.lab.doctor.installation import check_installation
from regard.lab.doctor.report_page import text_lines, write_page
from regard.training.objectives.causal_lm import CausalLM

cases = load("doctor_cases")

unseen = load("doctor_unseen_cases")

FAST = [
    "labelled validation in training",
    "words of another language",
    "NaN in the weights",
    "validation in lower case",
    "a header fills the context",
    "labels of validation inverted",
    "validation of another domain",
    "texts with both labels",
    "ratings in the ten thousands",
    "label smoothing",
    "attention dropout",
    "a loss of the wrong sign",
    "an encoder without gradient",
    "an average that never moved",
    "no positions",
]


def case(name: str) -> Any:
    (found,) = [each for each in (*cases.SICK, *unseen.SICK) if each.name == name]
    return found


@pytest.mark.parametrize("name", FAST)
def test_the_planted_cause_comes_first(name: str, tmp_path: Path) -> None:
    sick = case(name)
    report = cases.examine_case(sick, tmp_path, seed=3, steps=24)
    assert cases.is_right(sick, report), report.findings


@pytest.mark.slow
@pytest.mark.parametrize("module", ["doctor_cases", "doctor_wider_cases", "doctor_unseen_cases"])
def test_nine_of_ten_causes_and_no_false_alarm(module: str, tmp_path: Path) -> None:
    group = load(module)
    sick = [*group.SICK, *getattr(group, "AFTER", [])]
    wrong = []
    for number, each in enumerate([*getattr(group, "HEALTHY", []), *sick]):
        report = cases.examine_case(each, tmp_path / str(number), seed=0)
        if not cases.is_right(each, report):
            wrong.append((each, [finding.check for finding in report.findings]))
    assert [each for each, _ in wrong if not each.planted] == []
    assert len(wrong) <= 0.1 * len(sick), wrong


def test_a_recipe_is_examined_before_it_runs(tmp_path: Path) -> None:
    lines = [(f"the word {i} is number {i}", ["yes", "no"][i % 2]) for i in range(200)]
    train = cases.write_labelled(tmp_path, "train", lines)
    valid = cases.write_labelled(tmp_path, "valid", lines[:50])
    recipe = tmp_path / "mine.toml"
    recipe.write_text(
        f'[data]\ntext = "{train}"\nvalid_text = "{valid}"\n'
        '[model]\nmodel = "bert:tiny"\nlayers = 1\nd_model = 16\nheads = 2\n'
        '[train]\nobjective = "classify"\nsteps = 5\n'
    )
    report = examine(recipe)
    assert [finding.check for finding in report.findings] == ["test_in_train"]
    result = CliRunner().invoke(command, ["doctor", str(recipe), "--json"])
    assert result.exit_code == 1
    printed = json.loads(result.stdout)
    assert printed["findings"][0]["check"] == "test_in_train"
    assert set(printed["findings"][0]) >= {"evidence", "cause", "change", "confidence"}


class Own(CausalLM):
    """An objective of one's own, which the doctor is not given."""


def test_a_run_with_an_objective_of_its_own_is_not_called_healthy(tmp_path: Path) -> None:
    run = cases.own_objective("gpt2", Own)
    with cases.fewer_steps(24):
        folder = run(tmp_path, random.Random(0)).run
    report = examine(folder)
    assert report.problems
    assert not any("Error" in problem for problem in report.problems)
    assert "could be examined" in next(text_lines(report))


def test_the_report_reads_as_text_and_as_a_page(tmp_path: Path) -> None:
    finding = Finding("plateau", "<b>evidence</b>", "the cause", "the change", 0.8, 7)
    report = Report("runs/mine", [finding], ["the model"])
    text = "\n".join(text_lines(report))
    for word in ("plateau", "80 % confidence", "the cause", "the change", "step", "the model"):
        assert word in text
    write_page(report, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "&lt;b&gt;evidence" in page
    assert "<script" not in page


def test_the_installation() -> None:
    checks = {check.name: check for check in check_installation()}
    assert checks["torch"].state == "good"
    assert all(check.change for check in checks.values() if check.state != "good")
    result = CliRunner().invoke(command, ["doctor", "--json"])
    assert {each["name"] for each in json.loads(result.stdout)} == set(checks)


@pytest.mark.parametrize("is_missing", [False, True])
def test_missing_amx_is_told_with_the_setting(
    is_missing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(amx, "amx_is_missing", lambda: is_missing)
    checks = {check.name: check for check in check_installation()}
    assert checks["bfloat16"].state == ("warning" if is_missing else "good")
    assert ("ONEDNN_MAX_CPU_ISA" in checks["bfloat16"].change) == is_missing
