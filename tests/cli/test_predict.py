"""`regard predict`: a classifier, an image or a recording on the command line."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import HTTPServer, SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

import looked
import regard
from command_line import Command
from looked import png, save_sensing, wav
from regard import build, spec
from regard.evaluation.prediction import predict
from regard.models.memory_network import MemoryNetworkModel
from regard.system.errors import ModelError

SIZES: dict[str, Any] = {
    "d_model": 16, "d_ff": 16, "heads": 2, "layers": 1, "steps": 2, "device": "cpu", "threads": 1,
    "learning_rate": 1e-3, "context": 64,
}  # fmt: skip
REVIEWS = "".join(f"a good film {i}\tgood\na bad film {i}\tbad\n" for i in range(12))
TAGGED = "Ada B-PER\nsleeps O\n\nBob B-PER\nruns O\n\n" * 6
QUESTION = {"question": "Who sleeps?", "context": "Ada sleeps.", "answer_start": 0, "text": "Ada"}
QUESTIONS = 12 * (json.dumps(QUESTION) + "\n")


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models of every kind of text head, and of images and sound, each in a folder of its name."""
    folder = tmp_path_factory.mktemp("models")
    data = {"classify": REVIEWS, "tag": TAGGED, "answer": QUESTIONS, "masked": REVIEWS * 20}
    suffixes = {"answer": "jsonl", "tag": "conll", "masked": "txt"}
    for objective, content in data.items():
        file = folder / f"{objective}.{suffixes.get(objective, 'tsv')}"
        file.write_text(content)
        settings = {**SIZES, "model": "bert:tiny", "objective": objective, "vocabulary": 400}
        regard.train(settings, text=str(file), out=folder / objective)
    for name in ("vit", "clip", "wav2vec2", "whisper"):
        save_sensing(name, folder / name)
    (folder / "cat.png").write_bytes(png())
    (folder / "speech.wav").write_bytes(wav())
    return folder


def answers(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


def test_a_fine_tuned_classifier_answers(command: Command, places: Path, tmp_path: Path) -> None:
    done = command("predict", places / "classify", "a good film", "a bad film", "--json")
    assert done.code == 0, done.err
    first, second = answers(done.out)
    assert first["input"] == "a good film"
    assert first["task"] == "classify"
    assert sum(first["answer"].values()) == pytest.approx(1, abs=1e-5)
    assert set(second["answer"]) == {"good", "bad"}
    # The same from a file, and from standard input, for people.
    (tmp_path / "in.txt").write_text("a good film\n\na bad film\n")
    lines = command("predict", places / "classify", tmp_path / "in.txt").out.splitlines()
    assert [line.split("\t")[0] for line in lines] == ["a good film", "", "a bad film"]
    assert command("predict", places / "classify", text="a good film\n").out == lines[0] + "\n"
    done = command("evaluate", places / "classify", "--data", places / "classify.tsv", "--json")
    assert "accuracy" in done.out, done.err


@pytest.mark.parametrize(
    ("name", "inputs", "task", "form"),
    [
        ("tag", ["Ada sleeps"], "tag", list),
        ("tag", ["Ada sleeps", "--task", "entities"], "entities", list),
        ("answer", ["Who sleeps?\tAda sleeps."], "answer", dict),
        ("answer", ["Who sleeps?", "--context", "Bob runs. Ada sleeps."], "answer", dict),
        ("masked", ["a good [MASK]"], "fill", dict),
        ("masked", ["a good film", "--task", "embed"], "embed", list),
        ("vit", ["cat.png"], "classify", dict),
        ("vit", ["cat.png", "--task", "embed"], "embed", list),
        ("wav2vec2", ["speech.wav"], "transcribe", str),
        ("whisper", ["speech.wav"], "transcribe", str),
        ("clip", ["cat.png"], "embed_image", list),
    ],
)
def test_every_model_has_an_answer(
    name: str,
    inputs: list[str],
    task: str,
    form: type,
    command: Command,
    places: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(places)
    if name == "wav2vec2":
        letters = {letter: i for i, letter in enumerate(["<pad>", "|", *"abcdefghi"])}
        (places / name / "vocab.json").write_text(json.dumps(letters))
    done = command("predict", name, *inputs, "--json")
    assert done.code == 0, done.err
    [answer] = answers(done.out)
    assert answer["task"] == task
    assert isinstance(answer["answer"], form)
    assert "\t" in command("predict", name, *inputs).out


def test_a_translator_and_its_options(trained: Path) -> None:
    model = regard.load(trained)
    [prediction] = predict(model, ["A dog sleeps."])
    assert prediction.task == "translate"
    assert prediction.answer == model.translate("A dog sleeps.")
    with pytest.raises(ModelError, match="it can: translate"):
        regard.predict(model, "a", "classify")


def test_what_is_refused(command: Command, places: Path, trained: Path) -> None:
    command("predict", places / "vit", "no.png").refused("no.png")
    command("predict", places / "answer", "Who?").refused("--context")
    command("predict", places / "masked", "a", "--task", "fil").refused("did you mean 'fill'")
    command("predict", places / "classify", "a", "--task", "tag").refused("it can: embed, classify")
    command("predict", places / "classify", terminal=True).refused("there is no input")
    command("translate", places / "classify", text="a\n").refused("regard predict")


def test_look_takes_pictures_and_sound(command: Command, places: Path) -> None:
    done = command("look", places / "vit", places / "cat.png", "--layer", "1")
    assert done.code == 0, done.err
    assert done.out.startswith("encoder.1.self")
    done = command("look", places / "wav2vec2", places / "speech.wav")
    assert done.code == 0, done.err
    command("look", places / "vit", "no.png").refused("no.png")


@pytest.fixture
def hub(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A hub on this machine with one model, under the name that is returned."""

    class Handler(SimpleHTTPRequestHandler):
        def translate_path(self, path: str) -> str:
            return str(trained / path.removeprefix("/someone/tiny/resolve/main/"))

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_address[1]}")
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    yield "someone/tiny"
    server.shutdown()
    server.server_close()


def test_hub_names_are_fetched_when_that_is_asked_for(
    command: Command, hub: str, trained: Path
) -> None:
    text = "A dog sleeps.\n"
    command("translate", hub, text=text).refused("--download")
    done = command("translate", hub, "--download", text=text)
    assert done.code == 0, done.err
    assert done.out == command("translate", trained, text=text).out
    assert command("predict", hub, "A dog.", "--download").code == 0
    assert command("look", hub, "A dog.", "--download").code == 0


def test_a_story_ends_with_its_question(command: Command, tmp_path: Path) -> None:
    """As `look` and data files have it; story and question apart are taken as before."""
    description = spec.MemoryNetwork(8, len(looked.UNFRAMED))
    model = MemoryNetworkModel(build(description), description, looked.UNFRAMED)
    folder = model.save(tmp_path / "memory")
    whole = command("predict", folder, "The dog sees. A cat sleeps. Who sleeps?", "--json")
    apart = command("predict", folder, "Who sleeps?\tThe dog sees. A cat sleeps.", "--json")
    assert whole.code == 0, whole.err
    assert _answers(whole.out) == _answers(apart.out)
    command("predict", folder, "Who sleeps?").refused("--context")


def _answers(line: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(line)
    del content["input"]
    return content


def test_a_blank_argument_is_refused(command: Command, demo: Path) -> None:
    command("predict", demo, "He sings.", " ").refused("text 2 of 2 is empty")
