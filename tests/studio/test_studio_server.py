"""The studio over HTTP: every view's numbers, and that the door lets nothing else in or out."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from looked import SUBJECTS, TEXT

pytest.importorskip("starlette")
pytest.importorskip("httpx")
from starlette.testclient import TestClient

from regard import look as looking
from regard.errors import DataError, SettingError
from regard.look.subject import Subject
from regard.model import EncoderDecoder
from regard.studio.server import ANY, LARGEST, WEB, application
from regard.studio.shelf import DEMO, Opened, Shelf
from regard.studio.views import VIEWS

TOKEN = "a-token"
HOSTILE = "<img src=x onerror=alert(1)>"


class Given(Shelf):
    """A shelf of models that are in memory."""

    def __init__(self, subjects: dict[str, Subject]) -> None:
        self.given = {name: Opened(subject) for name, subject in subjects.items()}

    def models(self) -> dict[str, Path]:
        return dict.fromkeys(self.given, Path())

    def runs(self) -> dict[str, Path]:
        return {}

    def model(self, name: str) -> Opened:
        return self.given[name]


def client(shelf: Shelf, **more: Any) -> TestClient:
    return TestClient(application(shelf, TOKEN), "http://127.0.0.1:8420", raise_server_exceptions=False, **more)


@pytest.fixture(scope="module")
def demo() -> Iterator[TestClient]:
    with client(Shelf([DEMO], device="cpu")) as opened:
        yield opened


def ask(studio: TestClient, view: str, expect: int = 200, **question: Any) -> Any:
    response = studio.post(f"/api/{view}", json=question, headers={"x-regard-token": TOKEN})
    assert response.status_code == expect, response.text
    return response.json()


# ------------------------------------------------------------------ the packaged model


def test_the_packaged_model_is_small_and_translates(demo: TestClient) -> None:
    assert sum(file.stat().st_size for file in DEMO.iterdir()) <= 640_000
    assert ask(demo, "shelf") == {"models": ["demo"], "runs": ["demo"]}
    tired = ask(demo, "look", model="demo", text="The dog does not enter the house because it is too tired.")
    empty = ask(demo, "look", model="demo", text="The dog does not enter the house because it is too empty.")
    assert tired["output"] == "Der Hund betritt das Haus nicht, weil er zu müde ist."
    assert empty["output"] == "Der Hund betritt das Haus nicht, weil es zu leer ist."
    described = ask(demo, "model", model="demo")
    assert described["translates"]
    assert described["stacks"] == {"encoder": 2, "decoder": 2}


# ------------------------------------------------------------------ numbers


@pytest.mark.parametrize("name", SUBJECTS)
def test_numbers_on_the_page_are_those_of_the_recorded_call(name: str) -> None:
    subject = SUBJECTS[name]()
    with client(Given({name: subject})) as studio:
        found = ask(studio, "look", model=name, text=TEXT)
        own = looking.look(subject, TEXT)
        assert list(found["attentions"]) == list(own.trace.attentions)
        for attention in own.trace.attentions:
            map = ask(studio, "attention", model=name, text=TEXT, name=attention)
            assert np.abs(np.array(map["weights"]) - own.weights(attention)).max() <= 1e-6
            assert (map["rows"], map["columns"]) == tuple(map_ for map_ in map_labels(own, attention))
            one = ask(studio, "attention", model=name, text=TEXT, name=attention, heads=[1], rows=[2, 0])
            assert np.abs(np.array(one["weights"]) - own.weights(attention, [2, 0], [1])).max() <= 1e-6


def map_labels(own: looking.Look, attention: str) -> tuple[list[str], list[str]]:
    rows, columns = own.labels(attention)
    return list(rows), list(columns)


@pytest.mark.parametrize(("name", "window"), [("translator", None), ("writer", None), ("window", 3)])
def test_weights_are_a_softmax_worked_out_by_hand(name: str, window: int | None) -> None:
    subject = SUBJECTS[name]()
    with client(Given({name: subject})) as studio:
        own = looking.look(subject, TEXT, ask=["*"])
        for attention, call in own.trace.attentions.items():
            q, k = call.q[0].double(), call.k[0].double().repeat_interleave(call.q.shape[1] // call.k.shape[1], dim=0)
            scores = q @ k.mT / q.shape[-1] ** 0.5
            t, s = scores.shape[-2:]
            if attention.startswith("decoder") and attention.endswith("self"):
                behind = torch.arange(t)[:, None] - torch.arange(s)
                scores[:, (behind < 0) | (behind >= (window or t))] = -torch.inf
            map = ask(studio, "attention", model=name, text=TEXT, name=attention)
            assert np.abs(np.array(map["weights"]) - scores.softmax(-1).numpy()).max() <= 1e-5


@pytest.mark.parametrize("name", SUBJECTS)
def test_every_station_has_its_shape_and_its_values(name: str) -> None:
    subject = SUBJECTS[name]()
    with client(Given({name: subject})) as studio:
        shapes = ask(studio, "anatomy", model=name, text=TEXT)["shapes"]
        own = looking.look(subject, TEXT, ask=["*"])
        assert set(shapes) == set(own.names)
        for station in own.names:
            values = own[station]
            assert list(values.shape) == shapes[station]
            found = ask(studio, "tensor", model=name, text=TEXT, name=station, head=1)
            corner = np.atleast_2d(values[1] if values.ndim == 3 else values)[:64, :64]
            assert np.abs(np.array(found["values"]) - corner).max() <= 1e-6
            assert values.ndim == 1 or len(found["rows"]) == len(corner)


def test_the_circuit_that_a_model_came_with(demo: TestClient) -> None:
    found = ask(demo, "circuit", model="demo")["circuit"]
    assert found["found"]
    described = ask(demo, "model", model="demo")["attentions"]
    assert all(head < described[name] for name, head in [*found["heads"], found["reader"]])
    assert ask(demo, "circuit", expect=400, model="another")["error"]["type"] == "SettingError"


def test_small_pictures_are_of_every_head(demo: TestClient) -> None:
    grid = ask(demo, "grid", model="demo", text=TEXT)
    assert {name: len(each["heads"]) for name, each in grid["pictures"].items()} == dict.fromkeys(grid["pictures"], 4)
    assert len(grid["pictures"]) == 6
    assert set(grid["entropy"]) == set(grid["pictures"])


def test_512_tokens_and_144_heads_stay_small_to_send() -> None:
    from looked import WORDS, sharpened
    from regard import spec
    from regard.build import build
    from regard.look import Words

    torch.manual_seed(0)
    block = spec.Block(spec.Attention(12, 4, 4), spec.Gated(20), norm=spec.RmsNorm(), dropout=0.0)
    model = build(spec.Encoder(48, spec.Tokens(len(WORDS), None, dropout=0.0), spec.Stack(12, block))).eval()
    sharpened(model)
    subject = Subject(model, Words.of(WORDS))
    with client(Given({"long": subject})) as studio:
        text = "dog " * 512
        head = {"x-regard-token": TOKEN}
        sent = studio.post("/api/grid", json={"model": "long", "text": text}, headers=head)
        assert sent.status_code == 200
        assert len(sent.content) < 700_000
        assert sum(len(each["heads"]) for each in sent.json()["pictures"].values()) == 144
        one = ask(studio, "attention", model="long", text=text, name="encoder.3.self", heads=[5])
        assert len(one["packed"]) < 1_500_000
        found = np.frombuffer(base64.b64decode(one["packed"]), "<f4").reshape(512, 512)
        own = looking.look(subject, text).weights("encoder.3.self", heads=[5])[0]
        assert np.abs(found - own).max() <= 1e-6
        refused = ask(studio, "attention", expect=400, model="long", text=text, name="encoder.3.self")
        assert refused["error"]["repair"] == "ask for fewer rows"


def test_heads_are_switched_off(demo: TestClient) -> None:
    off = [["decoder.1.cross", head] for head in range(4)]
    found = ask(demo, "look", model="demo", text="The cat sat on the mat.", off=off)
    assert found["usual"] == "Die Katze saß auf der Matte." != found["output"]
    assert found["surprise"]["off"] > found["surprise"]["usual"]


def test_decoding_is_the_models_own(demo: TestClient) -> None:
    text = "The cat sat on the mat."
    steps = ask(demo, "steps", model="demo", text=text)
    assert steps["output"] == "Die Katze saß auf der Matte."
    assert all(step["candidates"][0]["id"] == step["id"] for step in steps["steps"])
    drawn = ask(demo, "steps", model="demo", text=text, sample=True, temperature=1.5, top_k=2, seed=3)
    assert all(sum(c["drawn"] > 0 for c in step["candidates"]) <= 2 for step in drawn["steps"])
    tree = ask(demo, "beam", model="demo", text=text, width=3)
    assert tree["output"] == steps["output"]
    assert {"best", "pruned"} <= {node["fate"] for node in tree["nodes"]}
    aligned = ask(demo, "alignment", model="demo", text=text, layer=1)
    assert np.allclose(np.array(aligned["weights"]).sum(1), 1, atol=1e-5)
    assert [1, 1] in aligned["links"]


def test_a_model_that_only_reads_says_so() -> None:
    subject = SUBJECTS["reader"]()
    assert not isinstance(subject.model, EncoderDecoder)
    with client(Given({"reader": subject})) as studio:
        assert ask(studio, "model", model="reader")["writes"] is False
        assert ask(studio, "steps", expect=400, model="reader", text=TEXT)["error"]["type"] == "SettingError"
        assert ask(studio, "alignment", expect=400, model="reader", text=TEXT)["error"]["repair"]


# ------------------------------------------------------------------ the door


def test_every_answer_carries_the_headers(demo: TestClient) -> None:
    for response in (
        demo.get("/"),
        demo.get("/nowhere"),
        demo.post("/api/shelf"),
        demo.get("/", headers={"host": "evil"}),
    ):
        policy = response.headers["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["x-frame-options"] == "DENY"


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8420", "127.0.0.1.evil.example", "localhost.evil", ""])
def test_a_foreign_host_gets_nothing(demo: TestClient, host: str) -> None:
    for response in (demo.get("/", headers={"host": host}), demo.post("/api/shelf", headers={"host": host})):
        assert response.status_code == 403
        assert "models" not in response.text


@pytest.mark.parametrize("host", ["127.0.0.1:8420", "localhost", "LOCALHOST:1", "[::1]:8420"])
def test_local_names_are_let_in(demo: TestClient, host: str) -> None:
    assert demo.get("/", headers={"host": host}).status_code == 200


def test_a_studio_of_the_whole_network_still_asks_for_its_token() -> None:
    opened = TestClient(application(Shelf([DEMO], device="cpu"), TOKEN, (ANY,)), "http://192.168.0.7:8420")
    assert opened.get("/").status_code == 200
    assert opened.post("/api/shelf").status_code == 401
    foreign = {"x-regard-token": TOKEN, "origin": "http://evil.example"}
    assert opened.post("/api/shelf", headers=foreign).status_code == 403


def test_a_foreign_origin_and_a_missing_token_get_nothing(demo: TestClient) -> None:
    right = {"x-regard-token": TOKEN}
    assert demo.post("/api/shelf", headers=right | {"origin": "http://evil.example"}).status_code == 403
    assert demo.post("/api/shelf", headers=right | {"origin": "null"}).status_code == 403
    assert demo.post("/api/shelf", headers=right | {"origin": "http://127.0.0.1:8420"}).status_code == 200
    for wrong in ({}, {"x-regard-token": "a-tokem"}, {"x-regard-token": "é".encode()}):
        assert demo.post("/api/shelf", headers=wrong).status_code == 401


@pytest.mark.parametrize(
    "path",
    [
        "/../server.py",
        "/..%2fserver.py",
        "/%2e%2e/%2e%2e/etc/passwd",
        "//etc/passwd",
        "/demo/config.json",
        "/style.css/x",
    ],
)
def test_no_path_reaches_the_disk(demo: TestClient, path: str) -> None:
    response = demo.get(path)
    assert response.status_code == 404
    assert response.json()["error"]["type"] == "NotFound"


@pytest.mark.parametrize("name", ["../demo", "/etc", ".", "", "demo/", "demo\x00", HOSTILE])
def test_names_are_looked_up_and_never_joined(demo: TestClient, name: str) -> None:
    assert ask(demo, "model", expect=400, model=name)["error"]["type"] == "SettingError"
    assert ask(demo, "metrics", expect=400, run=name)["error"]["type"] == "SettingError"


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"", 422), (b"[]", 422), (b"{", 422), (b'{"model": 3, "text": "a"}', 422), (b'{"model":"demo","text":"a","x":1}', 422),
     (b'{"model":"demo","text":"  "}', 200), (b'{"model":"demo","text":"a","off":[["nope",0]]}', 400),
     (b'{"model":"demo","text":"a","off":[["encoder.0.self",99]]}', 400), (b" " * (LARGEST + 1), 413)],
)  # fmt: skip
def test_a_wrong_request_is_answered_in_a_few_words(demo: TestClient, body: bytes, status: int) -> None:
    response = demo.post("/api/look", content=body, headers={"x-regard-token": TOKEN})
    assert response.status_code == status
    if status != 200:
        assert set(response.json()["error"]) == {"type", "problem", "repair"}
        assert "Traceback" not in response.text
    assert ask(demo, "look", model="demo", text=TEXT)["output"]  # and the next one is answered as ever


def test_an_unexpected_failure_shows_no_insides(
    demo: TestClient, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(shelf: Shelf, question: Any) -> dict[str, Any]:
        raise RuntimeError("/secret/path")

    monkeypatch.setitem(VIEWS, "shelf", (VIEWS["shelf"][0], broken))
    assert "secret" not in json.dumps(ask(demo, "shelf", expect=500))
    assert "secret" in capsys.readouterr().err


def test_get_is_no_way_in(demo: TestClient) -> None:
    assert demo.get("/api/shelf", headers={"x-regard-token": TOKEN}).status_code in (404, 405)
    assert demo.delete("/").status_code == 405


def test_hostile_words_come_back_as_json_text(demo: TestClient) -> None:
    response = demo.post(
        "/api/look", json={"model": "demo", "text": HOSTILE, "target": HOSTILE}, headers={"x-regard-token": TOKEN}
    )
    assert response.headers["content-type"] == "application/json"
    assert response.status_code == 200


def test_the_page_has_no_markup_from_text_and_nothing_from_elsewhere() -> None:
    for file in WEB.iterdir():
        text = file.read_text(encoding="utf-8")
        for word in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "new Function",
            "DOMParser",
            "srcdoc",
        ):
            assert word not in text, (file.name, word)
        outside = [line for line in text.splitlines() if "http" in line and "www.w3.org/2000/svg" not in line]
        assert not outside, (file.name, outside)
    page = (WEB / "index.html").read_text(encoding="utf-8")
    assert "onclick" not in page
    assert "<style" not in page
    assert "style=" not in page


# ------------------------------------------------------------------ the shelf


def test_only_what_was_named_is_on_the_shelf(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "metrics.jsonl").write_text("")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "metrics.jsonl").write_text("")
    (tmp_path / "runs" / "link").symlink_to(tmp_path / "other")
    shelf = Shelf([tmp_path / "runs"])
    assert list(shelf.runs()) == ["a", "b"]
    (tmp_path / "runs" / "c").mkdir()
    (tmp_path / "runs" / "c" / "metrics.jsonl").write_text("")
    assert list(shelf.runs()) == ["a", "b", "c"]  # a run that began later
    assert list(Shelf([tmp_path / "runs" / "a"]).runs()) == ["a"]
    assert list(Shelf([tmp_path / "runs" / "a", tmp_path / "runs"]).runs()) == ["a", "a (2)", "b", "c"]
    with pytest.raises(SettingError):
        Shelf([tmp_path / "nothing"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError):
        Shelf([tmp_path / "empty"])
