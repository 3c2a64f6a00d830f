"""The studio in one HTML file: opened from disk in a browser, its numbers are Python's."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch

import regard
from looked import TEXT, WORDS, reader, translator, writer
from regard import spec
from regard.data.text.tokenizer import Tokenizer
from regard.models import Model
from regard.system.errors import ModelError

pytest.importorskip("starlette")
from test_studio_server import InMemory

from regard.studio.model_store import DEMO, ModelStore
from regard.studio.offline.model_data import check_tokenizer, model_data
from regard.studio.offline.page import ENGINE, WEB, export, modules, page
from regard.studio.views import VIEWS, Packed

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
in_browser = [
    pytest.mark.thorough,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
]
MOST_BYTES = 1_500_000
CAT = "The cat sat on the mat."
TIRED = "The dog does not enter the house because it is too tired."

# ------------------------------------------------------------------ what is written


def test_the_page_of_the_packaged_model_is_small_and_loads_nothing(tmp_path: Path) -> None:
    target = tmp_path / "lecture.html"
    export(ModelStore([DEMO], device="cpu"), target)
    text = target.read_text(encoding="utf-8")
    assert target.stat().st_size < MOST_BYTES
    assert "http://" not in re.sub(r"http://www\.w3\.org/(2000/svg|1998/Math/MathML)", "", text)
    assert "https://" not in text
    assert "default-src 'none'" in text


def test_scripts_import_each_other_by_the_names_in_the_page() -> None:
    addresses = modules()
    for address in addresses.values():
        assert "%22./" not in address
        assert "%22../" not in address
    assert {"regard/main.js", "regard/network.js"} <= addresses.keys()


CHECKED = [*sorted(ENGINE.glob("*.js")), WEB / "lesson.js"]


@pytest.mark.parametrize("file", CHECKED, ids=lambda file: file.name)
def test_scripts_have_checked_types_and_short_functions(file: Path) -> None:
    """As `tsc` and eslint hold them before a commit; prettier closes each at its own indent."""
    lines = file.read_text(encoding="utf-8").splitlines()
    assert lines[0] == "// @ts-check"
    for number, line in enumerate(lines):
        if re.match(r"(export )?(async )?function ", line):
            assert lines.index("}", number) - number < 60, line


def test_weights_are_stored_in_half_precision_only_where_that_is_exact() -> None:
    model = translator()
    assert {each["bits"] for each in model_data(model)["weights"]} == {32}
    with torch.no_grad():
        for parameter in model.model.parameters():
            parameter.copy_(parameter.half().float())
    assert {each["bits"] for each in model_data(model)["weights"]} == {16}


@pytest.mark.parametrize(
    ("model", "part"),
    [
        (lambda: writer(spec.CausalMask(3)), "Mask"),
        (lambda: writer(position=spec.Alibi()), "Alibi"),
        (lambda: reader(spec.Disentangled(7)), "Disentangled"),
        (lambda: reader(None, spec.Pool(), spec.ClassifierHead(3)), "classify"),
    ],
)
def test_a_model_with_another_part_is_refused_by_its_name(model: Any, part: str) -> None:
    with pytest.raises(ModelError, match=part):
        model_data(model())


def test_a_tokenizer_of_another_kind_is_refused_by_its_name() -> None:
    described = json.loads(WORDS.to_json())
    check_tokenizer(described)
    with pytest.raises(ModelError, match="Unigram"):
        check_tokenizer({**described, "model": {"type": "Unigram"}})


# ------------------------------------------------------------------ in a browser


@dataclass
class Visitor:
    """Opens pages from disk, and notes what they say and load."""

    browser: Any
    folder: Path
    shots: Path
    messages: list[str] = field(default_factory=list)
    requests: set[str] = field(default_factory=set)

    def open(self, store: ModelStore, address: str = "", width: int = 1440) -> Any:
        """The exported studio of a store, at an address."""
        file = self.folder / f"{next(iter(store.models()))}.html"
        file.write_text(page(store), encoding="utf-8")
        context = self.browser.new_context(
            viewport={"width": width, "height": 900}, reduced_motion="reduce"
        )
        tab = context.new_page()
        tab.on("console", lambda message: self.messages.append(message.text))
        tab.on("pageerror", lambda error: self.messages.append(str(error)))
        tab.on("request", lambda request: self.requests.add(request.url))
        tab.goto(f"{file.as_uri()}#/{address}")
        ready(tab)
        return tab


def ready(tab: Any) -> None:
    tab.wait_for_timeout(50)
    tab.wait_for_selector("main[aria-busy=false]")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        launched = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture
def visitor(browser: Any, tmp_path: Path) -> Iterator[Visitor]:
    visitor = Visitor(browser, tmp_path, Path(os.environ.get("REGARD_SCREENSHOTS") or tmp_path))
    yield visitor
    for context in browser.contexts:
        context.close()
    assert not visitor.messages
    assert all(url.startswith(("file://", "data:", "blob:")) for url in visitor.requests)


ASK = """async ([view, question]) => {
  const { ask } = await import("regard/api.js");
  const answer = await ask(view, question, { keep: false });
  return JSON.parse(JSON.stringify(answer, (_, value) => (ArrayBuffer.isView(value) ? [...value] : value)));
}"""
# Of answers that round, the last digit may differ by one.
ROUNDED = {"path": 1.01e-3, "alignment": 1.01e-4}
# What depends on the file, or only a server has.
NOT_COMPARED = {"version", "reserved"}


def python(store: ModelStore, view: str, question: dict[str, Any]) -> Any:
    """The answer of the studio's server."""
    schema, function = VIEWS[view]
    answer = function(store, schema.model_validate_json(json.dumps(question)))
    if not isinstance(answer, Packed):
        return json.loads(json.dumps(answer))
    assert answer.shades is not None
    shades = np.round(answer.shades * 255) / 255
    numbers = {"values": answer.values.flatten().tolist(), "shades": shades.flatten().tolist()}
    return {**answer.header, "shape": list(answer.values.shape), **numbers}


def differences(ours: Any, theirs: Any, tolerance: float, where: str = "") -> list[str]:
    """Where two answers differ by more than a tolerance."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        names = (ours.keys() | theirs.keys()) - NOT_COMPARED
        return [
            one
            for name in sorted(names)
            for one in differences(
                ours.get(name, "missing"), theirs.get(name, "missing"), tolerance, f"{where}.{name}"
            )
        ]
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        return [
            one
            for i, (a, b) in enumerate(zip(ours, theirs, strict=True))
            for one in differences(a, b, tolerance, f"{where}[{i}]")
        ]
    numbers = isinstance(ours, int | float) and isinstance(theirs, int | float)
    if numbers and not isinstance(ours, bool):
        # Logits are larger than 1: float32 has seven digits.
        return (
            []
            if abs(ours - theirs) <= tolerance * max(1, abs(ours))
            else [f"{where}: {ours} {theirs}"]
        )
    return [] if ours == theirs else [f"{where}: {ours} {theirs}"]


def questions(text: str, other: str, name: str) -> list[tuple[str, dict[str, Any]]]:
    """What the pages ask of every model; `name` is one of its attentions."""
    stack = name.split(".")[0]
    one = {"text": text}
    points = ("0.self.q", "1.self.k", "1.self.mixed", "0.self.weights", "0.feedforward.hidden")
    return [
        ("look", one),
        ("look", {**one, "off": [[name, 1]]}),
        ("answer", {**one, "off": [[name, 0], [name, 1]]}),
        ("attention", {**one, "name": name}),
        ("attention", {**one, "name": name, "heads": [1], "rows": [2], "relative": True}),
        ("grid", {**one, "name": name}),
        ("entropy", one),
        ("rollout", one),
        ("lens", one),
        ("angles", {**one, "name": name, "head": 1}),
        ("scores", {**one, "name": name, "head": 1, "rows": [2, 0]}),
        ("next_tokens", {**one, "position": 1, "temperature": 2.0}),
        ("patching", {"text": text, "other": other, "stack": stack}),
        ("positions", {"stack": stack, "length": 32}),
        ("path", {**one, "stack": stack, "layer": 1, "head": 1}),
        ("anatomy", one),
        *(("tensor", {**one, "name": f"{stack}.{point}", "head": 1}) for point in points),
        ("tensor", {**one, "name": "logits"}),
    ]


def writing(text: str, name: str) -> list[tuple[str, dict[str, Any]]]:
    """What they ask besides of one that writes."""
    one = {"text": text}
    sampled = {**one, "sample": True, "most": 20}
    return [
        ("steps", {**one, "most": 20}),
        ("steps", {**sampled, "temperature": 1.7, "top_k": 20, "seed": 3}),
        ("steps", {**sampled, "temperature": 2.5, "top_p": 0.8, "seed": 5}),
        ("beam", {**one, "most": 20}),
        ("beam", {**one, "width": 7, "alpha": 1.2, "most": 20, "off": [[name, 0]]}),
        ("cache", one),
    ]


def check(tab: Any, store: ModelStore, asked: list[tuple[str, dict[str, Any]]]) -> None:
    name = next(iter(store.models()))
    for view, question in asked:
        whole = {"model": name, **question}
        found = tab.evaluate(ASK, [view, whole])
        tolerance = ROUNDED.get(view, 1e-5)
        assert not differences(python(store, view, whole), found, tolerance)[:5], (view, question)


@pytest.mark.parametrize("_", [pytest.param(None, marks=in_browser)])
def test_an_encoder_decoder_answers_as_in_python(visitor: Visitor, _: None) -> None:
    store = ModelStore([DEMO], device="cpu")
    tab = visitor.open(store)
    name = "decoder.1.cross"
    empty = TIRED.replace("tired", "empty")
    check(tab, store, questions(TIRED, empty, name))
    check(tab, store, writing(CAT, name))
    alone: list[tuple[str, dict[str, Any]]] = [
        ("alignment", {"text": CAT}),
        ("alignment", {"text": CAT, "layer": 0}),
        ("answer", {"text": "The qwzx frobnicates."}),
        ("look", {"text": "The qwzx sat.", "target": "Die Katze saß."}),
        ("circuit", {}),
        ("roles", {}),
    ]
    check(tab, store, alone)


@pytest.mark.parametrize("_", [pytest.param(None, marks=in_browser)])
def test_a_decoder_answers_as_in_python(visitor: Visitor, _: None) -> None:
    """With rotary positions, grouped keys, RMSNorm before each sublayer and SwiGLU."""
    store = InMemory({"writer": writer()})
    tab = visitor.open(store)
    check(tab, store, questions(TEXT, TEXT.replace("dog", "cat"), "decoder.1.self"))
    check(tab, store, writing(TEXT, "decoder.1.self"))


def word_pieces() -> tokenizers.Tokenizer:
    marks = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = [*marks, "the", "cat", "dog", "sat", "on", "mat", "play", "##ing", "##s", "."]
    vocabulary = {word: i for i, word in enumerate(words)}
    model = tokenizers.models.WordPiece(vocabulary, unk_token="[UNK]")
    backend = tokenizers.Tokenizer(model)
    backend.normalizer = tokenizers.normalizers.BertNormalizer()
    backend.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    backend.decoder = tokenizers.decoders.WordPiece()
    backend.add_special_tokens(marks)
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return backend


@pytest.fixture
def bert(tmp_path: Path) -> Model:
    import transformers

    backend = word_pieces()
    names = {f"{role}_token": f"[{role.upper()}]" for role in ("unk", "pad", "cls", "sep", "mask")}
    sizes: dict[str, Any] = {
        "hidden_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 40,
    }
    settings = transformers.BertConfig(vocab_size=backend.get_vocab_size(), **sizes)
    model = transformers.BertForMaskedLM(settings)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    folder = tmp_path / "bert"
    model.save_pretrained(folder)
    transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **names).save_pretrained(folder)
    return regard.load(folder, device="cpu")


@pytest.mark.parametrize("_", [pytest.param(None, marks=in_browser)])
def test_an_encoder_answers_as_in_python(visitor: Visitor, bert: Model, _: None) -> None:
    """With learned positions, segments, GELU, and a norm after each sublayer."""
    store = InMemory({"bert": bert})
    tab = visitor.open(store)
    asked = questions(
        "The cats sat on the [MASK].", "The dogs sat on the [MASK].", "encoder.1.self"
    )
    check(tab, store, asked)
    check(tab, store, [("answer", {"text": "The cat was playing."})])


TEXTS = [
    "The cat sat on the mat.",
    "  Größe,  naïve: it's 12 “houses” … ",
    "a\tb ▁c",
    "</s>",
    "日本",
]
ENCODE = """async ([data, texts]) => {
  const { Tokenizer } = await import("regard/tokenizer.js");
  const tokenizer = new Tokenizer(data);
  return texts.map((text) => {
    const ids = tokenizer.inputIds(text);
    return [ids, tokenizer.tokens(ids), tokenizer.decode(ids)];
  });
}"""


def byte_level() -> Tokenizer:
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(TEXTS * 4, trainer)
    return Tokenizer(backend)


def byte_pairs() -> Tokenizer:
    from regard.data.text.tokenizer_training import train_tokenizer

    return train_tokenizer(TEXTS * 4 + [TEXT], "bpe", 80)


@pytest.mark.parametrize("_", [pytest.param(None, marks=in_browser)])
def test_tokenizers_read_and_write_as_the_library(visitor: Visitor, _: None) -> None:
    from regard.studio.offline.page import tokenizer_data

    tab = visitor.open(InMemory({"translator": translator()}))
    for tokenizer in (WORDS, byte_level(), byte_pairs(), Tokenizer(word_pieces())):
        described = json.loads(tokenizer.to_json())
        found = tab.evaluate(ENCODE, [{"json": described, **tokenizer_data(tokenizer)}, TEXTS])
        for text, (ids, tokens, decoded) in zip(TEXTS, found, strict=True):
            assert ids == tokenizer.input_ids(text), text
            assert tokens == tokenizer.tokens(ids)
            assert decoded == tokenizer.decode(ids)


@pytest.mark.parametrize("width", [pytest.param(w, marks=in_browser) for w in (1440, 390)])
def test_a_visitor_changes_the_sentence_ablates_a_head_and_steps_a_beam(
    visitor: Visitor, width: int
) -> None:
    store = ModelStore([DEMO], device="cpu")
    model = regard.load(DEMO, device="cpu")
    tab = visitor.open(store, width=width)
    assert "Die Katze saß" in tab.inner_text("#output")
    # What the page cannot do is not shown.
    assert tab.inner_text("#tabs").split() == ["Look", "Decode", "Learn"]
    assert not tab.is_visible("#open")
    tab.fill("input[name=text]", "The dog sees a cat.")
    tab.press("input[name=text]", "Enter")
    ready(tab)
    assert tab.inner_text("#output") == model.translate(["The dog sees a cat."])[0]
    tab.click("#switch")
    ready(tab)
    assert "1 head ablated" in tab.inner_text("#switched")
    tab.screenshot(path=visitor.shots / f"offline-look-{width}.png", full_page=True)
    for address in ("look?more=lens", "learn", "decode", "decode?view=beam&width=3"):
        tab.evaluate("(address) => { location.hash = '#/' + address; }", address)
        ready(tab)
        tab.wait_for_timeout(300)
        assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth"), address
        assert not tab.query_selector(".error")
    best = tab.locator("g[data-fate=best] text.name").all_text_contents()
    assert best[:3] == ["start", "Die", "Katze"]
    # A wider beam has more hypotheses.
    before = tab.locator("g[data-fate]").count()
    tab.evaluate("location.hash = '#/decode?view=beam&width=6'")
    ready(tab)
    tab.wait_for_timeout(300)
    assert tab.locator("g[data-fate]").count() > before
