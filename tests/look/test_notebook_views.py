"""What a notebook shows: models, recordings, runs and comparisons, self-contained."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

import regard
from regard.builder.parameter_count import parameter_count, parameters_by_module
from regard.look.drawing import charts
from regard.training import result as results
from regard.training.engine import progress_bar
from regard.training.result import Result

DEMO = Path(regard.__file__).parent / "studio" / "demo"


@pytest.fixture(scope="module")
def translator() -> regard.Model:
    return regard.load(DEMO)


def check_self_contained(html: str) -> None:
    """No request, no script, and pictures in the colour of the text around them."""
    assert not re.search(r"(href|src)=[\"'](?!data:)", html)
    assert "<script" not in html
    pictures = re.findall(r"<svg.*?</svg>", html, flags=re.S)
    assert pictures
    for picture in pictures:
        ElementTree.fromstring(picture)  # well formed
        assert "currentColor" in picture


def test_a_model_shows_its_parameters_and_tasks(translator: regard.Model) -> None:
    html = translator._repr_html_()
    check_self_contained(html)
    counts = parameters_by_module(translator.spec)
    assert sum(counts.values()) == parameter_count(translator.spec)
    assert all(f"{count:,}" in html for count in counts.values())
    assert "<code>.translate</code>" in html


def test_a_recording_shows_its_last_attention(translator: regard.Model) -> None:
    run = translator.look("The dog sees a cat.")
    html = run._repr_html_()
    check_self_contained(html)
    assert "decoder.1.cross" in html
    # Without attention there are the names alone.
    assert "encoder.output" in translator.look("A dog.", ask=["encoder.output"])._repr_html_()


def test_a_run_shows_its_learning_curves(tmp_path: Path) -> None:
    records: list[dict[str, Any]] = [
        {"step": 10, "loss": 5.0, "nll": 4.0},
        {"step": 20, "loss": "nan", "nll": "nan"},
        {"event": "validation", "step": 20, "loss": 3.5},
        {"step": 30, "loss": 4.5, "nll": 3.0},
        {"event": "validation", "step": 30, "loss": 2.5},
    ]
    log = tmp_path / "metrics.jsonl"
    log.write_text("".join(json.dumps(record) + "\n" for record in records))
    # Both without label smoothing; a NaN is a gap.
    assert results.read_curves(log) == {
        "training": [(10, 4.0), (30, 3.0)],
        "validation": [(20, 3.5), (30, 2.5)],
    }
    html = Result(tmp_path, {}, 1.0, 0.0, 7)._repr_html_()
    check_self_contained(html)
    assert "validation: 2.5 at 30" in html


@pytest.mark.parametrize(
    "values", [[0.0, 1.0], [3.1, 3.1], [-4.0, 2e-3], [17.0, 12345.0], [1e-7, 3e-7], []]
)
def test_ticks_are_few_and_enclose_the_values(values: list[float]) -> None:
    ticks = charts.ticks(values)
    assert 2 <= len(ticks) <= 8
    if values:
        slack = 1e-6 * (ticks[-1] - ticks[0])
        assert ticks[0] <= min(values) + slack
        assert ticks[-1] >= max(values) - slack


def test_a_notebook_gets_a_bar_that_is_redrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[str] = []

    class Handle:
        def update(self, content: str) -> None:
            drawn.append(content)

    def display(content: str, display_id: bool) -> Handle:
        assert display_id
        drawn.append(content)
        return Handle()

    class ZMQInteractiveShell:
        pass

    shells: list[object] = [None]
    ipython = ModuleType("IPython")
    ipython.get_ipython = lambda: shells[0]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    module = SimpleNamespace(display=display, HTML=str)
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    assert progress_bar.notebook_bar() is None  # IPython, but no notebook
    shells[0] = ZMQInteractiveShell()
    bar = progress_bar.ProgressBar(30)
    with bar.shown(0):
        for step in range(31):
            bar.update(step, "loss 1.0", elapsed=step, remaining=30 - step)
    assert len(drawn) < 30  # not one message for each step
    assert 'value="0" max="30"' in drawn[0]
    assert 'value="30" max="30"' in drawn[-1]
