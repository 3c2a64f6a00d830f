"""The studio over HTTP: every view's numbers, and that the door lets nothing else in or out."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from looked import MODELS, TEXT, explicit, png, save_sensing, target_of, wav

pytest.importorskip("starlette")
pytest.importorskip("httpx")
import uvicorn
from starlette.testclient import TestClient

from regard import look as looking
from regard.data.audio import frequency_ticks
from regard.look.forward import forward
from regard.models import Model
from regard.studio import server
from regard.studio.model_store import DEMO, FolderOpener, ModelStore, OpenModel, UploadedFiles
from regard.studio.sample_inputs import example
from regard.studio.server import (
    MAX_FILE_BYTES,
    MAX_REQUEST_BYTES,
    WEB,
    application,
)
from regard.studio.views import VIEWS
from regard.system.errors import DataError, SettingError
from regard.system.web_server import ANY_HOST
from regard.wirings.encoder_decoder import EncoderDecoder

TOKEN = "a-token"
HOSTILE = "<img src=x onerror=alert(1)>"


class InMemory(ModelStore):
    """A store of models that are in memory."""

    def __init__(self, models: dict[str, Model]) -> None:
        self.open = {name: OpenModel(model) for name, model in models.items()}
        self.files = UploadedFiles()
        self.opener = None

    def models(self) -> dict[str, Path]:
        return dict.fromkeys(self.open, Path())

    def runs(self) -> dict[str, Path]:
        return {}

    def model(self, name: str) -> OpenModel:
        return self.open[name]


def client(store: ModelStore, **more: Any) -> TestClient:
    return TestClient(
        application(store, TOKEN), "http://127.0.0.1:8420", raise_server_exceptions=False, **more
    )


@pytest.fixture(scope="module")
def demo() -> Iterator[TestClient]:
    with client(ModelStore([DEMO], device="cpu")) as opened:
        yield opened


def ask(studio: TestClient, view: str, expect: int = 200, **question: Any) -> Any:
    response = studio.post(f"/api/{view}", json=question, headers={"x-regard-token": TOKEN})
    assert response.status_code == expect, response.text
    return (
        unpacked(response.content)
        if response.headers["content-type"].endswith("octet-stream")
        else response.json()
    )


def unpacked(content: bytes) -> dict[str, Any]:
    """As the page reads it: the length of the JSON, the JSON, the bytes of one array, shades."""
    length = int.from_bytes(content[:4], "little")
    header = json.loads(content[4 : 4 + length])
    kind = "u1" if header["bytes"] else "<f4"
    shape = header["shape"]
    count = int(np.prod(shape))
    values = np.frombuffer(content[4 + length :], kind, count).reshape(shape)
    answer = {**header, "values": values}
    shades = np.frombuffer(content[4 + length + values.nbytes :], "u1")
    if len(shades):
        answer["shades"] = shades.reshape(shape) / 255
    return answer


# ------------------------------------------------------------------ the packaged model


def test_the_packaged_model_is_small_and_translates(demo: TestClient) -> None:
    assert sum(file.stat().st_size for file in DEMO.iterdir()) <= 640_000
    shelf = ask(demo, "shelf")
    assert (shelf["models"], shelf["runs"], shelf["opens"]) == (["demo"], ["demo"], False)
    tired = ask(
        demo, "look", model="demo", text="The dog does not enter the house because it is too tired."
    )
    empty = ask(
        demo, "look", model="demo", text="The dog does not enter the house because it is too empty."
    )
    assert tired["output"] == "Der Hund betritt das Haus nicht, weil er zu müde ist."
    assert empty["output"] == "Der Hund betritt das Haus nicht, weil es zu leer ist."
    described = ask(demo, "model", model="demo")
    assert described["translates"]
    assert described["stacks"] == {"encoder": 2, "decoder": 2}


# ------------------------------------------------------------------ numbers


@pytest.mark.parametrize("name", MODELS)
def test_numbers_on_the_page_are_those_of_the_recorded_call(name: str) -> None:
    model = MODELS[name]()
    with client(InMemory({name: model})) as studio:
        view = ask(studio, "look", model=name, text=TEXT)
        expected = looking.look(model, TEXT)
        assert list(view["attentions"]) == list(expected.probe.attentions)
        for attention in expected.probe.attentions:
            map = ask(studio, "attention", model=name, text=TEXT, name=attention)
            assert np.abs(np.array(map["values"]) - expected.weights(attention)).max() <= 1e-6
            assert (map["rows"], map["columns"]) == tuple(
                map_ for map_ in map_labels(expected, attention)
            )
            one = ask(
                studio, "attention", model=name, text=TEXT, name=attention, heads=[1], rows=[2, 0]
            )
            assert (
                np.abs(np.array(one["values"]) - expected.weights(attention, [2, 0], [1])).max()
                <= 1e-6
            )


def map_labels(expected: looking.Look, attention: str) -> tuple[list[str], list[str]]:
    rows, columns = expected.labels(attention)
    return list(rows), list(columns)


HAND = {"translator": None, "reader": None, "writer": None, "window": 3, "linear": None}


@pytest.mark.parametrize("name", HAND)
def test_weights_are_worked_out_by_hand_from_the_recorded_arguments(name: str) -> None:
    """In double precision, without a line of the package's own mixers."""
    model, window = MODELS[name](), HAND[name]
    with client(InMemory({name: model})) as studio:
        expected = looking.look(model, TEXT)
        assert len(expected.probe.attentions) >= 2
        for attention, call in expected.probe.attentions.items():
            q, k = (
                call.q[0].double(),
                call.k[0].double().repeat_interleave(call.q.shape[1] // call.k.shape[1], dim=0),
            )
            t, s = q.shape[1], k.shape[1]
            max_lookback = torch.arange(t)[:, None] - torch.arange(s)
            past = attention.startswith("decoder") and attention.endswith("self")
            visible = (
                (max_lookback >= 0) & (max_lookback < (window or t))
                if past
                else max_lookback == max_lookback
            )
            if name == "linear":
                products = (
                    torch.where(q > 0, q + 1, q.exp()) @ torch.where(k > 0, k + 1, k.exp()).mT
                )
            else:
                products = (q @ k.mT / q.shape[-1] ** 0.5).exp()
            shares = products * visible
            map = ask(studio, "attention", model=name, text=TEXT, name=attention)
            assert (
                np.abs(map["values"] - (shares / shares.sum(-1, keepdim=True)).numpy()).max()
                <= 1e-6
            )


@pytest.mark.parametrize("name", MODELS)
def test_numbers_on_the_page_are_those_of_a_wholly_explicit_model(name: str) -> None:
    model, other = MODELS[name](), MODELS[name]()
    target = target_of(model)
    with client(InMemory({name: model})) as studio:
        view = ask(studio, "look", model=name, text=TEXT, target=target)["attentions"]
        inputs = looking.look(other, TEXT, target=target, ask=()).model_inputs
        visible = explicit(other.model)
        with torch.no_grad():
            forward(other.model, inputs.named)
        assert len(visible) == len(view) > 1
        for attention, weights in zip(view, visible, strict=True):
            map = ask(studio, "attention", model=name, text=TEXT, target=target, name=attention)
            np.testing.assert_allclose(
                map["values"], weights[0].numpy(), rtol=1e-5, atol=1e-6, err_msg=attention
            )


@pytest.mark.parametrize("name", MODELS)
def test_every_station_has_its_shape_and_its_values(name: str) -> None:
    model = MODELS[name]()
    with client(InMemory({name: model})) as studio:
        shapes = ask(studio, "anatomy", model=name, text=TEXT)["shapes"]
        expected = looking.look(model, TEXT, ask=["*"])
        assert set(shapes) == set(expected.names)
        for station in expected.names:
            values = expected[station]
            assert list(values.shape) == shapes[station]
            view = ask(studio, "tensor", model=name, text=TEXT, name=station, head=1)
            corner = np.atleast_2d(values[1] if values.ndim == 3 else values)[:64, :64]
            # Two runs, on other threads: float32 at the size of the values.
            assert np.abs(np.array(view["values"]) - corner).max() <= 1e-6 * max(
                1.0, np.abs(corner).max()
            )
            assert values.ndim == 1 or len(view["rows"]) == len(corner)


def test_the_circuit_that_a_model_came_with(demo: TestClient) -> None:
    view = ask(demo, "circuit", model="demo")["circuit"]
    assert view["meets_bounds"]
    described = ask(demo, "model", model="demo")["attentions"]
    assert all(head < described[name] for name, head in [*view["heads"], view["reader"]])
    assert ask(demo, "circuit", expect=400, model="another")["error"]["type"] == "SettingError"


def shade(weights: Any) -> Any:
    """Even attention over the keys that a query sees is 0.12, all of it on one of several is 1."""
    keys = (weights > 0).sum(axis=-1, keepdims=True)
    ratio = weights * keys
    rising = np.log(np.maximum(ratio, 1.0)) / np.log(np.maximum(keys, 2))
    return np.where(ratio > 1 + 1e-6, 0.12 + 0.88 * rising, 0.12 * ratio)


def test_shades_are_those_of_pages_and_pictures(demo: TestClient) -> None:
    for name in ("encoder.0.self", "decoder.0.self", "decoder.1.cross"):
        head: dict[str, Any] = {"model": "demo", "text": TEXT, "name": name, "heads": [1]}
        view = ask(demo, "attention", **head)
        assert not view["relative"]
        np.testing.assert_allclose(view["shades"], view["values"], atol=0.51 / 255)
        relative = ask(demo, "attention", relative=True, **head)
        assert relative["relative"]
        np.testing.assert_allclose(relative["shades"], shade(view["values"]), atol=0.51 / 255)
        assert view["clear"]
        tensor = ask(demo, "tensor", model="demo", text=TEXT, name=f"{name}.weights", head=1)
        np.testing.assert_allclose(tensor["shades"], view["values"][0], atol=1e-4)
    rolled = ask(demo, "rollout", model="demo", text=TEXT)
    assert rolled["shades"].shape == rolled["values"].shape
    aligned = ask(demo, "alignment", model="demo", text=TEXT)
    np.testing.assert_allclose(aligned["shades"], aligned["weights"], atol=1e-4)


def test_small_pictures_are_of_every_head(demo: TestClient) -> None:
    listed = ask(demo, "look", model="demo", text=TEXT)["attentions"]
    assert len(listed) == 6
    complete = ask(demo, "entropy", model="demo", text=TEXT)
    for name, part in listed.items():
        grid = ask(demo, "grid", model="demo", text=TEXT, name=name, relative=True)
        assert len(grid["heads"]) == len(grid["flags"]) == part["heads"]
        assert (grid["rows"], grid["columns"]) == (len(part["rows"]), len(part["columns"]))
        weights = ask(demo, "attention", model="demo", text=TEXT, name=name)["values"]
        for head, picture in enumerate(grid["heads"]):
            visible = (
                np.frombuffer(base64.b64decode(picture), np.uint8).reshape(weights.shape[1:]) / 255
            )
            assert np.abs(visible - shade(weights[head])).max() <= 0.5 / 255 + 1e-6
        np.testing.assert_allclose(
            grid["entropy"], complete["share"][complete["names"].index(name)], atol=1e-6
        )


def test_512_tokens_and_144_heads_stay_small_to_send() -> None:
    from looked import WORDS, Tokenized, sharpened
    from regard import spec
    from regard.builder import build

    torch.manual_seed(0)
    block = spec.Block(
        spec.Attention(12, 4, 4), spec.GatedFeedForward(20), norm=spec.RMSNorm(), dropout=0.0
    )
    tokens = spec.Tokens(len(WORDS), None, dropout=0.0)
    description = spec.Encoder(48, tokens, spec.Stack.of(12, block))
    core = build(description).eval()
    sharpened(core)
    model = Tokenized(core, description)
    with client(InMemory({"long": model})) as studio:
        text = "dog " * 512
        head = {"x-regard-token": TOKEN}
        names = list(ask(studio, "look", model="long", text=text)["attentions"])
        assert len(names) == 12
        grids = [
            studio.post("/api/grid", json={"model": "long", "text": text, "name": n}, headers=head)
            for n in names
        ]
        assert sum(len(sent.json()["heads"]) for sent in grids) == 144
        assert sum(len(sent.content) for sent in grids) < 700_000
        question = {"model": "long", "text": text, "name": "encoder.3.self", "heads": [5]}
        one = studio.post("/api/attention", json=question, headers=head).content
        assert len(one) < 1_400_000  # four bytes a weight, one a shade
        view = unpacked(one)["values"][0]
        expected = looking.look(model, text).weights("encoder.3.self", heads=[5])[0]
        assert np.abs(view - expected).max() <= 1e-6
        refused = ask(
            studio, "attention", expect=400, model="long", text=text, name="encoder.3.self"
        )
        assert refused["error"]["repair"] == "request fewer rows"


def test_small_pictures_of_a_long_input_hold_the_largest_of_each_square(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("regard.look.recording.CHUNK", 3000)  # several parts
    model = MODELS["writer"]()
    text = "The dog sees a cat. " * 15
    with client(InMemory({"long": model})) as studio:
        grid = ask(studio, "grid", model="long", text=text, name="decoder.1.self")
        weights = looking.look(model, text).tensor("decoder.1.self.weights")
        assert weights.shape[2] > 60
        shades = torch.from_numpy(shade(weights[0].numpy()))
        complete = torch.nn.functional.adaptive_max_pool2d(shades, (48, 48)).numpy()
        for picture, expected in zip(grid["heads"], complete, strict=True):
            visible = np.frombuffer(base64.b64decode(picture), np.uint8).reshape(48, 48) / 255
            assert np.abs(visible - expected).max() <= 0.5 / 255 + 1e-6


def test_heads_are_switched_off(demo: TestClient) -> None:
    off = [["decoder.1.cross", head] for head in range(4)]
    view = ask(demo, "look", model="demo", text="The cat sat on the mat.", off=off)
    assert view["usual"] == "Die Katze saß auf der Matte." != view["output"]
    assert view["surprise"]["off"] > view["surprise"]["usual"]


def test_decoding_is_the_models_own(demo: TestClient) -> None:
    text = "The cat sat on the mat."
    steps = ask(demo, "steps", model="demo", text=text)
    assert steps["output"] == "Die Katze saß auf der Matte."
    assert all(step["candidates"][0]["id"] == step["id"] for step in steps["steps"])
    drawn = ask(
        demo, "steps", model="demo", text=text, sample=True, temperature=1.5, top_k=2, seed=3
    )
    assert all(sum(c["drawn"] > 0 for c in step["candidates"]) <= 2 for step in drawn["steps"])
    tree = ask(demo, "beam", model="demo", text=text, width=3)
    assert tree["output"] == steps["output"]
    assert {"best", "pruned"} <= {node["fate"] for node in tree["nodes"]}
    aligned = ask(demo, "alignment", model="demo", text=text, layer=1)
    assert np.allclose(np.array(aligned["weights"]).sum(1), 1, atol=1e-5)
    assert [1, 1] in aligned["links"]


def test_a_model_that_only_reads_says_so() -> None:
    model = MODELS["reader"]()
    assert not isinstance(model.model, EncoderDecoder)
    with client(InMemory({"reader": model})) as studio:
        assert ask(studio, "model", model="reader")["writes"] is False
        assert (
            ask(studio, "steps", expect=400, model="reader", text=TEXT)["error"]["type"]
            == "SettingError"
        )
        assert ask(studio, "alignment", expect=400, model="reader", text=TEXT)["error"]["repair"]


# ------------------------------------------------------------------ what else


@pytest.mark.parametrize("name", ["translator", "writer", "reader", "linear"])
def test_what_else_is_what_the_analyses_say(name: str) -> None:
    model = MODELS[name]()
    off = [("decoder.0.self" if name != "reader" else "encoder.0.self", 1)]
    expected = looking.look(model, TEXT, off=off, ask=["*"])
    with client(InMemory({name: model})) as studio:
        question: dict[str, Any] = {"model": name, "text": TEXT, "off": off}
        entropy = looking.entropy(expected)
        view = ask(studio, "entropy", **question)
        np.testing.assert_allclose(view["share"], entropy.share, atol=1e-6)
        assert view["flags"] == entropy.flags
        np.testing.assert_allclose(
            ask(studio, "rollout", **question)["values"],
            looking.rollout(expected).weights,
            atol=1e-6,
        )
        lens = looking.lens(expected, top=3)
        view = ask(studio, "lens", **question)
        np.testing.assert_allclose(view["probabilities"], lens.probabilities, atol=1e-6)
        assert view["tokens"] == [[list(place) for place in layer] for layer in lens.tokens]
        attribution = looking.attribution(model, TEXT, off=off)
        view = ask(studio, "attribution", **question)
        np.testing.assert_allclose(view["values"], attribution.values, rtol=1e-4, atol=1e-6)
        assert "not explanation" in view["note"]
        assert not np.allclose(attribution.values, looking.attribution(model, TEXT).values)
        if name != "writer" and name != "linear":
            assert ask(studio, "roles", model=name)["best"] == {
                role: list(head) for role, head in looking.roles(model).best.items()
            }


def test_views_of_the_weights_are_what_the_analyses_say() -> None:
    model = MODELS["translator"]()
    with client(InMemory({"it": model})) as studio:
        head: dict[str, Any] = {"model": "it", "name": "decoder.1.self", "head": 2}
        expected = looking.angles(looking.look(model, TEXT), "decoder.1.self", 2)
        view = ask(studio, "angles", **head, text=TEXT)
        np.testing.assert_allclose(view["query_lengths"], expected.query_lengths, rtol=1e-5)
        one = looking.head_circuit(model, TEXT, stack="decoder", layer=1, head=2)
        assert ask(studio, "head_circuit", **head, text=TEXT)["promoted"] == [
            list(row) for row in one.promoted
        ]
        scores = ask(studio, "circuits", model="it", stack="decoder")["scores"]
        np.testing.assert_allclose(scores, looking.circuits(model, stack="decoder").scores)
        found = ask(studio, "neurons", model="it", texts=[TEXT, "The cat."], neurons=[3])
        assert found["neurons"] == [3]
        assert found["tokens"] == looking.neurons(model, [TEXT, "The cat."]).tokens
        for wrong in ({"neurons": [99]}, {"layer": 9}, {"stack": "none"}):
            error = ask(studio, "neurons", expect=400, model="it", text=TEXT, **wrong)["error"]
            assert error["type"] == "SettingError"
        for name in ("decoder.9.self", "decoder", "x.y.z"):
            asked = {"model": "it", "name": name, "text": TEXT}
            ask(studio, "head_circuit", expect=400, **asked)


def test_patching_is_at_the_first_place_where_the_outputs_part(demo: TestClient) -> None:
    tired, empty = (
        f"The dog does not enter the house because it is too {word}." for word in ("tired", "empty")
    )
    view = ask(demo, "patching", model="demo", text=tired, other=empty)
    assert (view["answer"], view["instead"]) == ("▁er", "▁es")
    expected = looking.patching(
        ModelStore([DEMO], device="cpu").model("demo").model,
        tired,
        empty,
        at=view["at"],
        instead="es",
    )
    np.testing.assert_allclose(view["effect"], expected.effect, atol=1e-5)
    column = view["tokens"].index("▁tired")
    np.testing.assert_allclose(
        np.array(view["effect"])[0, column], 1.0, atol=1e-4
    )  # the only word that differs
    other = ask(demo, "patching", expect=400, model="demo", text=tired, other="The dog sleeps.")
    assert "the same number of tokens" in other["error"]["repair"]


def test_places_and_the_memory_of_decoding(demo: TestClient) -> None:
    model = ModelStore([DEMO], device="cpu").model("demo").model
    view = ask(demo, "positions", model="demo", stack="decoder", length=9)
    expected = looking.positions(model, 9, stack="decoder")
    np.testing.assert_allclose(view["products"], expected.products, atol=1e-6)
    assert ask(demo, "cache", model="demo", text=TEXT)["used"] == list(
        looking.cache(model, TEXT, length=32).used
    )


# ------------------------------------------------------------------ pictures and sound


def hand(studio: TestClient, data: bytes, expect: int = 200) -> Any:
    response = studio.post("/api/file", content=data, headers={"x-regard-token": TOKEN})
    assert response.status_code == expect, response.text
    return response.json()


@pytest.fixture(scope="module")
def sensing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TestClient, ModelStore]]:
    pytest.importorskip("transformers")
    pytest.importorskip("PIL")
    folder = tmp_path_factory.mktemp("sensing")
    for name in ("vit", "clip", "wav2vec2", "whisper"):
        save_sensing(name, folder / name)
    store = ModelStore([folder], device="cpu")
    with client(store) as opened:
        yield opened, store


@pytest.mark.parametrize(
    ("name", "kind", "shape", "places"),
    [("vit", "image", [28, 28, 3], 50), ("clip", "image", [28, 28, 3], 50), ("wav2vec2", "sound", [80, 50], 24),
     ("whisper", "sound", [20, 100], 50)],
)  # fmt: skip
def test_a_file_is_looked_at(
    sensing: tuple[TestClient, ModelStore], name: str, kind: str, shape: list[int], places: int
) -> None:
    studio, store = sensing
    data = png() if kind == "image" else wav()
    file = hand(studio, data)["file"]
    assert ask(studio, "model", model=name)["medium"] == kind
    picture = ask(studio, "picture", model=name, file=file)
    assert (picture["kind"], picture["shape"]) == (kind, shape)
    assert picture["values"].std() > 10
    assert (picture["side"], picture["extras"]) == ((7, 1) if kind == "image" else (0, 0))
    if kind == "sound":
        assert picture["frequencies"] == frequency_ticks(shape[0])
    view = ask(studio, "look", model=name, file=file)
    assert len(view["source"]) == places
    model = store.model(name).model
    expected = looking.look(model, model.read_medium(data))
    assert list(view["attentions"]) == list(expected.probe.attentions)
    for attention in expected.probe.attentions:
        map = ask(studio, "attention", model=name, file=file, name=attention)
        assert np.abs(map["values"] - expected.weights(attention)).max() <= 1e-6
    assert ask(studio, "rollout", model=name, file=file)["shape"] == [places, places]
    example = ask(studio, "look", model=name, file="example")
    assert list(example["attentions"]) == list(view["attentions"])
    if name == "whisper":
        steps = ask(studio, "steps", model=name, file=file, most=5)
        assert len(steps["steps"]) <= 6
        assert ask(studio, "cache", model=name, file=file)["source"] > 0
    if name == "vit":
        assert len(ask(studio, "attribution", model=name, file=file)["predictions"]) == 1


def test_a_text_opens_no_file_of_this_machine(
    sensing: tuple[TestClient, ModelStore], tmp_path: Path
) -> None:
    studio, _ = sensing
    for name, content in (("vit", png()), ("clip", png()), ("whisper", wav()), ("wav2vec2", wav())):
        file = tmp_path / name
        file.write_bytes(content)
        refused = ask(studio, "patching", 400, model=name, text=str(file), other=str(file))
        if name != "clip":  # which reads it as a caption
            assert "two texts" in refused["error"]["problem"]
            views = [ask(studio, "look", model=name, text=text) for text in (str(file), "")]
            assert views[0] == views[1]


def test_a_recording_comes_back_as_it_was(sensing: tuple[TestClient, ModelStore]) -> None:
    studio, _ = sensing
    data = wav()
    recording = ask(studio, "recording", file=hand(studio, data)["file"])
    assert recording["values"].tobytes() == data
    assert ask(studio, "recording", file="example")["values"].tobytes() == example("sound")
    gone = ask(studio, "recording", expect=400, file="0" * 32)
    assert "choose it again" in gone["error"]["repair"]


def test_a_picture_is_shown_as_it_was() -> None:
    pytest.importorskip("PIL")
    from regard.data.image import ImageProcessor

    prepare = ImageProcessor(None, mean=(0.48, 0.46, 0.41), std=(0.27, 0.26, 0.28))
    pixels = np.random.default_rng(1).integers(0, 256, (5, 4, 3), np.uint8)
    assert (prepare.to_image(prepare(pixels)) == pixels).all()


def test_a_file_that_is_none_is_refused_in_a_few_words(
    sensing: tuple[TestClient, ModelStore], demo: TestClient
) -> None:
    studio, _ = sensing
    for name, data in (("vit", b"<svg onload=alert(1)>"), ("vit", wav()), ("vit", png()[:200]), ("vit", b""),
                       ("vit", bomb()), ("whisper", png()), ("whisper", b"RIFF"), ("wav2vec2", wav(0.001))):  # fmt: skip
        answer = ask(studio, "look", expect=400, model=name, file=hand(studio, data)["file"])
        assert set(answer["error"]) == {"type", "problem", "repair"}
        assert "/" not in answer["error"]["problem"]
    # Another sample rate is no mistake: the recording is resampled.
    for name in ("whisper", "wav2vec2"):
        assert ask(studio, "look", model=name, file=hand(studio, wav(rate=8000))["file"])["source"]
    assert (
        "text only"
        in ask(demo, "look", 400, model="demo", text=TEXT, file=hand(demo, png())["file"])["error"][
            "problem"
        ]
    )
    assert (
        "choose it again" in ask(studio, "look", 400, model="vit", file="0" * 32)["error"]["repair"]
    )
    for name in ("../../etc/passwd", "/etc/passwd", "example/.."):
        assert ask(studio, "look", 400, model="vit", file=name)["error"]["type"] == "DataError"
    assert ask(studio, "look", model="vit", file="example")[
        "source"
    ]  # and the next one is answered as ever


def bomb() -> bytes:
    """The head of a picture of 30,000 × 30,000 pixels."""
    import struct
    import zlib

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    head = struct.pack(">IIBBBBB", 30_000, 30_000, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(b"\0" * 1000))
        + chunk(b"IEND", b"")
    )


def test_files_are_few_and_bounded(demo: TestClient) -> None:
    assert hand(demo, b"x" * (MAX_FILE_BYTES + 1), expect=413)["error"]["type"] == "TooLarge"
    files = UploadedFiles()
    names = [files.add(bytes([i])) for i in range(12)]
    assert files.get(names[-1], "image") == bytes([11])
    with pytest.raises(DataError, match="no longer holds"):
        files.get(names[0], "image")
    assert demo.post("/api/file", content=b"x").status_code == 401
    foreign = {"x-regard-token": TOKEN, "origin": "http://evil.example"}
    assert demo.post("/api/file", content=b"x", headers=foreign).status_code == 403


# ------------------------------------------------------------------ the door


def test_small_answers_are_sent_without_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packets that wait to be acknowledged (Nagle) would make each answer 40 ms slower."""
    delays = []

    def accept_one(self: uvicorn.Server, sockets: list[socket.socket]) -> None:
        async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            accepted = writer.get_extra_info("socket")
            delays.append(not accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        async def exchange() -> None:
            async with await asyncio.start_server(client, sock=sockets[0]):
                reader, writer = await asyncio.open_connection(*sockets[0].getsockname())
                await reader.read()
                writer.close()

        asyncio.run(exchange())

    monkeypatch.setattr(uvicorn.Server, "run", accept_one)
    server.serve(InMemory({}), "127.0.0.1", 0)
    assert delays == [False]


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


def test_pages_are_compressed_and_kept_while_they_are_the_same(demo: TestClient) -> None:
    plain = demo.get("/style.css", headers={"accept-encoding": "identity"})
    packed = demo.get("/style.css", headers={"accept-encoding": "gzip"})
    assert packed.headers["content-encoding"] == "gzip"
    assert packed.content == plain.content
    assert "content-encoding" not in plain.headers
    assert plain.headers["cache-control"] == "no-cache"  # kept, and asked for again
    again = demo.get("/style.css", headers={"if-none-match": plain.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert demo.get("/main.js", headers={"if-none-match": plain.headers["etag"]}).status_code == 200
    # What a model answers is kept nowhere.
    assert demo.post("/api/shelf", json={}).headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8420", "127.0.0.1.evil.example", "localhost.evil", ""]
)
def test_a_foreign_host_gets_nothing(demo: TestClient, host: str) -> None:
    for response in (
        demo.get("/", headers={"host": host}),
        demo.post("/api/shelf", headers={"host": host}),
    ):
        assert response.status_code == 403
        assert "models" not in response.text


@pytest.mark.parametrize("host", ["127.0.0.1:8420", "localhost", "LOCALHOST:1", "[::1]:8420"])
def test_local_names_are_let_in(demo: TestClient, host: str) -> None:
    assert demo.get("/", headers={"host": host}).status_code == 200


def test_a_studio_of_the_whole_network_still_asks_for_its_token() -> None:
    opened = TestClient(
        application(ModelStore([DEMO], device="cpu"), TOKEN, (ANY_HOST,)), "http://192.168.0.7:8420"
    )
    assert opened.get("/").status_code == 200
    assert opened.post("/api/shelf").status_code == 401
    foreign = {"x-regard-token": TOKEN, "origin": "http://evil.example"}
    assert opened.post("/api/shelf", headers=foreign).status_code == 403


def test_a_foreign_origin_and_a_missing_token_get_nothing(demo: TestClient) -> None:
    right = {"x-regard-token": TOKEN}
    assert (
        demo.post("/api/shelf", headers=right | {"origin": "http://evil.example"}).status_code
        == 403
    )
    assert demo.post("/api/shelf", headers=right | {"origin": "null"}).status_code == 403
    assert (
        demo.post("/api/shelf", headers=right | {"origin": "http://127.0.0.1:8420"}).status_code
        == 200
    )
    wrong_tokens: list[Any] = [{}, {"x-regard-token": "a-tokem"}, {"x-regard-token": "é".encode()}]
    for wrong in wrong_tokens:
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
     (b'{"model":"demo","text":"  "}', 400), (b'{"model":"demo","text":"a","off":[["nope",0]]}', 400),
     (b'{"model":"demo","text":"a","off":[["encoder.0.self",99]]}', 400), (b" " * (MAX_REQUEST_BYTES + 1), 413)],
)  # fmt: skip
def test_a_wrong_request_is_answered_in_a_few_words(
    demo: TestClient, body: bytes, status: int
) -> None:
    response = demo.post("/api/look", content=body, headers={"x-regard-token": TOKEN})
    assert response.status_code == status
    if status != 200:
        assert set(response.json()["error"]) == {"type", "problem", "repair"}
        assert "Traceback" not in response.text
    assert ask(demo, "look", model="demo", text=TEXT)[
        "output"
    ]  # and the next one is answered as ever


@pytest.mark.parametrize("path", ["/" + "a" * 4095, "a/" * 2047, "\0", "~nobody-here/x"])
def test_a_path_that_is_none_is_refused(tmp_path: Path, path: str) -> None:
    with client(ModelStore([DEMO], device="cpu", opener=FolderOpener())) as studio:
        for view in ("open_folder", "folders"):
            assert ask(studio, view, expect=400, path=path)["error"]["repair"]


def test_weights_that_are_a_link_to_themselves_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    shutil.copytree(DEMO, folder)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to(folder / "model.safetensors")
    with client(ModelStore([folder], device="cpu")) as studio:
        assert "error" in ask(studio, "model", expect=400, model="demo")


def test_a_client_that_goes_in_the_middle_of_a_body_leaves_no_traceback(
    capfd: pytest.CaptureFixture[str],
) -> None:
    sent: list[Any] = []
    messages = iter(
        [{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}]
    )

    async def receive() -> Any:
        return next(messages)

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"host", b"127.0.0.1:8420"), (b"x-regard-token", TOKEN.encode())]
    scope = {"type": "http", "method": "POST", "path": "/api/shelf", "headers": headers,
             "query_string": b"", "raw_path": b"/api/shelf", "root_path": ""}  # fmt: skip

    async def visit() -> None:
        await application(ModelStore([DEMO]), TOKEN)(scope, receive, send)

    asyncio.run(visit())
    assert sent[0]["status"] == 400
    assert "Traceback" not in capfd.readouterr().err


def test_an_endless_body_is_not_read_to_its_end(demo: TestClient) -> None:
    large = demo.post(
        "/api/look",
        content=b" " * (MAX_REQUEST_BYTES + 1),
        headers={"x-regard-token": TOKEN},
    )
    assert large.status_code == 413
    assert large.headers["connection"] == "close"


def test_an_unexpected_failure_shows_no_insides(
    demo: TestClient, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(store: ModelStore, question: Any) -> dict[str, Any]:
        raise RuntimeError("/secret/path")

    monkeypatch.setitem(VIEWS, "shelf", (VIEWS["shelf"][0], broken))
    assert "secret" not in json.dumps(ask(demo, "shelf", expect=500))
    assert "secret" in capsys.readouterr().err


def test_get_is_no_way_in(demo: TestClient) -> None:
    assert demo.get("/api/shelf", headers={"x-regard-token": TOKEN}).status_code in (404, 405)
    assert demo.delete("/").status_code == 405


def test_hostile_words_come_back_as_json_text(demo: TestClient) -> None:
    response = demo.post(
        "/api/look",
        json={"model": "demo", "text": HOSTILE, "target": HOSTILE},
        headers={"x-regard-token": TOKEN},
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
        outside = [
            line
            for line in text.splitlines()
            # The names of SVG and MathML are no addresses.
            if "http" in re.sub(r"http://www\.w3\.org/(2000/svg|1998/Math/MathML)", "", line)
        ]
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
    store = ModelStore([tmp_path / "runs"])
    assert list(store.runs()) == ["a", "b"]
    (tmp_path / "runs" / "c").mkdir()
    (tmp_path / "runs" / "c" / "metrics.jsonl").write_text("")
    assert list(store.runs()) == ["a", "b", "c"]  # a run that began later
    assert list(ModelStore([tmp_path / "runs" / "a"]).runs()) == ["a"]
    # A folder that is named twice is listed once; another of the same name gets a number.
    runs = [tmp_path / "runs" / "a", tmp_path / "runs"]
    assert list(ModelStore(runs).runs()) == ["a", "b", "c"]
    (tmp_path / "elsewhere" / "a").mkdir(parents=True)
    (tmp_path / "elsewhere" / "a" / "metrics.jsonl").write_text("")
    runs = [tmp_path / "elsewhere", tmp_path / "runs"]
    assert list(ModelStore(runs).runs()) == ["a", "a (2)", "b", "c"]
    with pytest.raises(SettingError):
        ModelStore([tmp_path / "nothing"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError):
        ModelStore([tmp_path / "empty"])


def test_weights_that_were_written_anew_have_another_version(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(DEMO, folder)
    with client(ModelStore([folder], device="cpu")) as studio:
        question: dict[str, Any] = {"model": "run", "text": TEXT}
        before = ask(studio, "look", **question)["version"]
        assert (
            ask(studio, "attention", **question, name="encoder.0.self", heads=[0])["version"]
            == before
        )
        os.utime(folder / "model.safetensors", (before + 5, before + 5))
        assert (
            ask(studio, "attention", **question, name="encoder.0.self", heads=[0])["version"]
            != before
        )


def test_what_looks_have_recorded_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = OpenModel(MODELS["writer"]())
    for text in ("The dog sees a cat.", "A cat sees the dog.", "The dog sees."):
        opened.look(text, None, (), ("*.weights",))
    assert len(opened.looks) == 3
    monkeypatch.setattr("regard.studio.model_store.MAX_LOOK_BYTES", 1)
    opened.look(TEXT, None, (), ("*.weights",))
    assert [key[0] for key in opened.looks] == [TEXT]
