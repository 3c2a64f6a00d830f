"""Results as numbers, pages, pictures and lines; text from models stays text."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from looked import TARGET, TEXT, translator
from regard.data.generated.builtin import Sentence
from regard.decode.batch_decoding import DecodingSettings
from regard.decode.strategy import BeamSearch, Greedy, Limit
from regard.look import (
    AnalysisResult,
    AttentionMap,
    Circuit,
    ablation,
    alignment,
    attribution,
    beam,
    cache,
    drawing,
    entropy,
    lens,
    patching,
    positions,
    roles,
    rollout,
    steps,
)
from regard.look.drawing import marks, palette, png_files, terminal
from regard.system.errors import SettingError

EVIL = '<script>alert("1")</script>'


def results() -> dict[str, AnalysisResult]:
    model = translator()
    run = model.look(TEXT, target=TARGET, ask=["*.weights", "*.embedded", "*.residual"])
    examples: list[AnalysisResult] = [
        run.attention("encoder.0.self"),
        run.attention("decoder.1.cross", heads=[1], rows=[0, 3]),
        alignment(run),
        entropy(run),
        rollout(run),
        lens(run),
        roles(model, [Sentence(TEXT, TARGET)]),
        ablation(model, [TEXT], [TARGET]),
        patching(model, TEXT, "The cat sees a small dog.", target=TARGET),
        attribution(model, TEXT, target=TARGET),
        positions(model, 8),
        steps(model, TEXT, DecodingSettings(Greedy(), Limit(1, 3))),
        beam(model, TEXT, DecodingSettings(BeamSearch(3), Limit(1, 3))),
        cache(model, TEXT),
        Circuit(
            (("encoder.0.self", 1),),
            0.9,
            0.5,
            1.0,
            0.95,
            True,
            12,
            True,
            {"encoder.0.self head 1": 0.5},
        ),
    ]
    return {f"{type(result).__name__} {i}": result for i, result in enumerate(examples)}


MADE = results()


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)


@pytest.mark.parametrize("name", MADE)
def test_a_result_is_one_page_a_picture_json_and_lines(name: str, tmp_path: Path) -> None:
    result = MADE[name]
    result.to_html(tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    page = Page(text)
    assert [tag for tag, _ in page.tags].count("svg") == 1
    assert not {"script", "link", "iframe", "object", "foreignobject"} & {
        tag for tag, _ in page.tags
    }
    for tag, attributes in page.tags:
        for key, value in attributes.items():
            assert not key.startswith("on")
            assert (
                key == "xmlns"
                or "//" not in (value or "")
                or (value or "").startswith("data:image/png")
            ), (tag, key)
    ElementTree.fromstring(text[text.index("<svg") : text.index("</svg>") + 6])
    assert "url(" not in text
    assert "prefers-color-scheme: dark" in text
    assert result.note in " ".join(page.words)
    result.to_png(tmp_path / "picture.png")
    with Image.open(tmp_path / "picture.png") as picture:
        assert min(picture.size) > 20
        assert len(picture.convert("RGB").getcolors(1 << 24)) > 4
    content = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert content["kind"] == type(result).__name__
    assert content["title"] == result.title
    assert isinstance(result.numpy(), np.ndarray)
    assert all(len(line) <= 100 for line in result.lines(100)), max(result.lines(100), key=len)
    assert str(result).isprintable() or "\x1b" not in str(result)


def test_text_is_only_ever_text(tmp_path: Path) -> None:
    weights = np.full((1, 2, 2), 0.5)
    result = AttentionMap(
        EVIL, (0,), (EVIL, '"><img src=x onerror=y>'), (EVIL, "&amp;"), weights=weights
    )
    result.to_html(tmp_path / "page.html")
    page = Page((tmp_path / "page.html").read_text())
    assert not {"script", "img"} & {tag for tag, _ in page.tags}
    assert EVIL in page.words
    assert "&amp;" in page.words
    assert any(
        attributes.get("aria-label", "").startswith(EVIL)
        for tag, attributes in page.tags
        if tag == "svg"
    )  # type: ignore[union-attr]


def test_json_holds_the_very_numbers() -> None:
    run = translator().look(TEXT, target=TARGET)
    view = run.attention("encoder.1.self", heads=[2])
    again = np.array(json.loads(json.dumps(view.to_dict()))["weights"], dtype=np.float32)
    assert (again == run.weights("encoder.1.self", heads=[2])).all()


def test_colours_follow_the_value_and_can_be_told_apart_in_grey() -> None:
    painted = drawing.colours(np.linspace(0, 1, 50)).astype(float)
    grey = painted @ [0.299, 0.587, 0.114]
    # From white to dark blue, as in the studio.
    assert (np.diff(grey) < 0).all()
    assert drawing.code(drawing.colours(np.array([0.0]), most=1.0)[0]) == "#f7fbff"
    assert drawing.code(drawing.colours(np.array([2.0]), most=1.0)[0]) == "#08306b"
    both = drawing.colours(np.array([-1.0, 0.0, 1.0]), signed=True)
    assert both[0][0] > both[0][2]
    assert both[2][2] > both[2][0]
    assert (both[1] == both[1][0]).all()
    assert palette.over(drawing.colours(np.array([1.0]))[0]) == "#ffffff"
    assert palette.over(drawing.colours(np.array([0.0]), most=1.0)[0]) == "#000000"


def test_numbers_stand_above_their_columns_and_words_are_turned() -> None:
    values = np.ones((1, 2))
    names = {
        upright: drawing.heat(values, ["embedded"], columns)
        for upright, columns in ((False, ["0", "1"]), (True, ["street", "it"]))
    }
    for upright, scene in names.items():
        marks = [mark for mark in scene.marks if isinstance(mark, drawing.Text)]
        assert [mark.turn == 90 for mark in marks[1:3]] == [upright, upright]
        # In DejaVu Sans of 12 pixels "embedded" is 64.2 wide; it ends at the mark.
        assert marks[0].x >= 64.2


def test_a_large_map_is_one_image() -> None:
    values = np.random.default_rng(0).random((300, 300))
    names = [str(i) for i in range(300)]
    text = drawing.svg(drawing.heat(values, names, names), "large")
    assert text.count("<rect") == 0
    assert len(text) < 500_000
    pixels = np.random.default_rng(1).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    with Image.open(BytesIO(marks.image(pixels))) as picture:
        assert (np.asarray(picture) == pixels).all()


def test_a_terminal_gets_shades_within_its_width() -> None:
    weights = np.eye(30) * 0.8 + 0.2 / 30
    names = [f"▁word{'x' * (i % 12)}" for i in range(29)] + ["東京都東京都"]
    for width in (60, 100):
        lines = terminal.heat(weights, names, names, width=width)
        assert max(sum(2 if ord(c) > 0x2E80 else 1 for c in line) for line in lines) <= width
        assert sum("█" in line for line in lines) >= 30
        assert not re.search("[\x00-\x1f\x7f]", "".join(lines))
    many = terminal.by_head(["encoder.0.self"], np.linspace(-1, 1, 40)[None], "+.3f", width=100)
    assert max(map(len, many)) <= 100
    assert len(re.findall(r"[+-]\d\.\d{3}", "\n".join(many))) == 40
    assert terminal.fitted("東京都", 4) == "東 …"
    assert terminal.fitted("ab", 4) == "ab  "


def test_pictures_without_pillow_say_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    with pytest.raises(SettingError, match="pip install"):
        MADE["Alignment 2"].to_png(tmp_path / "x.png")


def test_pictures_without_fonts_are_spelt_plainly(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(png_files, "FONTS", ())
    AttentionMap(
        "x", (0,), ("müde", "→"), ("Straße", "東"), weights=np.full((1, 2, 2), 0.5)
    ).to_png(tmp_path / "x.png")
    assert png_files._in_ascii("müde → Straße") == "mude -> Strasse"


@pytest.mark.parametrize("token", ["house", "▁house", "Ġhouse", "house</w>"])
def test_a_word_is_shown_without_its_tokenizers_marks(token: str) -> None:
    assert drawing.shown(token) == "house"


def test_tokens_without_a_form_are_drawn(tmp_path: Path) -> None:
    """Parts of a letter and control codes, which fonts refuse."""
    names = ["\x00", "a\x1b", "\ud83d", "▁word"]
    values = np.eye(4)
    drawing.write_png(tmp_path / "a.png", drawing.heat(values, names, names))
    drawing.write_page(
        tmp_path / "a.html", "x", drawing.svg(drawing.heat(values, names, names), "")
    )
    assert [drawing.shown(name) for name in names] == ["�", "a�", "�", "word"]
