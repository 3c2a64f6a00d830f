"""Traps 5 and 6: alignment by the wrong layer, maps without labels, even attention as a wall."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from command_line import Command
from regard.look import drawing, terminal
from regard.look.attention_alignment import mutual_information

TEXT = "The dog sees a cat."


def test_the_alignment_is_that_of_the_layer_that_aligns(command: Command, demo: Path) -> None:
    done = command("look", demo, TEXT, "--what", "alignment")
    assert done.code == 0, done.err
    assert "decoder layer 1, which aligns best of 2" in done.out
    for target, source in {"Hund": "dog", "sieht": "sees", "Katze": "cat"}.items():
        assert re.search(rf"^{target} .*→ {source} [01]\.", done.out, re.M), done.out
    asked = command("look", demo, TEXT, "--what", "alignment", "--layer", "0")
    assert asked.out.startswith("alignment by decoder layer 0, heads")


def test_what_aligns_is_sharp_and_different_from_word_to_word() -> None:
    even = np.full((4, 4), 0.25)
    all_on_the_end = np.tile([0.0, 0.0, 0.0, 1.0], (4, 1))
    assert mutual_information(even) == pytest.approx(0)
    assert mutual_information(all_on_the_end) == pytest.approx(0)
    assert mutual_information(np.eye(4)) == pytest.approx(np.log(4))


def test_pictures_of_all_heads_name_their_tokens(
    command: Command, demo: Path, tmp_path: Path
) -> None:
    page = tmp_path / "a.html"
    done = command("look", demo, TEXT, "--of", "cross", "--html", page, "--png", tmp_path / "a.png")
    assert done.code == 0, done.err
    html = page.read_text()
    for word in ("dog", "sees", "Hund", "Katze"):
        assert html.count(f">{word}</text>") >= 4, word  # once for each head
    assert "system-ui" in html


def test_long_texts_have_as_many_labels_as_there_is_room_for() -> None:
    names = [f"t{i}" for i in range(300)]
    scene = drawing.grid([("head 0", np.full((300, 300), 1 / 300))], names, names)
    labels = [mark for mark in scene.marks if isinstance(mark, drawing.Text) and not mark.strong]
    assert 20 < len(labels) < 100


def test_the_beam_page_opens_on_the_answer(command: Command, demo: Path, tmp_path: Path) -> None:
    page = tmp_path / "b.html"
    assert command("look", demo, TEXT, "--what", "beam", "--html", page).code == 0
    places = re.findall(r'<text x="([\d.]+)" y="([\d.]+)"[^>]*>([^<]+)</text>', page.read_text())
    height = {text.split()[0]: float(y) for _, y, text in reversed(places)}
    assert height["start"] < 60
    assert height["Der"] == height["start"]


def test_even_attention_is_pale_and_a_link_is_dark() -> None:
    even = np.full((6, 6), 1 / 6)
    shades = drawing.attention_shades(even)
    assert shades.max() == pytest.approx(drawing.EVEN_SHADE)
    assert drawing.attention_shades(np.eye(6) + 1e-9).max() == pytest.approx(1.0)
    # As large as even among the places that a causal row can see.
    causal = np.tril(np.ones((6, 6))) / np.arange(1, 7)[:, None]
    assert drawing.attention_shades(causal)[3:].max() == pytest.approx(drawing.EVEN_SHADE)
    # In the terminal it is blank, as links it is nothing.
    names = list("abcdef")
    assert "░" not in "\n".join(terminal.heat(even, names, names, attention=True)[:-1])
    lines = [m for m in drawing.links(even, names, names).marks if isinstance(m, drawing.Line)]
    assert lines == []
    mostly = even.copy()
    mostly[0] = [0.5, 0.18, 0.17, 0.05, 0.05, 0.05]
    links = [m for m in drawing.links(mostly, names, names).marks if isinstance(m, drawing.Line)]
    assert [mark.opacity for mark in links][1:] == [drawing.FAINT, drawing.FAINT]
    assert links[0].opacity > 0.5
