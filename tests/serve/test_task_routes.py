"""A route for every task of the table, and files that come as their contents."""

from __future__ import annotations

import base64
import copy
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

import regard
from looked import png, tokenizer, wav
from regard.builder import build
from regard.data.audio import read_wav_and_rate
from regard.data.generated.environments import episodes
from regard.data.trajectories import write_trajectories
from regard.evaluation.answers import of_method
from regard.evaluation.task import Task
from regard.evaluation.tasks import TASKS
from regard.families.presets import preset
from regard.models import SpeechSynthesizer
from regard.models.text_encoder import TextEncoder
from regard.serve.requests import Limits
from regard.serve.task_routes import task_endpoints
from serving import Served, served, trained

ASKED: dict[str, tuple[str, dict[str, Any]]] = {
    "classify": ("classifier", {"input": ["The dog sees the cat.", "owl\thears"], "top": 1}),
    "tag": ("tagger", {"input": "The dog sees."}),
    "entities": ("tagger", {"input": "The dog sees."}),
    "embed": ("embedder", {"input": ["The dog sees."]}),
    "generate": ("gpt2", {"input": ["The dog"]}),
    "translate": ("demo", {"input": ["The cat sat on the mat."]}),
}


def ask(server: Served, method: str, **asked: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/{method}", json=asked, timeout=60)


def test_every_task_that_can_be_asked_has_a_route() -> None:
    methods = {task.method for task in TASKS.values() if task.answer is not None}
    paths = {endpoint.path for endpoint in task_endpoints()}
    assert paths == {f"/v1/{method}" for method in methods} | {"/classify"}
    assert "/v1/detect" in paths


class Shouting(TextEncoder):
    """A model from outside the package, with a task that no other has."""

    @property
    def tasks(self) -> list[str]:
        return [*super().tasks, "shout"]

    def shout(self, texts: list[str], *, truncation: bool = False) -> list[str]:
        return [text.upper() for text in texts]


def test_a_task_from_outside_has_its_route(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row of the table is all: the route, its fields, its errors, and the document."""
    shout = Task(method="shout", answer=of_method("shout"), options=("truncation",))
    monkeypatch.setitem(TASKS, "shout", shout)
    model = copy.copy(server.model("classifier"))
    model.__class__ = Shouting
    with served({"loud": model, "demo": server.model("demo")}) as running:
        answer = ask(running, "shout", model="loud", input=["a cat", "a mat"]).json()
        assert [one["answer"] for one in answer["data"]] == ["A CAT", "A MAT"]
        assert answer["task"] == "shout"
        refused = ask(running, "shout", model="demo", input="a cat")
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == "model"
        assert ask(running, "shout", model="loud", input="a", top=2).status_code == 400
        document = httpx.get(f"{running.url}/openapi.json").json()
        assert "/v1/shout" in document["paths"]
        assert "truncation" in document["components"]["schemas"]["ShoutRequest"]["properties"]


def test_objects_in_an_image_are_detected(tmp_path: Path) -> None:
    """Detection has no line of its own in the server."""
    model = trained(("detr",), tmp_path)["detr"]
    [scene, *_] = sorted((tmp_path / "data").rglob("*.png"))
    picture = scene.read_bytes()
    with served({"detr": model}) as running:
        sent = base64.b64encode(picture).decode()
        [one] = ask(running, "detect", model="detr", input=sent).json()["data"]
        check_alike(one["answer"], regard.predict(model, [str(scene)], "detect")[0].answer)
        assert ask(running, "detect", model="detr", input="no image").status_code == 400


@pytest.mark.thorough
def test_a_clip_is_classified(tmp_path: Path) -> None:
    model = trained(("timesformer",), tmp_path)["timesformer"]
    [first, *others] = map(Image.open, sorted((tmp_path / "data/clips").rglob("*.png"))[:4])
    clip = tmp_path / "clip.gif"
    first.save(clip, save_all=True, append_images=others)
    with served({"timesformer": model}) as running:
        sent = base64.b64encode(clip.read_bytes()).decode()
        [one] = ask(running, "classify", input=sent).json()["data"]
        check_alike(one["answer"], regard.predict(model, [str(clip)])[0].answer)


def test_a_text_is_spoken() -> None:
    words = tokenizer()
    description: Any = preset("fastspeech2:tiny", len(words), d_model=16, d_ff=16, heads=2)
    model = SpeechSynthesizer(build(description), description, words)
    with served({"speaker": model}, limits=Limits(max_tokens=50)) as running:
        [one] = ask(running, "speak", input="the dog sees").json()["data"]
        kind, _, sound = one["answer"]["sound"].partition(",")
        assert kind == "data:audio/wav;base64"
        samples, rate = read_wav_and_rate(base64.b64decode(sound))
        assert len(samples) == pytest.approx(one["answer"]["seconds"] * rate, rel=0.2)
        refused = ask(running, "speak", input="dog " * 51)
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == "input"


def check_alike(one: Any, other: Any) -> None:
    """Equal, numbers up to what a batch of another size changes."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for name in one:
            check_alike(one[name], other[name])
    elif isinstance(one, list):
        assert len(one) == len(other)
        for part, wanted in zip(one, other, strict=True):
            check_alike(part, wanted)
    else:
        assert one == (pytest.approx(other, abs=1e-5) if isinstance(other, float) else other)


@pytest.mark.parametrize("method", ASKED)
def test_an_answer_is_that_of_predict(server: Served, method: str) -> None:
    name, asked = ASKED[method]
    answer = ask(server, method, model=name, **asked).json()
    inputs = asked["input"] if isinstance(asked["input"], list) else [asked["input"]]
    options = {option: value for option, value in asked.items() if option != "input"}
    wanted = regard.predict(server.model(name), inputs, method, **options)
    assert [one["index"] for one in answer["data"]] == [*range(len(inputs))]
    for one, prediction in zip(answer["data"], wanted, strict=True):
        check_alike(one["answer"], prediction.answer)
    assert answer["usage"]["prompt_tokens"] > 0
    assert answer["task"] == method


def test_classes_come_in_the_order_of_the_model_too(server: Served) -> None:
    answer = ask(server, "classify", model="classifier", input="The dog").json()
    [one] = answer["data"]
    labels = server.model("classifier").labels
    assert one["probs"] == [one["answer"][label] for label in labels]
    assert one["num_classes"] == len(labels)
    assert one["label"] == max(labels, key=one["answer"].__getitem__)
    assert ask(server, "classify", model="classifier", input=[]).json()["data"] == []


def test_files_come_as_their_contents(server: Served) -> None:
    picture = base64.b64encode(png()).decode()
    for sent in (picture, f"data:image/png;base64,{picture}"):
        [one] = ask(server, "classify", model="vit", input=[sent]).json()["data"]
        assert one["answer"] == pytest.approx(server.model("vit").classify(png()))
    sound = base64.b64encode(wav(1.0)).decode()
    [heard] = ask(server, "transcribe", model="wav2vec2", input=sound).json()["data"]
    assert heard["answer"] == server.model("wav2vec2").transcribe(wav(1.0))


def test_a_series_comes_as_the_text_of_its_file(server: Served, tmp_path: Path) -> None:
    rows = [f"{i % 7},{i % 5}\n" for i in range(40)]
    text = "load,heat\n" + "".join(rows)
    (tmp_path / "series.csv").write_text(text)
    [one] = ask(server, "forecast", model="patchtst", input=text).json()["data"]
    wanted = server.model("patchtst").forecast(str(tmp_path / "series.csv"))
    assert one["answer"]["columns"] == ["load", "heat"]
    for row, values in zip(one["answer"]["forecast"], wanted.tolist(), strict=True):
        assert row == pytest.approx(values)


def test_an_episode_comes_as_the_bytes_of_its_file(server: Served, tmp_path: Path) -> None:
    path = tmp_path / "episode.npz"
    write_trajectories(path, episodes("cartpole", 1, seed=5))
    text = base64.b64encode(path.read_bytes()).decode()
    [one] = ask(server, "act", model="policy", input=text).json()["data"]
    assert one["answer"] == server.model("policy").act(path)
    # A few kilobytes, of which 32 megabytes would come.
    np.savez_compressed(path, obs=np.zeros((1 << 21, 4), np.float32))
    text = base64.b64encode(path.read_bytes()).decode()
    response = ask(server, "act", model="policy", input=text)
    assert response.status_code == 400
    assert "too large" in response.text


READERS = [
    ("act", "policy"),
    ("forecast", "patchtst"),
    ("classify", "vit"),
    ("transcribe", "whisper"),
    ("classify", "classifier"),
]


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "series.csv", "../series.csv", "file:///etc/passwd"]
)
@pytest.mark.parametrize(("method", "model"), READERS)
def test_no_text_is_taken_for_a_path(server: Served, method: str, model: str, path: str) -> None:
    response = ask(server, method, model=model, input=path)
    if model != "classifier":  # to which it is a text like any other
        assert response.status_code == 400
    assert "root:" not in response.text
    assert "/tmp" not in response.text


@pytest.mark.parametrize(
    "files", [{"../nodes.tsv": "a"}, {"/etc/passwd": "a"}, {"a.py": "a"}, {"nodes.tsv": "a"}, {}]
)
def test_files_of_a_folder_have_plain_names(server: Served, files: dict[str, str]) -> None:
    response = ask(server, "forecast", model="patchtst", input=files)
    assert response.status_code == 400
    assert "/tmp" not in response.text


MISTAKES: dict[str, tuple[str, dict[str, Any], str]] = {
    "no head": ("tag", {"model": "classifier", "input": "a"}, "model"),
    "empty": ("classify", {"model": "classifier", "input": ""}, "input"),
    "no input": ("classify", {"model": "classifier"}, "input"),
    "too long": ("classify", {"model": "classifier", "input": "dog " * 500}, "input"),
    "unknown": ("classify", {"model": "classifier", "input": "a", "blub": 1}, "blub"),
    "no top": ("classify", {"model": "classifier", "input": "a", "top": 0}, "top"),
    "many": ("classify", {"model": "classifier", "input": ["a"] * 500}, "input"),
    "option": ("tag", {"model": "tagger", "input": "a", "top": 1}, "top"),
    "number": ("tag", {"model": "tagger", "input": 3}, "input"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_names_its_field(server: Served, name: str) -> None:
    method, asked, field = MISTAKES[name]
    response = ask(server, method, **asked)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == field
