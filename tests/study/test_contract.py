"""Every study keeps its contract: texts, plain numbers, a verdict by its rule, figures, tables."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

import regard.lab.study
from regard.lab.study import listing
from regard.lab.study.report import StudyResult
from regard.lab.study.runner import fingerprint, stored
from regard.lab.study.study import Outcome
from regard.look import drawing
from regard.system.errors import SettingError

# Studies that take a second or two.
CHEAP = ["scaling", "lookup", "sinusoids", "wavelengths", "path_length", "kv_cache"]


@pytest.mark.parametrize("name", listing.STUDIES)
def test_a_study_says_what_it_claims(name: str) -> None:
    study = listing.load(name)
    assert study.name == name
    for text in (study.claim, study.source, study.measurement, study.rule):
        assert len(text) > 20
    assert study.effort(quick=True).quick
    assert len(study.effort(quick=False).seeds) >= len(study.effort(quick=True).seeds)
    assert study.effort(quick=True, seeds=3).seeds == (1, 2, 3)


@pytest.mark.parametrize("name", CHEAP)
def test_a_quick_study_runs(name: str, tmp_path: Path) -> None:
    shares = []
    result = regard.study.run(
        name, quick=True, seeds=1, progress=lambda share, text: shares.append(share)
    )
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    # What is stored and read again is the same result.
    result.save(tmp_path)
    again = stored(tmp_path, result.study, result.effort)
    assert again is not None
    assert again.to_dict() == {**result.to_dict(), "seconds": again.seconds}
    assert again.verdict.outcome in Outcome
    for figure in again.figures:
        ElementTree.fromstring(drawing.svg(figure.scene(), figure.title))
    ElementTree.fromstring(f"<div>{again.html()}</div>")
    assert json.loads(json.dumps(result.to_dict()))["outcome"] == result.verdict.outcome
    assert result.verdict.reason in str(result).replace("\n", " ")


def test_other_settings_are_measured_again(tmp_path: Path) -> None:
    result = regard.study.run("scaling", quick=True, seeds=1)
    result.save(tmp_path)
    study = result.study
    assert stored(tmp_path, study, result.effort) is not None
    assert stored(tmp_path, study, study.effort(quick=True, seeds=2)) is None
    assert stored(tmp_path, study, study.effort(quick=False, seeds=1)) is None
    (tmp_path / "scaling.json").write_text("{")
    assert stored(tmp_path, study, result.effort) is None
    assert fingerprint(study, result.effort) == result.fingerprint


def test_a_stored_result_says_how_it_was_measured(tmp_path: Path) -> None:
    """Code may have changed since; the verdict is that of today's rule."""
    result = regard.study.run("sinusoids", quick=True)
    replace(result, measurement="On half as many positions.").save(tmp_path)
    again = StudyResult.read(tmp_path / "sinusoids.json")
    assert "On half as many positions." in again.html()
    assert "On half as many positions." in str(again)
    assert again.study.measurement == result.measurement
    assert again.verdict == result.verdict


def test_all_goes_on_where_it_stopped(tmp_path: Path) -> None:
    measured: list[str] = []

    def run_all() -> list[StudyResult]:
        measured.clear()
        return list(
            regard.study.run_all(
                tmp_path,
                quick=True,
                seeds=1,
                names=CHEAP,
                progress=lambda name, share, text: measured.append(name),
            )
        )

    first = run_all()
    assert set(measured) == set(CHEAP)
    page = (tmp_path / "report.html").read_text()
    second = run_all()
    assert measured == []
    assert [one.to_dict() for one in second] == [one.to_dict() for one in first]
    assert (tmp_path / "report.html").read_text() == page
    # One that is missing is measured, the others are not.
    (tmp_path / f"{CHEAP[0]}.json").unlink()
    run_all()
    assert set(measured) == {CHEAP[0]}


def test_an_unknown_study_is_named() -> None:
    with pytest.raises(SettingError, match="did you mean 'scaling'"):
        regard.study.run("scalling")
    with pytest.raises(SettingError, match="1 or more"):
        regard.study.run("scaling", seeds=0)


def test_listing_imports_no_torch() -> None:
    script = "import sys; from regard.lab.study import listing; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "False"
