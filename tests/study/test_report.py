"""Figures are drawn with what they can show; a page is one file with everything in it."""

from __future__ import annotations

import itertools
import json
import math
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from attention_verdicts import VERDICTS
from click.testing import CliRunner

from regard.cli.study import command
from regard.lab.study import listing, report
from regard.lab.study.figure import mean_text
from regard.lab.study.report import StudyResult
from regard.lab.study.study import Study
from regard.look import drawing
from regard.look.drawing import Axis, BarChart, Bars, Chart, Figure, HeatMap, Series
from regard.look.drawing.figures import number

SVG = "{http://www.w3.org/2000/svg}"


def result(name: str) -> StudyResult:
    """A result with numbers of the verdict's tests."""
    study: Study = listing.load(name)
    numbers = VERDICTS[name][0][0]
    return StudyResult(study, study.effort(quick=True), numbers, 1.0, "none", study.measurement)


def svg(figure: Figure) -> str:
    return drawing.svg(figure.scene(), figure.title)


def tags(figure: Figure, tag: str) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(svg(figure)).iter(SVG + tag))


def test_a_line_leaves_out_what_its_scale_has_not() -> None:
    x = [1.0, 2.0, 3.0, 4.0]
    y = [0.1, 0.0, math.nan, 10.0]
    chart = Chart("", Axis("x"), Axis("y", log=True), [Series("a", x, y)])
    assert len(tags(chart, "circle")) == 2
    assert "nan" not in svg(chart)


def test_higher_values_stand_higher() -> None:
    for log in (False, True):
        chart = Chart("", Axis("x"), Axis("y", log=log), [Series("a", [1, 2, 3], [1, 10, 100])])
        heights = [float(circle.attrib["cy"]) for circle in tags(chart, "circle")]
        assert heights == sorted(heights, reverse=True)
        # On a logarithmic scale equal factors are equal steps.
        steps = [a - b for a, b in itertools.pairwise(heights)]
        assert (abs(steps[0] - steps[1]) < 0.2) == log


def test_a_band_is_drawn_for_several_seeds_alone() -> None:
    def chart(runs: list[list[float]]) -> Chart:
        return Chart("", Axis("x"), Axis("y"), [Series.over_seeds("a", [1, 2], runs)])

    assert len(tags(chart([[1.0, 2.0], [3.0, 4.0]]), "polygon")) == 1
    assert tags(chart([[1.0, 2.0]]), "polygon") == []
    assert Series.over_seeds("a", [1], [[1.0], [3.0]]).spread == [(1.0, 3.0)]


def test_names_below_bars_begin_inside_the_drawing() -> None:
    names = ["a name of twenty-two le"] * 16
    chart = BarChart("", Axis("y"), names, [Bars("", [[1.0]] * 16)])
    texts = [mark for mark in chart.scene().marks if isinstance(mark, drawing.Text)]
    slanted = [text for text in texts if text.text == names[0]]
    assert len(slanted) == 16
    for text in slanted:
        assert text.x > drawing.text_width(names) * math.cos(math.radians(text.turn)) - 1


def test_bars_begin_at_their_base() -> None:
    bars = [Bars("", [[0.1], [10.0]])]
    chart = BarChart("", Axis("y", log=True), ["low", "high"], bars, base=1.0)
    low, high = tags(chart, "rect")
    foot = float(low.attrib["y"])
    assert float(high.attrib["y"]) + float(high.attrib["height"]) == pytest.approx(foot, abs=0.2)
    assert float(low.attrib["height"]) == pytest.approx(float(high.attrib["height"]), abs=0.2)


@pytest.mark.parametrize(("side", "cells"), [(4, 16), (50, 0)])
def test_a_large_heat_map_is_one_image(side: int, cells: int) -> None:
    figure = HeatMap("", [[float(i * j) for i in range(side)] for j in range(side)])
    assert len(tags(figure, "rect")) == cells
    # The colour bar is an image too.
    assert len(tags(figure, "image")) == (1 if cells else 2)


def test_numbers_are_written_as_people_do() -> None:
    values = {0.0: "0", 0.25: "0.25", 1024.0: "1,024", -3.0: "−3", 1e-7: "10⁻⁷", 2e9: "2×10⁹"}
    assert {value: number(value) for value in values} == values
    assert mean_text([2.0, 2.2]) == "2.10 ± 0.14"
    assert mean_text([1000.0, 1020.0]) == "1,010 ± 14"
    assert mean_text([5.0]) == "5.00"


def test_text_is_escaped() -> None:
    chart = Chart("<b>", Axis("x<y"), Axis("a&b"), [Series("<i>", [1, 2], [1, 2])])
    assert "<i>" not in svg(chart)
    ElementTree.fromstring(svg(chart))


def test_a_page_is_self_contained() -> None:
    page = report.page([result("scaling"), result("permutation")])
    links = re.findall(r'href="#([^"]+)"', page)
    assert links == ["scaling", "permutation"]
    assert all(f'id="{name}"' in page for name in links)
    # No script, and no address but the name space of SVG.
    addresses = set(re.findall(r"https?://[^\"' ]+", page))
    assert addresses == {"http://www.w3.org/2000/svg"}
    assert "<script" not in page
    assert "prefers-color-scheme: dark" in page
    body = page[page.index("<main>") : page.index("</main>") + len("</main>")]
    ElementTree.fromstring(body.replace(' id="theme">', ' id="theme"/>'))


def test_exponents_are_powers_of_ten() -> None:
    html = result("permutation").html()
    assert "10<sup>−7</sup>" in html
    assert not re.search(r"\de-\d", html)


def test_a_notebook_shows_the_study_with_its_style() -> None:
    html = result("scaling")._repr_html_()
    assert html.startswith('<div class="regard"><style>')
    assert "Holds if" in html


def test_the_command_lists_and_runs(tmp_path: Path) -> None:
    runner = CliRunner()
    lines = runner.invoke(command, []).output
    assert all(name in lines for name in listing.STUDIES)
    assert all(topic in lines for topic in listing.TOPICS)
    page = tmp_path / "scaling.html"
    arguments = ["scaling", "--quick", "--seeds", "1", "--json", "--html", str(page)]
    done = runner.invoke(command, [*arguments, "--out", str(tmp_path)])
    assert done.exit_code == 0
    values = json.loads(done.stdout)
    assert values["numbers"] == json.loads((tmp_path / "scaling.json").read_text())["numbers"]
    assert len(values["numbers"]["runs"]) == 1
    assert page.read_text().startswith("<!doctype html>")
    assert runner.invoke(command, ["scaling", "--all"]).exit_code != 0
