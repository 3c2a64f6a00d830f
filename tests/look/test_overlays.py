"""What heads see, on the image, the recording, the series and the graph: pictures and numbers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import regard
from looked import png, save_sensing, wav
from regard.cli.look import command
from regard.data.audio import RATE, frequency_ticks, log_mel
from regard.look import attribution, ctc_alignment, drawing, look, rollout
from regard.look.backdrop import (
    SOUND_HEIGHT,
    GraphBackdrop,
    ImageBackdrop,
    SeriesBackdrop,
    SoundBackdrop,
    spring_layout,
)
from regard.look.drawing import Panel
from regard.models.inputs.sound import spectrogram_image

QUICK: dict[str, Any] = {
    "steps": 1, "warmup_steps": 1, "validate_every": 1, "save_every": 1, "schedule": "constant",
    "learning_rate": 1e-3, "threads": 1, "device": "cpu", "d_model": 8, "d_ff": 8, "heads": 2,
    "layers": 2,
}  # fmt: skip


def painted(scene: drawing.Scene) -> Any:
    """The first image of a picture."""
    return next(mark for mark in scene.marks if isinstance(mark, drawing.Pixels)).colours


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str]]:
    """A model folder and an input of each kind."""
    pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("overlays")
    (folder / "a.png").write_bytes(png())
    (folder / "a.wav").write_bytes(wav(rate=8000))
    series = folder / "load.csv"
    rows = [f"{np.sin(i / 3):.4f},{np.cos(i / 3):.4f}\n" for i in range(120)]
    series.write_text("load,heat\n" + "".join(rows))
    graph = folder / "graph"
    graph.mkdir()
    splits = ["train", "train", "valid", "test"] * 4
    nodes = [f"{i}\t{'ab'[i % 2]}\t{split}\t{i % 3}\n" for i, split in enumerate(splits)]
    (graph / "nodes.tsv").write_text("".join(nodes))
    (graph / "edges.tsv").write_text("".join(f"{i}\t{(i + 1) % 16}\n" for i in range(16)))
    forecaster = QUICK | {
        "model": "patchtst:tiny", "series": str(series), "horizon": 5, "context": 24, "patch": 6,
        "stride": 3,
    }  # fmt: skip
    trained = {
        "series": regard.train(forecaster, out=folder / "forecaster").folder,
        "graph": regard.train(
            QUICK | {"model": "graph:tiny", "graph": str(graph)}, out=folder / "nodes"
        ).folder,
    }
    opened = {name: save_sensing(name, folder / name) for name in ("vit", "wav2vec2", "whisper")}
    return {
        "series": (str(trained["series"]), str(series)),
        "graph": (str(trained["graph"]), f"{graph}:3"),
        "vit": (str(opened["vit"]), str(folder / "a.png")),
        "wav2vec2": (str(opened["wav2vec2"]), str(folder / "a.wav")),
        "whisper": (str(opened["whisper"]), str(folder / "a.wav")),
    }


@pytest.mark.parametrize("kind", ["series", "graph", "vit", "wav2vec2", "whisper"])
@pytest.mark.parametrize("what", ["attention", "rollout", "attribution"])
def test_every_kind_is_drawn_on_its_input(
    kind: str, what: str, inputs: dict[str, tuple[str, str]], tmp_path: Path
) -> None:
    folder, source = inputs[kind]
    files = ["--html", str(tmp_path / "a.html"), "--png", str(tmp_path / "a.png")]
    done = CliRunner().invoke(
        command, [folder, source, "--what", what, "--json", *files], catch_exceptions=False
    )
    result = json.loads(done.stdout.splitlines()[-1])
    assert "backdrop" not in result  # numbers only
    assert (tmp_path / "a.png").stat().st_size > 2000
    page = (tmp_path / "a.html").read_text()
    shown = {"series": "forecast", "graph": "<circle", "vit": "<image"}.get(kind, " s</text>")
    assert shown in page
    assert "<script" not in page


@pytest.mark.parametrize("kind", ["series", "graph", "vit", "wav2vec2", "whisper"])
def test_an_input_may_be_a_path_object(kind: str, inputs: dict[str, tuple[str, str]]) -> None:
    folder, source = inputs[kind]
    model = regard.load(folder, device="cpu")
    named = model.look(source).model_inputs
    for run in (model.look(Path(source)), look(model, Path(source)), look(model, source)):
        torch.testing.assert_close(run.model_inputs.inputs, named.inputs)
        assert run.source == named.input_tokens


def test_python_takes_the_path_and_notebooks_show_the_picture(
    inputs: dict[str, tuple[str, str]],
) -> None:
    folder, source = inputs["vit"]
    model: Any = regard.load(folder, device="cpu")
    run = model.look(source)
    backdrop = run.model_inputs.backdrop
    assert isinstance(backdrop, ImageBackdrop)
    best = next(iter(model.classify(source)))
    assert backdrop.answer.startswith(best)
    assert best in run._repr_html_()
    assert "<image" in rollout(run)._repr_html_()


def test_the_brightest_patch_is_the_one_that_is_looked_at_most() -> None:
    picture = np.full((30, 30, 3), 200, np.uint8)  # two pixels on each side are in no patch
    weights = np.full(50, 0.5 / 49)
    weights[1 + 7 * 2 + 3] = 0.5  # row 2, column 3
    image = painted(ImageBackdrop(picture, 4, 1).overlay(Panel("", weights)))
    assert image.shape == (28, 28, 3)
    assert image[8:12, 12:16].min() > 170
    assert image[0, 0].max() < 120
    assert image[8:12, 12:16].min() > 1.5 * image[0, 0].max()
    even = painted(ImageBackdrop(picture, 4, 1).overlay(Panel("", np.full(50, 0.02))))
    assert even.max() < 120  # looked at everywhere alike: nothing stands out
    assert (even == even[0, 0]).all()


def test_steps_get_the_mean_of_their_patches() -> None:
    spans = ((0, 4), (2, 6))
    backdrop = SeriesBackdrop(np.arange(6.0), spans, "load", np.array([6.0]))
    per_step = backdrop._per_step(np.array([0.2, 0.8]))
    np.testing.assert_allclose(per_step, [0.2, 0.2, 0.5, 0.5, 0.8, 0.8])
    missing = replace(backdrop, values=np.array([0.0, np.nan, 2, 3, 4, 5]))
    lines = [mark for mark in missing.overlay(Panel("", np.array([0.2, 0.8]))).marks
             if isinstance(mark, drawing.Line) and mark.width == 1.6]  # fmt: skip
    assert len(lines) == 4  # three within the window, one to the forecast


def test_the_forecast_that_is_drawn_is_in_the_units_of_the_file(
    inputs: dict[str, tuple[str, str]],
) -> None:
    folder, source = inputs["series"]
    model: Any = regard.load(folder, device="cpu")
    backdrop = model.look(source).model_inputs.backdrop
    assert isinstance(backdrop, SeriesBackdrop)
    np.testing.assert_allclose(backdrop.forecast, model.forecast(source)[:, 0], rtol=1e-4)
    expected = [np.sin(i / 3) for i in range(96, 120)]
    np.testing.assert_allclose(backdrop.values, expected, atol=1e-3)
    assert len(backdrop.spans) == len(model.look(source).source)


def test_a_node_is_drawn_with_those_that_it_sees(inputs: dict[str, tuple[str, str]]) -> None:
    folder, source = inputs["graph"]
    model: Any = regard.load(folder, device="cpu")
    run = model.look(source)
    backdrop = run.model_inputs.backdrop
    assert isinstance(backdrop, GraphBackdrop)
    assert backdrop.names[backdrop.node or 0].startswith("3")
    # Two layers reach two steps in a ring.
    assert sorted(name.split()[0] for name in backdrop.names) == ["1", "2", "3", "4", "5"]
    scores = model.classify(source.rpartition(":")[0])
    assert backdrop.answer.startswith(next(iter(scores[3])))
    seen = attribution(model, source)
    assert seen.values.shape == (1, 5)
    one, two = (spring_layout(5, backdrop.edges) for _ in range(2))
    assert (one == two).all()  # the same picture each time
    assert one.min() == 0.0
    assert one.max() == 1.0


def test_letters_are_aligned_with_their_frames(inputs: dict[str, tuple[str, str]]) -> None:
    folder, source = inputs["wav2vec2"]
    model: Any = regard.load(folder, device="cpu")
    run = model.look(source, ask=["logits"])
    frames = run.tensor("logits").shape[1]
    # A path of our own: b b _ a _ a a.
    names = {0: "<pad>", 1: "a", 2: "b"}
    path = [2, 2, 0, 1, 0, 1, 1] + [0] * (frames - 7)
    logits = torch.full((1, frames, run.tensor("logits").shape[-1]), -9.0)
    logits[0, torch.arange(frames), torch.tensor(path)] = 9.0
    run.probe.tensors["logits"] = logits
    result = ctc_alignment(run, names, 0)
    assert result.letters == ("b", "a", "a")
    assert result.spans == ((0, 2), (3, 4), (5, 7))
    assert result.probabilities.shape == (3, frames)
    assert (result.probabilities.sum(axis=1) > [1.9, 0.9, 1.9]).all()
    backdrop = run.model_inputs.backdrop
    assert isinstance(backdrop, SoundBackdrop)
    assert result.seconds == backdrop.seconds == 0.5


@pytest.mark.parametrize("mels", [40, 80, 128])
@pytest.mark.parametrize(("name", "hertz"), [("1 kHz", 1000), ("2 kHz", 2000), ("4 kHz", 4000)])
def test_a_tone_is_drawn_beside_its_frequency(mels: int, name: str, hertz: int) -> None:
    """The loudest row of a pure tone is the one that the axis names."""
    time = np.arange(RATE) / RATE
    picture = spectrogram_image(log_mel(np.sin(2 * np.pi * hertz * time), mels, seconds=1.0)[0])
    rows = picture.astype(np.float64).mean(axis=1)
    assert abs(frequency_ticks(mels)[name] * mels - 0.5 - rows.argmax()) < 1
    scene = SoundBackdrop(picture, 1.0).overlay(Panel("", np.ones(10)))
    (label,) = [
        mark for mark in scene.marks if isinstance(mark, drawing.Text) and mark.text == name
    ]
    drawn_row = mels * (1 - (label.y - 4) / SOUND_HEIGHT) - 0.5
    assert abs(drawn_row - rows.argmax()) < 1
