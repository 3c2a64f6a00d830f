"""What the studio says a model answers, on every kind of model, and how it opens other folders."""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from looked import MODELS, TEXT, WORDS, png, save_sensing, translator, wav

pytest.importorskip("starlette")
pytest.importorskip("httpx")
from starlette.testclient import TestClient
from test_studio_server import TOKEN, InMemory, ask, client

import regard
from regard import look as looking
from regard.builder import build
from regard.families.presets import preset
from regard.look import MediaInput
from regard.look.forward import forward
from regard.models import DualEncoderModel, LanguageModel, Model, Translator
from regard.models.memory_network import MemoryNetworkModel
from regard.studio import answers
from regard.studio.layers import layer_formulas
from regard.studio.model_store import DEMO, SHAKESPEARE, FolderOpener, ModelStore
from regard.studio.runs import run_status
from regard.system.errors import LongInputWarning, SettingError, UnknownWordsWarning
from regard.system.web_server import is_loopback

STORY = "The dog sees a cat. Who sees a cat?"


def recurrent(name: str) -> Translator:
    torch.manual_seed(0)
    description = preset(f"{name}:tiny", len(WORDS), 64, d_model=16, dropout=0.0)
    core = build(description).eval()
    return Translator(core, description, WORDS, WORDS, WORDS.required_token_id("bos"))  # type: ignore[arg-type]


def memory_network() -> MemoryNetworkModel:
    torch.manual_seed(0)
    description = preset("memory:tiny", len(WORDS), 64)
    return MemoryNetworkModel(build(description).eval(), description, WORDS)  # type: ignore[arg-type]


def dual_encoder() -> Any:
    torch.manual_seed(0)
    description: Any = preset(
        "clip:tiny", len(WORDS), 32, image_size=8, patch=4, d_model=16, heads=2, layers=1
    )
    return DualEncoderModel(build(description).eval(), description, WORDS)  # type: ignore[arg-type]


BASELINES: dict[str, tuple[Callable[[], Model], str]] = {
    "bahdanau": (lambda: recurrent("bahdanau"), TEXT),
    "convs2s": (lambda: recurrent("convs2s"), TEXT),
    "memory": (memory_network, STORY),
}


# ------------------------------------------------------------------ answers


@pytest.mark.parametrize("name", ["writer", "reader", "classifier"])
def test_the_answer_is_the_largest_logit_of_a_forward_pass(name: str) -> None:
    model = MODELS[name]()
    with client(InMemory({name: model})) as studio:
        answer = ask(studio, "answer", model=name, text=TEXT)["answer"]
        inputs = looking.look(model, TEXT, ask=()).model_inputs
        with torch.no_grad():
            logits = forward(model.model, inputs.named)[0].float()
        # Of a text [T, V] at its last position, of a classifier [L].
        probabilities = (logits if logits.ndim == 1 else logits[-1]).softmax(dim=-1)
        best = probabilities.topk(3)
        if name == "classifier":
            expected = [f"LABEL_{i}" for i in best.indices.tolist()]
        else:
            expected = WORDS.tokens(best.indices.tolist())
        assert [share["label"] for share in answer["shares"][:3]] == expected
        np.testing.assert_allclose(
            [share["probability"] for share in answer["shares"][:3]], best.values, atol=1e-5
        )
        assert answer["text"] == expected[0]


def test_a_translation_and_what_it_is_without_heads() -> None:
    model = translator()
    with client(InMemory({"it": model})) as studio:
        result = ask(studio, "answer", model="it", text=TEXT)
        assert result["answer"]["text"] == model.translate(TEXT).strip()
        assert result["usual"] is None
        off = [[f"decoder.{layer}.cross", head] for layer in range(2) for head in range(3)]
        ablated = ask(studio, "answer", model="it", text=TEXT, off=off)
        assert ablated["usual"] == result["answer"]


def test_the_temperature_divides_the_logits() -> None:
    model = MODELS["writer"]()
    with client(InMemory({"it": model})) as studio:
        inputs = looking.look(model, TEXT, ask=()).model_inputs
        with torch.no_grad():
            logits = forward(model.model, inputs.named)[0, 2].double()
        for temperature in (0.1, 1.0, 3.0):
            answer = ask(
                studio,
                "next_tokens",
                model="it",
                text=TEXT,
                position=2,
                temperature=temperature,
                top=5,
            )
            expected = (logits / temperature).softmax(dim=-1).topk(5).values
            shares = [share["probability"] for share in answer["shares"]]
            np.testing.assert_allclose(shares, expected, atol=1e-5)
        refused = ask(studio, "next_tokens", expect=422, model="it", text=TEXT, temperature=0)
        assert "temperature" in refused["error"]["problem"]


def test_the_texts_that_go_on_with_a_likely_token() -> None:
    model = MODELS["writer"]()
    with client(InMemory({"it": model})) as studio:
        answer = ask(studio, "next_tokens", model="it", text=TEXT, top=5)
        ids = WORDS.input_ids(TEXT)
        for share, text in zip(answer["shares"], answer["continued"], strict=True):
            token = WORDS.token_to_id(share["label"])
            assert token is not None
            assert text in (None, WORDS.decode([*ids, token]))
        assert any(answer["continued"])
        # Before the end, what comes next is there already.
        assert ask(studio, "next_tokens", model="it", text=TEXT, position=0)["continued"] is None


@pytest.mark.parametrize("view", ["look", "answer", "steps", "beam", "cache", "path"])
def test_a_text_of_spaces_is_refused_by_every_view(view: str) -> None:
    with client(InMemory({"it": translator()})) as studio:
        refused = ask(studio, view, expect=400, model="it", text="  ")
    assert "text is empty" in refused["error"]["problem"]


def test_the_answers_of_pictures_and_recordings_are_the_models_own(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("PIL")
    contents = {"vit": png(), "clip": png(), "wav2vec2": wav(0.8)}
    for name in contents:
        save_sensing(name, tmp_path / name)
    with client(ModelStore([tmp_path], device="cpu")) as studio:
        for name, content in contents.items():
            head = {"x-regard-token": "a-token"}
            file = studio.post("/api/file", content=content, headers=head).json()["file"]
            answer = ask(studio, "answer", model=name, file=file)["answer"]
            model = regard.load(tmp_path / name, device="cpu", say=lambda text: None)
            if name == "wav2vec2":
                assert "vocab.json" in answer["note"]  # without letters there is no transcript
                # The same file without its sound: 44 bytes of header, then zeros.
                for heard, silent in ((content, False), (content[:44] + bytes(25_600), True)):
                    file = studio.post("/api/file", content=heard, headers=head).json()["file"]
                    told = ask(studio, "answer", model=name, file=file)["warnings"]
                    assert told["silent"] == silent
                continue
            if name == "clip":  # without a tokenizer there are no captions
                assert "no tokenizer" in answer["note"]
                continue
            expected = model.classify(content)
            shares = {share["label"]: share["probability"] for share in answer["shares"]}
            assert shares == pytest.approx(expected, abs=1e-5)
            assert answer["text"] == next(iter(expected))


def test_an_attribution_names_classes_and_letters(tmp_path: Path) -> None:
    """The rows are what the answer is: a class by its name, or the letters of a transcript."""
    pytest.importorskip("transformers")
    classifier = MODELS["classifier"]()
    classifier.config["id2label"] = {"0": "calm", "1": "glad", "2": "sad"}
    with client(InMemory({"it": classifier})) as studio:
        answer = ask(studio, "answer", model="it", text=TEXT)["answer"]
        assert ask(studio, "attribution", model="it", text=TEXT)["predictions"] == [answer["text"]]
        assert answer["text"] in classifier.config["id2label"].values()
    folder = save_sensing("wav2vec2", tmp_path / "speech")
    letters = {"<pad>": 0, "|": 1, **{letter: i for i, letter in enumerate("abcdefghi", 2)}}
    (folder / "vocab.json").write_text(json.dumps(letters))
    with client(ModelStore([folder], device="cpu")) as studio:
        answer = ask(studio, "answer", model="speech", file="example")["answer"]
        assert answer["text"]
        said = ask(studio, "attribution", model="speech", file="example")["predictions"]
        assert " ".join("".join(said).split()) == answer["text"][: len(said)].strip()


@pytest.mark.parametrize("name", BASELINES)
def test_models_before_the_transformer_answer_on_every_page(name: str) -> None:
    make, text = BASELINES[name]
    with client(InMemory({name: make()})) as studio:
        model = ask(studio, "model", model=name)
        question: dict[str, Any] = {"model": name, "text": text}
        assert set(model["analyses"]) <= {"entropy", "attribution"}
        for view in ("look", "answer", "anatomy", "path", *model["analyses"]):
            ask(studio, view, **question)
        path = ask(studio, "path", **question)
        assert path["weights"] or name != "memory"
        # Every station of the drawing has numbers to open.
        for station in path["stations"]:
            ask(studio, "tensor", **question, name=station)


def test_unknown_words_are_named() -> None:
    model = translator()
    with client(InMemory({"it": model})) as studio:
        unknown = ask(studio, "look", model="it", text="The xylophone sees a zebra.")["unknown"]
        assert list(unknown.values()) == ["xylophone", "zebra"]
        tokens = ask(studio, "look", model="it", text="The xylophone sees a zebra.")["source"]
        assert all(tokens[int(position)] == "<unk>" for position in unknown)


def test_warnings_of_the_input_are_those_of_the_task_method(tmp_path: Path) -> None:
    """Words and lengths never seen, as `translate` says them; nothing of an ordinary sentence."""
    long_text = " ".join(["The cat sat on the mat."] * 30)
    with client(ModelStore([DEMO])) as studio:
        for text, seen in ((TEXT, True), ("The zebra sat on the mat.", False), (long_text, False)):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                regard.load(DEMO, device="cpu").translate(text)
            told = ask(studio, "answer", model="demo", text=text)["warnings"]
            kinds = {each.category for each in caught}
            assert (told["unknown"] != []) == (UnknownWordsWarning in kinds)
            assert (told["longest"] is not None) == (LongInputWarning in kinds)
            nothing: dict[str, Any] = {
                "unknown": [],
                "tokens": None,
                "longest": None,
                "silent": False,
            }
            assert seen == (told == nothing)


@pytest.mark.parametrize("name", ["demo", "t5:tiny", "llama:tiny"])
def test_the_scores_of_a_query_lead_to_its_weights(name: str) -> None:
    """softmax(q·k · scale + bias), over what the mask leaves, is the row of the attention map."""
    if name == "demo":
        store: ModelStore = ModelStore([DEMO])
    elif name == "t5:tiny":  # a bias of positions, and no scale
        store = InMemory({name: recurrent("t5")})
    else:  # grouped keys, rotated
        torch.manual_seed(0)
        description = preset(name, len(WORDS), 64, d_model=16, dropout=0.0)
        core = build(description).eval()
        store = InMemory({name: LanguageModel(core, description, WORDS)})  # type: ignore[arg-type]
    with client(store) as studio:
        question: dict[str, Any] = {"model": name, "text": TEXT}
        for attention in ask(studio, "look", **question)["attentions"]:
            asked = {**question, "name": attention, "head": 1, "rows": [1, 0]}
            scores = ask(studio, "scores", **asked)["scores"]
            bias = np.array(scores["bias"] or 0.0)
            logits = np.array(scores["dots"]) * scores["scale"] + bias
            logits = np.where(scores["visible"], logits, -np.inf)
            powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
            weights = powers / powers.sum(axis=-1, keepdims=True)
            np.testing.assert_allclose(weights, scores["weights"], atol=1e-5)


@pytest.mark.parametrize(
    ("name", "formula"),
    [
        ("bahdanau", "A = softmax(wᵀ tanh(Q + K) + mask)"),
        ("convs2s", "A = softmax(Q Kᵀ + mask)"),  # Gehring et al.: no scale
        ("t5", "A = softmax(Q Kᵀ + B + mask)"),
        ("transformer", "A = softmax(Q Kᵀ / √d + mask)"),
    ],
)
def test_the_formula_is_that_of_the_kernel(name: str, formula: str) -> None:
    with client(InMemory({name: recurrent(name)})) as studio:
        weights = ask(studio, "path", model=name, text=TEXT, stack="decoder")["weights"]
        assert weights[next(iter(weights))]["formula"] == formula


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "llama",
            {
                "embedded": "x = E[token]",  # places are told by the rotation
                "q": "Q = R(x W_Q)",
                "input": "RMSNorm(x) = x / √mean(x²) · γ",
                "sum": "x + sublayer(RMSNorm(x))",
                "hidden": "SiLU(W x) ⊙ V x",
                "feedforward": "W₂ (SiLU(W x) ⊙ V x)",
                "output": "RMSNorm(x)",
            },
        ),
        ("gpt2", {"embedded": "x = E[token] + position", "output": "LayerNorm(x)"}),
        ("gpt-neox", {"sum": "x + attention(LayerNorm(x)) + FFN(LayerNorm(x))"}),
        ("mixtral", {"feedforward": "Σ pᵢ FFNᵢ(x), the 2 likeliest of 4 experts"}),
        (
            "bert",
            {
                "embedded": "x = LayerNorm(E[token] + segment + position)",
                "sum": "LayerNorm(x + sublayer(x))",
                "hidden": "GELU(W₁ x + b₁)",
                "feedforward": "W₂ GELU(W₁ x + b₁) + b₂",
                "output": "x",
            },
        ),
        ("transformer", {"embedded": "x = √d · E[token] + position"}),
        ("t5", {"input": "RMSNorm(x) = x / √mean(x²) · γ", "feedforward": "W₂ ReLU(W₁ x)"}),
        ("bahdanau", {"embedded": "x = √d · E[token]"}),
    ],
)
def test_the_formulas_of_a_layer_are_those_of_its_parts(
    name: str, expected: dict[str, str]
) -> None:
    core: Any = build(preset(f"{name}:tiny", len(WORDS), 64))
    formulas = layer_formulas(core, list(core.stacks())[-1])
    assert {key: formulas[key] for key in expected} == expected
    assert ("q" in formulas) == (name in ("llama", "gpt-neox", "mixtral"))


def test_a_stack_without_position_encodings_says_how_it_knows_the_order() -> None:
    with client(InMemory({"bahdanau": recurrent("bahdanau")})) as studio:
        result = ask(studio, "positions", model="bahdanau", stack="decoder")
        assert result["what"] is None
        assert result["note"].startswith("The decoder is recurrent")


def test_a_dual_encoder_matches_captions_as_its_own_method_does() -> None:
    """Cosines, the learned scale and a softmax; with a head off, both towers are without it."""
    model = dual_encoder()
    captions = ["The dog sees a cat.", "a small dog"]
    pixels = MediaInput(torch.rand(1, 3, 8, 8), picture=np.zeros((8, 8, 3), np.uint8))
    run = looking.look(model, pixels, ask=("logits",))
    answered = answers.answer(answers.Question(model, run, pixels, captions=captions))
    with torch.no_grad():
        image = model.model.images(pixels.inputs)[0]
        texts = [model.model.texts(model.read_text(text).inputs)[0] for text in captions]
        logits = torch.stack([image @ text for text in texts]) * model.model.scale.exp()
    expected = dict(zip(captions, logits.softmax(dim=0).tolist(), strict=True))
    assert {share.label: share.probability for share in answered.shares} == pytest.approx(expected)
    assert answered.text == max(expected, key=lambda caption: expected[caption])


def test_siglip_judges_each_caption_by_itself(tmp_path: Path) -> None:
    """As `classify` does: padded captions, the bias, and a sigmoid."""
    torch.manual_seed(0)
    sizes = {"image_size": 8, "patch": 4, "d_model": 16, "heads": 2, "layers": 1}
    description: Any = preset("siglip:tiny", len(WORDS), 32, **sizes)
    model = DualEncoderModel(build(description).eval(), description, WORDS)  # type: ignore[arg-type]
    processor = {"size": {"height": 8, "width": 8}, "image_processor_type": "SiglipImageProcessor"}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(processor))
    model.folder = tmp_path
    captions = ["The dog sees a cat.", "a small dog"]
    image = model.read_medium(png(8))
    run = looking.look(model, image, ask=("logits",))
    answered = answers.answer(answers.Question(model, run, image, captions=captions))
    shares = {share.label: share.probability for share in answered.shares}
    assert not answered.distribution
    assert shares == pytest.approx(model.classify(png(8), captions), abs=1e-6)


# ------------------------------------------------------------------ the path of a token


@pytest.mark.parametrize("name", ["translator", "pre-norm translator", "writer"])
def test_what_a_layer_adds_is_the_difference_of_its_stream(name: str) -> None:
    """Two ways: the sums of the drawing, and the recorded stream."""
    model = MODELS[name]()
    run = looking.look(model, TEXT, ask=["*"])
    stack = "decoder"
    with client(InMemory({name: model})) as studio:
        path = ask(studio, "path", model=name, text=TEXT, stack=stack, layer=1)
    placement = path["stations"]
    rows = [index for index, _ in path["rows"]]
    sums = [station for station in placement if station.endswith(".sum")]
    assert sums
    for station in sums:
        following = "feedforward"
        if station.endswith("self.sum") and f"{stack}.1.cross.output" in run.names:
            following = "cross"
        values = run[f"{stack}.1.{following}.input"]
        if name != "translator":  # pre-norm: the sum has not passed the norm that follows it
            values = run[f"{stack}.0.residual"] + run[f"{stack}.1.self.output"]
            if station.endswith("cross.sum"):
                values = values + run[f"{stack}.1.cross.output"]
        assert placement[station]["width"] == 24
        np.testing.assert_allclose(placement[station]["values"], values[rows], atol=2e-3)
    if name != "translator":
        residual = values + run[f"{stack}.1.feedforward.output"]
        np.testing.assert_allclose(run[f"{stack}.1.residual"], residual, atol=1e-4)


@pytest.mark.parametrize("name", ["translator", "writer", "reader"])
def test_the_words_after_the_last_layer_are_what_the_model_says(name: str) -> None:
    model = MODELS[name]()
    run = looking.look(model, TEXT, ask=["*"])
    with client(InMemory({name: model})) as studio:
        stacks = list(ask(studio, "model", model=name)["stacks"].items())
        path = ask(studio, "path", model=name, text=TEXT, stack=stacks[-1][0])
        before = ask(studio, "path", model=name, text=TEXT, stack=stacks[0][0])
    rows = [index for index, _ in path["rows"]]
    best = torch.from_numpy(run["logits"][rows]).float().softmax(dim=-1).max(dim=-1)
    assert len(path["words"]) == stacks[-1][1] + 1  # before the first layer too
    assert [word for word, _ in path["words"][-1]] == WORDS.tokens(best.indices.tolist())
    shares = [share for _, share in path["words"][-1]]
    np.testing.assert_allclose(shares, best.values, atol=1e-5)
    if len(stacks) > 1:  # no vocabulary stands on an encoder
        assert before["words"] is None
    read = run.model_inputs.decoder_inputs if len(stacks) > 1 else run.model_inputs.inputs
    assert path["ids"] == read[0, rows].tolist()


def test_the_class_after_the_last_layer_is_what_the_model_says() -> None:
    with client(InMemory({"it": MODELS["classifier"]()})) as studio:
        [first, *others] = ask(studio, "path", model="it", text=TEXT)["words"][-1]
        answer = ask(studio, "answer", model="it", text=TEXT)["answer"]
    assert first[0] == answer["text"]
    assert first[1] == pytest.approx(answer["shares"][0]["probability"], abs=1e-5)
    assert others
    assert not any(others)  # the class is read from the first position alone


def test_a_long_input_shows_some_rows_and_always_the_one_that_is_followed() -> None:
    model = MODELS["writer"]()
    text = "The dog sees a cat. " * 20
    with client(InMemory({"it": model})) as studio:
        path = ask(studio, "path", model="it", text=text, row=37)
        rows = [index for index, _ in path["rows"]]
        assert len(rows) <= 29
        assert {0, 37, path["count"] - 1} <= set(rows)


# ------------------------------------------------------------------ opening other folders


@pytest.fixture
def opening(tmp_path: Path) -> tuple[TestClient, Path]:
    home = tmp_path / "home"
    (home / "empty").mkdir(parents=True)
    shutil.copytree(DEMO, home / "models" / "second")
    (home / "link").symlink_to(home / "models")
    opener = FolderOpener(tmp_path / "cache" / "studio.json")
    return client(ModelStore([DEMO], device="cpu", opener=opener)), home


def test_a_folder_is_opened_and_remembered(opening: tuple[TestClient, Path]) -> None:
    studio, home = opening
    assert ask(studio, "shelf")["recent"] == []
    inside = ask(studio, "folders", path=str(home))
    # Links are left out: they could lead anywhere.
    assert [folder["name"] for folder in inside["folders"]] == ["empty", "models"]
    assert ask(studio, "folders", path=str(home / "models"))["folders"] == [
        {"name": "second", "model": True}
    ]
    assert ask(studio, "open_folder", path=str(home / "models" / "second"))["model"] == "second"
    shelf = ask(studio, "shelf")
    assert shelf["models"] == ["demo", "second"]
    assert shelf["recent"] == [str(home / "models" / "second")]
    assert ask(studio, "answer", model="second", text="The cat sat on the mat.")["answer"][
        "text"
    ] == ("Die Katze saß auf der Matte.")


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("empty", "contains no model"),
        ("nowhere", "there is no folder"),
        ("models/second/config.json", "is a file, not a folder"),
        ("a\0b", "not a valid path"),
    ],
)
def test_what_is_no_model_is_refused(
    opening: tuple[TestClient, Path], path: str, problem: str
) -> None:
    studio, home = opening
    refused = ask(studio, "open_folder", expect=400, path=f"{home}/{path}")["error"]
    assert problem in refused["problem"]
    assert refused["repair"]
    assert ask(studio, "shelf")["models"] == ["demo"]


def test_a_model_is_listed_once_however_it_was_named(opening: tuple[TestClient, Path]) -> None:
    """By itself, and with the folder above it."""
    studio, home = opening
    ask(studio, "open_folder", path=str(home / "models" / "second"))
    assert ask(studio, "open_folder", path=str(home / "models"))["model"] == "second"
    assert ask(studio, "shelf")["models"] == ["demo", "second"]


def test_a_pickle_is_not_opened(opening: tuple[TestClient, Path]) -> None:
    studio, home = opening
    folder = home / "pickled"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    ask(studio, "open_folder", expect=400, path=str(folder))


def test_a_model_that_cannot_be_opened_leaves_no_trace(opening: tuple[TestClient, Path]) -> None:
    studio, home = opening
    folder = home / "models" / "second"
    (folder / "config.json").write_text('{"model_type": "marian"}')
    before = ask(studio, "shelf")
    ask(studio, "open_folder", expect=400, path=str(folder))
    assert ask(studio, "shelf") == before
    # A folder of models is listed whole: which of them can be opened is seen when one is chosen.
    assert ask(studio, "open_folder", path=str(home / "models"))["model"] == "second"


def test_names_of_the_hub_only_if_downloads_were_allowed(
    opening: tuple[TestClient, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    studio, home = opening
    refused = ask(studio, "open_folder", expect=400, path="owner/name")["error"]
    assert "--download" in refused["repair"]
    fetched: list[str] = []

    def fetch(name: str, say: Any) -> Path:
        fetched.append(name)
        return home / "models" / "second"

    monkeypatch.setattr("regard.models.hub.fetch", fetch)
    opener = FolderOpener(download=True)
    with client(ModelStore([DEMO], device="cpu", opener=opener)) as other:
        assert ask(other, "open_folder", path="owner/name")["model"] == "second"
        assert fetched == ["owner/name"]


def test_on_the_network_no_other_folder_can_be_reached(tmp_path: Path) -> None:
    with client(ModelStore([DEMO], device="cpu")) as studio:
        assert ask(studio, "shelf")["opens"] is False
        for view in ("open_folder", "folders"):
            refused = ask(studio, view, expect=400, path=str(tmp_path))["error"]
            assert "only the folders it was started with" in refused["problem"]
    assert all(is_loopback(host) for host in ("127.0.0.1", "127.8.8.8", "::1", "localhost"))
    assert not any(is_loopback(host) for host in ("0.0.0.0", "::", "192.168.0.7", "my.machine"))


# ------------------------------------------------------------------ runs


def test_a_run_tells_its_settings_and_how_it_ended(tmp_path: Path) -> None:
    quick: dict[str, Any] = {"builtin_lines": 100, "test_lines": 8, "steps": 2, "warmup_steps": 1}
    quick |= {"beam": 1, "max_length": 64}
    sizes = {"d_model": 16, "d_ff": 16, "heads": 2, "layers": 1, "vocabulary": 200}
    regard.train({**quick, **sizes, "device": "cpu", "threads": 1}, out=tmp_path / "run")
    status = run_status(tmp_path / "run")
    assert (status["status"], status["step"], status["steps"]) == ("finished", 2, 2)
    assert status["settings"]["model"]["d_model"] == 16
    assert status["scores"]["test"]["bleu"] >= 0
    assert status["seconds_left"] is None
    with pytest.raises(SettingError):
        regard.train({**quick, **sizes, "device": "nowhere"}, out=tmp_path / "bad")


@pytest.mark.parametrize(
    ("objective", "model", "expected"),
    [
        ("translate", {"model": "transformer:tiny"}, "negative log-likelihood"),
        ("image_text", {"model": "clip:tiny"}, "negative log-likelihood"),
        ("forecast", {"model": "patchtst:tiny"}, "mean squared error"),
        ("forecast", {"model": "patchtst:tiny", "forecast": "quantiles:0.1:0.9"}, "pinball loss"),
        (
            "forecast",
            {"model": "patchtst:tiny", "forecast": "student_t"},
            "negative log-likelihood",
        ),
        ("forecast", {"model": "time-series-transformer:tiny"}, "negative log-likelihood"),
        ("regress", {}, "mean squared error"),
        ("masked_images", {}, "reconstruction error of masked pixels"),
    ],
)
def test_a_loss_is_called_what_it_is(
    objective: str, model: dict[str, str], expected: str, tmp_path: Path
) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 1.0}\n')
    recipe = {"train": {"objective": objective}, "model": model}
    (tmp_path / "state" / "recipe.json").write_text(json.dumps(recipe))
    assert run_status(tmp_path)["loss"] == expected


def test_the_run_that_logged_last_comes_first(tmp_path: Path) -> None:
    for name, logged in (("early", 100), ("last", 300), ("middle", 200)):
        log = tmp_path / name / "metrics.jsonl"
        log.parent.mkdir()
        log.write_text('{"step": 1, "loss": 2.0}\n')
        os.utime(log, (logged, logged))
    assert ModelStore([tmp_path]).latest_runs() == ["last", "middle", "early"]


def test_the_status_of_a_run_that_has_not_ended(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "state").mkdir(parents=True)
    lines = [{"step": step, "loss": 1.0, "seconds": 2.0 * step} for step in range(1, 11)]
    log = run / "metrics.jsonl"
    log.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"st')
    (run / "state" / "recipe.json").write_text(json.dumps({"train": {"steps": 40}}))
    status = run_status(run)
    assert (status["status"], status["seconds_left"]) == ("training", 60.0)
    os.utime(log, (0, 0))  # written long ago
    assert run_status(run)["status"] == "stopped"
    outcome = {"status": "failed", "problem": "the loss is not finite", "repair": "lower it"}
    (run / "state" / "outcome.json").write_text(json.dumps(outcome))
    status = run_status(run)
    assert (status["status"], status["problem"]) == ("failed", "the loss is not finite")


# ------------------------------------------------------------------ series and graphs


def trained_on_a_series(name: str, folder: Path) -> Any:
    rows = [f"{np.sin(i / 3):.4f}\n" for i in range(120)]
    (folder / "load.csv").write_text("load\n" + "".join(rows))
    settings = {
        "model": name, "series": str(folder / "load.csv"), "horizon": 5, "context": 24,
        "steps": 1, "warmup_steps": 1, "device": "cpu", "threads": 1, "learning_rate": 0.001,
    }  # fmt: skip
    return regard.load(regard.train(settings, out=folder / "run").folder, device="cpu")


@pytest.mark.parametrize("name", ["dlinear:tiny", "nlinear:tiny"])
def test_a_linear_forecaster_answers_and_is_drawn_without_attention(
    name: str, tmp_path: Path
) -> None:
    model = trained_on_a_series(name, tmp_path)
    with client(InMemory({"it": model})) as studio:
        described = ask(studio, "model", model="it")
        assert described["stacks"] == {}
        assert described["linear"].startswith("y = W")
        text = described["examples"][0]
        found = ask(studio, "look", model="it", text=text)
        assert (found["attentions"], found["drawn"]) == ({}, True)
        answer = ask(studio, "answer", model="it", text=text)["answer"]
        assert answer["text"].startswith(f"{model.forecast(text)[0, 0]:.4g}")
        marks = ask(studio, "overlay", model="it", text=text, name="")["marks"]
        # The window and its forecast, and no bars of a weight that there is not.
        assert {mark["kind"] for mark in marks} == {"Line", "Text"}


def test_an_episode_is_answered_and_its_steps_are_named(tmp_path: Path) -> None:
    settings = {
        "model": "decision-transformer:tiny", "environment": "cartpole", "builtin_lines": 100,
        "test_lines": 3, "context": 8, "steps": 1, "warmup_steps": 1, "device": "cpu",
        "threads": 1, "learning_rate": 0.001, "d_model": 16,
    }  # fmt: skip
    run = regard.train(settings, objective="act", out=tmp_path / "run")
    model = regard.load(run.folder, regard.Policy, device="cpu")
    with client(InMemory({"it": model})) as studio:
        text = ask(studio, "model", model="it")["examples"][0]
        shown = ask(studio, "look", model="it", text=text)
        assert shown["source"][:6] == ["R 0", "s 0", "a 0", "R 1", "s 1", "a 1"]
        answer = ask(studio, "answer", model="it", text=text)["answer"]
        # What it would do at the last step that it was shown.
        assert answer["text"] == f"action {model.act(text)[7]}"


@pytest.mark.parametrize("name", ["patchtst:tiny", "time-series-transformer:tiny"])
def test_a_series_is_answered_and_drawn_but_not_read_from_elsewhere(
    name: str, tmp_path: Path
) -> None:
    model = trained_on_a_series(name, tmp_path)
    with client(InMemory({"it": model})) as studio:
        text = ask(studio, "model", model="it")["examples"][0]
        assert ask(studio, "look", model="it", text=text)["drawn"]
        answer = ask(studio, "answer", model="it", text=text)["answer"]
        assert answer["text"].startswith(f"{model.forecast(text)[0, 0]:.4g}")
        drawn = ask(studio, "overlay", model="it", text=text, name="encoder.0.self", heads=[0])
        assert {mark["kind"] for mark in drawn["marks"]} >= {"Line", "Text", "Rect"}
        # A row for each step that is forecast, by its name.
        hangs_on = ask(studio, "attribution", model="it", text=text)
        assert hangs_on["predictions"] == ["+1", "+2", "+3", "+4", "+5"]
        assert len(hangs_on["values"]) == 5
        # This store is as one that is open to the network: no other file is read.
        refused = studio.post(
            "/api/look",
            json={"model": "it", "text": "/etc/passwd"},
            headers={"x-regard-token": TOKEN},
        )
        assert "only the folders it was started with" in refused.json()["error"]["problem"]


def test_the_packaged_language_model_has_read_shakespeare() -> None:
    """A small real model: its validation loss is that of its log, and its examples are its own."""
    with client(ModelStore([SHAKESPEARE])) as studio:
        described = ask(studio, "model", model="shakespeare")
        assert described["examples"][0].startswith("ROMEO:")
        assert described["parameters"] == 940_800
        # After the name of a speaker stands a colon; "my" is followed by "lord".
        for text, word in (("\n\nROMEO", ":"), ("Ay, my good", " lord")):
            shares = ask(studio, "next_tokens", model="shakespeare", text=text)["shares"]
            assert shares[0]["label"].replace("Ġ", " ") == word
