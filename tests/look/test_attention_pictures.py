"""Alignment by the right layer, labelled maps, attention relative to uniform."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import model_kinds as kinds
import regard
from command_line import Command
from regard.look import (
    Alignment,
    AttentionMap,
    Look,
    Rollout,
    alignment,
    backdrop,
    drawing,
    look,
    rollout,
)
from regard.look.alignments import mutual_information
from regard.look.drawing import palette, terminal

TEXT = "The dog sees a cat."


def test_the_alignment_is_that_of_the_layer_that_aligns(command: Command, demo: Path) -> None:
    done = command("look", demo, TEXT, "--what", "alignment")
    assert done.code == 0, done.err
    assert "decoder layer 1, which aligns best of 2" in done.out
    for target, source in {"Hund": "dog", "sieht": "sees", "Katze": "cat"}.items():
        assert re.search(rf"^{target} .*→ {source} [01]\.", done.out, re.M), done.out
    asked = command("look", demo, TEXT, "--what", "alignment", "--layer", "0")
    assert asked.out.startswith("cross-attention alignment, decoder layer 0, heads")


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
    done = command(
        "look", demo, TEXT, "--part", "cross", "--html", page, "--png", tmp_path / "a.png"
    )
    assert done.code == 0, done.err
    html = page.read_text()
    for word in (">dog", ">sees", "→ Hund", "→ Katze"):
        assert html.count(f"{word}</text>") >= 4, word  # once for each head
    assert "system-ui" in html


def test_long_texts_have_as_many_labels_as_there_is_room_for() -> None:
    names = [f"t{i}" for i in range(300)]
    even = np.full((300, 300), 1 / 300)
    scene = drawing.grid([drawing.Panel("head 0", even, even)], names, names)
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
    shades = drawing.attention_shades(even, relative=True)
    assert shades.max() == pytest.approx(palette.EVEN_SHADE)
    assert drawing.attention_shades(np.eye(6) + 1e-9, relative=True).max() == pytest.approx(1.0)
    # As large as even among the places that a causal row can see.
    causal = np.tril(np.ones((6, 6))) / np.arange(1, 7)[:, None]
    pale = drawing.attention_shades(causal, relative=True)[3:].max()
    assert pale == pytest.approx(palette.EVEN_SHADE)
    # In the terminal it is blank, as links it is nothing.
    names = list("abcdef")
    assert "░" not in "\n".join(terminal.heat(even, names, names, shades=shades)[:-1])
    lines = [
        m
        for m in drawing.links(drawing.Panel("", even), names, names).marks
        if isinstance(m, drawing.Line)
    ]
    assert lines == []
    mostly = even.copy()
    mostly[0] = [0.5, 0.18, 0.17, 0.05, 0.05, 0.05]
    links = [
        m
        for m in drawing.links(drawing.Panel("", mostly), names, names).marks
        if isinstance(m, drawing.Line)
    ]
    assert [mark.opacity for mark in links][1:] == [palette.FAINT, palette.FAINT]
    assert links[0].opacity == pytest.approx(0.5)


def test_a_weight_is_as_dark_as_it_is_large() -> None:
    weights = np.array([[1.0, 0.0, 0.0], [0.6, 0.4, 0.0]])
    np.testing.assert_array_equal(drawing.attention_shades(weights), weights)
    panel = drawing.Panel("", weights)
    assert panel.paint[0, 0].tolist() == drawing.colours(np.array(1.0), most=1.0).tolist()
    # Of long inputs all weights are small.
    many = np.full((1, palette.LONG + 1), 1 / (palette.LONG + 1))
    assert drawing.attention_shades(many).max() == pytest.approx(palette.EVEN_SHADE)
    assert drawing.attention_shades(many, relative=False).max() == pytest.approx(many.max())
    texts = [
        m.text
        for m in drawing.attention_heat(panel, "ab", "xyz").marks
        if isinstance(m, drawing.Text)
    ]
    assert {"0", "1"} <= set(texts)


# ------------------------------------------------------------------ even attention of every kind


EVEN_KINDS = (
    "translator", "gpt2", "bert", "longformer", "vit", "swin", "clip", "whisper", "wav2vec2",
    "patchtst", "time-series-transformer", "graph",
)  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


def recorded(kind: str, data: Path, factor: float) -> Look:
    """A recording of a tiny model of a kind whose queries are multiplied by a factor."""
    inputs = kinds.write_data(data)
    folder = data / "models" / kind
    if not folder.exists():
        kinds.train(kind, data, folder)
    model: Any = regard.load(folder, device="cpu")
    with torch.no_grad():
        for name, parameter in model.model.named_parameters():
            if ".project.qkv." in name:
                parameter[: len(parameter) // 3] *= factor
            elif ".project.q." in name or ".project.global_q." in name:
                parameter *= factor
            elif "bias.table" in name or "relative" in name:
                parameter *= 0.0
    source: Any = inputs[kinds.KINDS[kind][0]]
    if model.medium is not None:
        source = model.read_medium(Path(source).read_bytes())
    target = "low" if kind == "whisper" else None
    return look(model, source, target=target)


def pictures(run: Look) -> list[AttentionMap | Rollout | Alignment]:
    """Everything that draws the attention of a recording."""
    names = list(run.probe.attentions)
    drawn: list[AttentionMap | Rollout | Alignment] = [run.attention(name) for name in names]
    drawn += [run.attention(name, heads=[0]) for name in names]
    if not any("shifted" in name or len(run.labels(name)[0]) < 2 for name in names):
        drawn.append(rollout(run))
    if any(name.endswith(".cross") for name in names):
        drawn.append(alignment(run))
    return drawn


def strongest(scene: drawing.Scene) -> float:
    """How strong the strongest mark of attention is, from 0 to 1."""
    strengths = [0.0]
    for mark in scene.marks:
        match mark:
            case drawing.Line(colour=drawing.POSITIVE):
                strengths.append(mark.opacity)
            case drawing.Rect(colour=drawing.POSITIVE):  # a bar
                strengths.append(mark.height / backdrop.STRIP)
            case drawing.Circle():
                strengths.append((mark.radius - 4.0) / 7.0 if mark.colour != "ink" else 0.0)
            case _:
                pass
    return max(strengths)


@pytest.mark.parametrize("kind", EVEN_KINDS)
def test_even_attention_is_pale_on_every_input(kind: str, data: Path) -> None:
    for drawn in pictures(recorded(kind, data, 0.0)):
        picture = replace(drawn, relative=True)
        shades = picture.shades()
        assert shades.max() <= palette.EVEN_SHADE + 1e-3, picture.title
        assert strongest(picture.scene()) <= 0.2, picture.title


@pytest.mark.parametrize("kind", EVEN_KINDS)
def test_sharp_attention_is_strong_on_every_input(kind: str, data: Path) -> None:
    run = recorded(kind, data, 3000.0)
    shades = [run.attention(name).shades().max() for name in run.probe.attentions]
    assert max(shades) > 0.5
    if kind in ("graph", "patchtst", "whisper", "wav2vec2"):
        scenes = [run.attention(name).scene() for name in run.probe.attentions]
        assert max(map(strongest, scenes)) > 0.3


def test_even_is_over_all_keys_that_may_be_attended() -> None:
    """Softmax of large scores leaves zeros: they may be attended, and the rest is above even."""
    halves = np.array([[0.5, 0.5, 0.0, 0.0, 0.0, 0.0]])
    even = np.full((1, 6), 1 / 6)
    assert drawing.attention_shades(halves, even, relative=True)[0, 0] > 0.5
    assert drawing.is_clear(halves, even).tolist() == [[True, True] + [False] * 4]
    # Without a choice, nothing is chosen.
    one = np.ones((1, 1))
    assert drawing.attention_shades(one, one, relative=True)[0, 0] == pytest.approx(0.12)
    # The mean of rows that see different keys is against the mean of their even attention.
    causal = drawing.even_attention(np.tril(np.ones((6, 6))))
    mean = causal.mean(axis=0)
    shades = drawing.attention_shades(mean, mean, relative=True)
    np.testing.assert_allclose(shades, palette.EVEN_SHADE)


def test_even_rows_of_a_table_are_pale() -> None:
    """Steps that share a patch are one key, however many they are."""
    even = np.full((3, 4), 0.25)
    pale = drawing.colours(np.array(palette.EVEN_SHADE), most=1.0)
    spans = tuple((6 * i, 6 * i + 6) for i in range(4))
    series = backdrop.SeriesBackdrop(np.arange(24.0), spans, "load", np.zeros(3))
    sound = backdrop.SoundBackdrop(np.zeros((20, 40), np.uint8), 1.0)
    for drawn in (series, sound):
        scene = drawn.table(drawing.Panel("", even, even), ["+1", "+2", "+3"])
        cells = [m for m in scene.marks if isinstance(m, drawing.Pixels) and len(m.colours) == 3]
        assert len(cells) == 1
        assert (cells[0].colours == pale).all()
