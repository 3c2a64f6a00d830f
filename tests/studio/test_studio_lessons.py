"""Lessons: how their files are read, that the packaged ones fit the packaged model, and playing them."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from click.testing import CliRunner

import regard
from looked import reader
from regard.cli.lesson import command
from regard.look.probe_names import attentions
from regard.models import Model
from regard.system.errors import DataError, SettingError

pytest.importorskip("starlette")
from test_studio_offline import (  # noqa: F401
    Visitor,
    browser,
    in_browser,
    ready,
    visitor,
)

from regard.studio.lesson import Lesson, open_lesson, packaged, parse
from regard.studio.model_store import DEMO, with_lesson
from regard.studio.views import VIEWS

GOOD = """# Title
for: translate

About it.

## First
state: look?text=A?&at=decoder.0.self
point: Answer, All heads

Said.

- [ ] no
- [x] yes

Because.

## Second
state: learn

Said.
"""

# ------------------------------------------------------------------ files


def test_a_lesson_is_read_from_markdown() -> None:
    lesson = parse(GOOD, "good")
    assert (lesson.title, lesson.summary, lesson.task) == ("Title", "About it.", "translate")
    first, second = lesson.steps
    assert (first.title, first.text, first.reveal) == ("First", "Said.", "Because.")
    assert first.state == "look?text=A?&at=decoder.0.self"
    assert first.point == ("Answer", "All heads")
    assert first.choices == ("no", "yes")
    assert first.right == 1
    assert second.choices == ()
    assert second.right is None


@pytest.mark.parametrize(
    ("old", "new", "argument"),
    [
        ("# Title", "Title", "good"),
        ("state: learn", "state: train?run=x", "Second"),
        ("state: learn", "", "Second"),
        ("- [x]", "- [ ]", "First"),
        ("- [ ]", "- [x]", "First"),
    ],
)
def test_a_file_that_is_no_lesson_is_refused_with_its_step(
    old: str, new: str, argument: str
) -> None:
    with pytest.raises(DataError, match=argument):
        parse(GOOD.replace(old, new), "good")


def test_a_lesson_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="pronoun"):
        open_lesson("pronoun")
    with pytest.raises(DataError):
        open_lesson(str(tmp_path / "none.md"))


def test_a_model_of_another_task_is_refused() -> None:
    lesson = parse(GOOD, "good")
    with pytest.raises(SettingError, match="translate"):
        lesson.require_fit(reader())
    Lesson("any", "", "", None, ()).require_fit(reader())


# ------------------------------------------------------------------ those of the package


@pytest.fixture(scope="module")
def demo() -> Model:
    return regard.load(DEMO, device="cpu")


@pytest.mark.parametrize("name", packaged())
def test_a_packaged_lesson_shows_heads_that_the_packaged_model_has(name: str, demo: Model) -> None:
    lesson = open_lesson(name)
    lesson.require_fit(demo)
    heads = {each: attention.heads for each, attention in attentions(demo.model).items()}
    assert any(step.choices for step in lesson.steps)
    for step in lesson.steps:
        state = parse_qs(step.state.partition("?")[2])
        shown = [f"{at}.{head}" for at in state.get("at", []) for head in state.get("head", ["0"])]
        shown += [each for off in state.get("off", []) for each in off.split(",")]
        for one in shown:
            attention, _, head = one.rpartition(".")
            assert int(head) < heads[attention]


def test_the_command_lists_them_and_writes_one(tmp_path: Path) -> None:
    listed = CliRunner().invoke(command, [])
    assert listed.exit_code == 0
    assert all(name in listed.output for name in packaged())
    out = tmp_path / "beam.html"
    assert CliRunner().invoke(command, ["export", "beam", str(out)]).exit_code == 0
    assert open_lesson("beam").steps[0].title in out.read_text(encoding="utf-8")


def test_the_page_is_told_of_the_lesson() -> None:
    store = with_lesson("beam", None)
    schema, shelf = VIEWS["shelf"]
    answer: Any = shelf(store, schema())
    assert answer["lesson"]["steps"][0]["state"].startswith("decode")


# ------------------------------------------------------------------ in a browser

VISIBLE = "[...document.querySelectorAll('main > section')].filter((e) => e.offsetHeight).map((e) => e.ariaLabel)"


def play(visitor: Visitor, name: str, width: int = 1440) -> list[str]:  # noqa: F811
    """Plays a lesson by keys; what the model answers at each step."""
    lesson = open_lesson(name)
    tab = visitor.open(with_lesson(name, None), width=width)
    outputs = []
    for number, step in enumerate(lesson.steps, 1):
        assert tab.inner_text("#lesson-slide") == f"{number} of {len(lesson.steps)}"
        assert tab.inner_text("#lesson h2") == step.title
        if step.choices:
            assert step.right is not None
            assert not tab.query_selector(".choice.correct")
            wrong = (step.right + 1) % len(step.choices)
            tab.keyboard.press(str(wrong + 1))
            ready(tab)
            marked = tab.query_selector_all(".choice.correct, .choice.mistaken")
            assert len(marked) == 2
        settled(tab)
        assert not tab.query_selector(".error"), step.title
        assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
        if step.point:
            assert set(tab.evaluate(VISIBLE)) == set(step.point), step.title
        tab.screenshot(path=visitor.shots / f"lesson-{name}-{number}-{width}.png")
        output = tab.query_selector("#output")
        outputs.append("" if output is None else output.text_content())
        tab.keyboard.press("ArrowRight")
        ready(tab)
    assert tab.is_disabled("#lesson-next")
    return outputs


def settled(tab: Any) -> None:
    """Waits until a page shows all that it is going to show."""
    for _ in range(100):
        ready(tab)
        if not tab.query_selector("main .loading"):
            return
    raise AssertionError("the page is still loading")


@pytest.mark.parametrize("width", [pytest.param(w, marks=in_browser) for w in (1440, 390)])
def test_the_lesson_on_pronouns_plays(visitor: Visitor, width: int) -> None:  # noqa: F811
    outputs = play(visitor, "pronouns", width)
    words = [output.split(", weil ")[1].split()[0] for output in outputs]
    assert words == ["er", "er", "es", "er", "er"]


@pytest.mark.parametrize("name", [pytest.param(n, marks=in_browser) for n in ("residual", "beam")])
def test_lessons_on_the_stream_and_on_search_play(visitor: Visitor, name: str) -> None:  # noqa: F811
    assert "Katze" in play(visitor, name)[-1]


OTHERS = sorted({*packaged()} - {"pronouns", "residual", "beam"})


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(n, marks=in_browser) for n in OTHERS])
def test_every_other_lesson_plays(visitor: Visitor, name: str) -> None:  # noqa: F811
    play(visitor, name)


@pytest.mark.parametrize("_", [pytest.param(None, marks=in_browser)])
def test_a_link_leads_to_a_step(visitor: Visitor, _: None) -> None:  # noqa: F811
    tab = visitor.open(with_lesson("pronouns", None), "look?slide=3")
    assert tab.inner_text("#lesson-slide") == "4 of 5"
    tab.go_back()
    tab.keyboard.press("a")
    assert tab.is_visible("#tabs")
