"""LibreTranslate's published client and its documented calls, as plugins send them."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from libretranslatepy import LibreTranslateAPI

from regard.training.translation_languages import Pair, known_share, pair_of
from serving import Served

CAT = "The cat sat on the mat."
DOG = "The dog does not sleep."


@pytest.fixture(scope="module")
def post(server: Served) -> Any:
    def ask(path: str, status: int = 200, **options: Any) -> Any:
        response = httpx.post(f"{server.url}{path}", timeout=60, **options)
        assert response.status_code == status, response.text
        return response.json()

    return ask


def test_the_published_client(server: Served) -> None:
    client = LibreTranslateAPI(f"{server.url}/")
    wanted = server.model("demo").translate(CAT)
    assert client.translate(CAT, "en", "de") == wanted
    assert client.languages() == [{"code": "en", "name": "English", "targets": ["de"]}]
    [detected] = client.detect(CAT)
    assert detected["language"] == "en"
    assert 90 <= detected["confidence"] <= 100


@pytest.mark.parametrize("form", ["json", "data", "files"])
def test_every_form_of_a_request(server: Served, post: Any, form: str) -> None:
    fields: dict[str, Any] = {"q": CAT, "source": "en", "target": "de", "format": "text"}
    if form == "files":
        fields = {name: (None, value) for name, value in fields.items()}
    answer = post("/translate", **{form: fields})
    assert answer == {"translatedText": server.model("demo").translate(CAT)}


def test_lines_are_translated_one_by_one(server: Served, post: Any) -> None:
    text = f"{CAT}\n\n  \n{DOG}\n"
    answer = post("/translate", json={"q": text, "source": "en", "target": "de"})
    cat, dog = server.model("demo").translate([CAT, DOG])
    assert answer["translatedText"] == f"{cat}\n\n  \n{dog}\n"
    several = post("/translate", json={"q": [CAT, "", DOG], "source": "en", "target": "de"})
    assert several["translatedText"] == [cat, "", dog]


def test_alternatives_are_the_next_best(server: Served, post: Any) -> None:
    asked = {"q": CAT, "source": "en", "target": "de", "alternatives": 2}
    answer = post("/translate", json=asked)
    wanted = server.model("demo").translate(CAT, beam=4, num_return_sequences=3)
    assert [answer["translatedText"], *answer["alternatives"]] == wanted
    several = post("/translate", json={**asked, "q": [CAT, DOG]})
    assert several["alternatives"][0] == wanted[1:]
    assert len(several["alternatives"][1]) == 2


def test_the_language_is_detected(post: Any) -> None:
    answer = post("/translate", json={"q": CAT, "source": "auto", "target": "de"})
    assert answer["detectedLanguage"]["language"] == "en"
    several = post("/translate", json={"q": [CAT, DOG], "source": "auto", "target": "de"})
    assert [one["language"] for one in several["detectedLanguage"]] == ["en", "en"]


def test_markup_stays_and_its_text_is_translated(server: Served, post: Any) -> None:
    cat, dog = server.model("demo").translate([CAT, DOG])
    html = f'<!-- c --><p class="a">{CAT}</p>\n<br/><b>{DOG}</b> <script>if (a < b) x()</script>'
    answer = post("/translate", json={"q": html, "source": "en", "target": "de", "format": "html"})
    assert answer["translatedText"] == html.replace(CAT, cat).replace(DOG, dog)


MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "no text": ({"source": "en", "target": "de"}, "q"),
    "empty": ({"q": "", "source": "en", "target": "de"}, "q"),
    "no source": ({"q": "a", "target": "de"}, "source"),
    "other source": ({"q": "a", "source": "fr", "target": "de"}, "source"),
    "other target": ({"q": "a", "source": "en", "target": "fr"}, "target"),
    "format": ({"q": "a", "source": "en", "target": "de", "format": "pdf"}, "format"),
    "many": ({"q": "a", "source": "en", "target": "de", "alternatives": 99}, "alternatives"),
    "negative": ({"q": "a", "source": "en", "target": "de", "alternatives": -1}, "alternatives"),
    "both": (
        {"q": "a", "source": "en", "target": "de", "format": "html", "alternatives": 1},
        "alternatives",
    ),
    "unknown": ({"q": "a", "source": "en", "target": "de", "speed": 1}, "speed"),
    "too long": ({"q": "cat " * 9000, "source": "en", "target": "de"}, "q"),
    "lines": ({"q": "a\n" * 2000, "source": "en", "target": "de"}, "q"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line_that_names_its_field(post: Any, name: str) -> None:
    asked, field = MISTAKES[name]
    answer = post("/translate", 400, json=asked)
    assert set(answer) == {"error"}
    assert answer["error"].startswith(field)


def test_health(server: Served) -> None:
    assert httpx.get(f"{server.url}/health").json() == {"status": "ok"}


# ------------------------------------------------------------------ which languages


def test_the_languages_of_a_run_are_those_of_its_recipe(tmp_path: Any, server: Served) -> None:
    import regard

    assert pair_of(tmp_path) is None
    for settings, wanted in (
        ({}, Pair("en", "de")),  # the built-in language
        ({"languages": "fr-nl"}, Pair("fr", "nl")),
    ):
        folder = tmp_path / (wanted.source + wanted.target)
        quick = {"steps": 1, "warmup_steps": 1, "builtin_lines": 100, "test_lines": 2}
        small = {"d_model": 16, "d_ff": 16, "heads": 2, "layers": 1, "samples": 0}
        regard.train({"preset": "tiny", **quick, **small, **settings}, out=folder)
        assert pair_of(folder) == wanted


def test_a_text_of_known_words_is_known(server: Served) -> None:
    model = server.model("demo")
    assert known_share(model, CAT) == 1
    assert known_share(model, "Zzyzx qwrtp vvvv") < 0.5
