"""The four pages in a real browser, driven as a person would. Skipped where Chromium is not
installed.

Pictures are kept in $REGARD_SCREENSHOTS, or in pytest's own folder.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import tokenizers

pytest.importorskip("starlette")
playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
]

DEMO = Path(__file__).parents[2] / "src" / "regard" / "studio" / "demo"
HOSTILE = "<img src=x onerror=window.broken=1>"
TEXT = "The cat sat on the mat."


@dataclass
class Studio:
    browser: Any
    address: str
    folder: Path
    shots: Path
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    @property
    def base(self) -> str:
        return self.address.partition("#")[0]

    def asked(self) -> list[str]:
        """The views that were asked for, one after the other."""
        return [url.partition("/api/")[2] for url in self.requests if "/api/" in url]

    def page(self, view: str = "", width: int = 1400, scheme: str = "light") -> Any:
        """A new visitor, who came by the printed address and then followed a link."""
        context = self.browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce"
        )
        page = context.new_page()
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on(
            "console",
            lambda texts: self.complaints.append(texts.text) if texts.type == "error" else None,
        )
        page.on("dialog", lambda dialog: self.complaints.append(dialog.message))
        page.goto(self.address)
        if view:
            page.goto(self.base + "#/" + view)
        ready(page)
        return page


@pytest.fixture(autouse=True)
def closed_pages(studio: Studio) -> Iterator[None]:
    """Pages that a test leaves open would go on drawing beside those of the next."""
    yield
    for context in studio.browser.contexts:
        context.close()


def ready(page: Any) -> None:
    page.wait_for_timeout(50)
    page.wait_for_selector("main[aria-busy=false]")


def until(page: Any, condition: str) -> None:
    """Playwright's own waiting evaluates strings in the page, which its policy rightly forbids."""
    for _ in range(200):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(50)
    raise AssertionError(condition)


@pytest.fixture(scope="module")
def studio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Studio]:
    folder = tmp_path_factory.mktemp("runs")
    shutil.copytree(DEMO, folder / "demo")
    hostile = folder / HOSTILE
    shutil.copytree(DEMO, hostile)
    words = (hostile / "tokenizer.json").read_text(encoding="utf-8")
    assert '"▁Katze"' in words
    (hostile / "tokenizer.json").write_text(
        words.replace('"▁Katze"', json.dumps("▁" + HOSTILE)), encoding="utf-8"
    )
    sample = {
        "event": "validation",
        "step": 5000,
        "loss": 0.1,
        "samples": [{"source": HOSTILE, "translation": HOSTILE}],
    }
    with (hostile / "metrics.jsonl").open("a") as log:
        log.write(json.dumps(sample) + "\n")
    shots = Path(os.environ.get("REGARD_SCREENSHOTS") or tmp_path_factory.mktemp("shots"))
    shots.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable,
        "-m",
        "regard",
        "studio",
        str(folder),
        "--port",
        "0",
        "--device",
        "cpu",
    ]
    # The list of recent folders is kept in the cache, which is not the user's here.
    environment = {**os.environ, "REGARD_CACHE": str(tmp_path_factory.mktemp("cache"))}
    server = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    )
    try:
        assert server.stdout is not None
        address = re.search(r"http://127\.0\.0\.1:\d+/#token=\S+", server.stdout.readline())
        assert address is not None
        with playwright.sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            browser_studio = Studio(browser, address[0], folder, shots)
            yield browser_studio
            browser.close()
            own_requests = browser_studio.base
            assert browser_studio.requests
            assert not [
                url
                for url in browser_studio.requests
                if not url.startswith((own_requests, f"blob:{own_requests}", "data:"))
            ]
            assert not browser_studio.complaints
    finally:
        server.terminate()
        server.wait()


def large(folder: Path) -> None:
    """144 heads that read 512 tokens, and a run of 100,000 logged steps."""
    import transformers

    sizes: dict[str, Any] = {
        "hidden_size": 48,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 48,
    }
    model = transformers.BertModel(transformers.BertConfig(vocab_size=8, **sizes))
    model.save_pretrained(folder)
    words = {
        word: i
        for i, word in enumerate(
            ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]", "the", "dog", "sees"]
        )
    }
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 1), ("[SEP]", 2)],
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {f"{role}_token": f"[{role.upper()}]" for role in ("pad", "cls", "sep", "unk", "mask")}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    with (folder / "metrics.jsonl").open("w") as log:
        for step in range(1, 100_001):
            line = {
                "step": step,
                "loss": 5 / step**0.3,
                "gradient_norm": 1.0,
                "learning_rate": 1e-3,
                "tokens_per_second": 9e3,
            }
            log.write(json.dumps(line) + "\n")


def sent(page: Any, view: str) -> int:
    """Bytes of all answers of a view so far."""
    return int(
        page.evaluate(
            "(view) => performance.getEntriesByType('resource')"
            ".filter((e) => e.name.includes('/api/' + view))"
            ".reduce((sum, e) => sum + e.encodedBodySize, 0)",
            view,
        )
    )


def link(page: str, **more: str) -> str:
    from urllib.parse import urlencode

    return f"{page}?{urlencode({'model': 'demo', 'text': TEXT, **more})}"


def test_who_resolves_it(studio: Studio) -> None:
    """The head that looks at what the pronoun stands for, on two sentences; and what they become
    without the circuit.
    """
    page = studio.page("look?model=demo")
    page.click("#resolves")
    until(page, "document.querySelectorAll('.token.pinned').length === 2")
    result = json.loads((DEMO / "circuit.json").read_text())
    name, head = result["reader"]
    assert f"at={name}&head={head}" in page.url
    texts = page.locator("main").inner_text()
    assert "weil es zu müde war" in texts
    assert "weil sie zu breit war" in texts
    page.screenshot(path=studio.shots / "resolves.png", full_page=True)
    page.click("#unresolved")
    until(page, "document.querySelector('#switched') !== null")
    ready(page)
    # Without the circuit "it" is the animal in both; what the model said before stands beside it.
    until(page, "document.querySelector('main').innerText.includes('weil es zu breit war')")
    usual = "With all heads: Das Tier überquerte die Straße nicht, weil sie zu breit war."
    assert usual in page.locator("main").inner_text()
    assert page.inner_text(".model-output .changed") == "es"
    # What the button opened is in sight.
    assert page.locator("section[aria-label=Attention]").bounding_box()["y"] < 450
    page.screenshot(path=studio.shots / "unresolved.png", full_page=True)


def test_figures_are_taken_away(studio: Studio, tmp_path: Path) -> None:
    page = studio.page(link("look"))
    for label, head in (
        ("Save attention as SVG", b"<svg xmlns="),  # with the styles of the page
        ("Save attention as PNG", b"\x89PNG"),
        ("Save heat map as PNG", b"\x89PNG"),
    ):
        with page.expect_download() as download:
            page.get_by_label(label).first.click(force=True)
        download.value.save_as(tmp_path / "figure")
        assert (tmp_path / "figure").read_bytes().startswith(head), label


def test_weights_are_drawn_as_they_are_until_someone_asks(studio: Studio) -> None:
    page = studio.page(link("look", at="decoder.0.self", head="0"))
    legend = page.locator("section[aria-label=Attention] .scale")
    assert legend.inner_text().split() == ["weight", "0", "1"]
    page.check("#relative")
    until(
        page,
        "document.querySelector('section[aria-label=Attention] .scale')?.innerText.includes('uniform')",
    )
    assert "relative=1" in page.url


def test_look(studio: Studio) -> None:
    page = studio.page(link("look"))
    assert page.inner_text("#output") == "Die Katze saß auf der Matte."
    assert page.locator("[data-head]").count() == 24
    page.fill("input[name=text]", "The dog does not enter the house because it is too tired.")
    page.keyboard.press("Enter")
    until(page, "document.querySelector('#output')?.textContent.includes('weil er')")
    ready(page)
    page.click('[data-head="encoder.1.self.2"]')
    ready(page)
    assert page.get_attribute('[data-head="encoder.1.self.2"]', "aria-pressed") == "true"
    assert (
        page.evaluate("document.activeElement.dataset.head") == "encoder.1.self.2"
    )  # the keyboard stays where it was
    it = page.locator("g.token[data-row='8']")
    assert it.text_content() == "it"
    # The page may still give the focus back to the head that was pressed.
    until(
        page,
        "(document.activeElement.blur(), document.querySelector('g.token[data-row=\"8\"]').focus(), "
        "document.querySelector('[aria-label=Attention]').innerText.includes('“it” attends most to'))",
    )
    page.keyboard.press("Enter")
    ready(page)
    assert page.get_attribute("g.token[data-row='8']", "aria-pressed") == "true"
    assert page.locator("path.look").count() > 0
    restored = studio.page(page.url.partition("#/")[2])
    assert restored.inner_text("[aria-label=Attention]") == page.inner_text(
        "[aria-label=Attention]"
    )
    page.screenshot(path=studio.shots / "look.png", full_page=True)


def test_heads_off_and_on_again(studio: Studio) -> None:
    off = ",".join(f"decoder.1.cross.{head}" for head in range(3))
    page = studio.page(link("look", off=off, at="decoder.1.cross", head="3"))
    page.click("#switch")
    until(page, "document.querySelector('#switched')?.textContent.startsWith('4 heads ablated')")
    assert page.inner_text("#output") != "Die Katze saß auf der Matte."
    assert "With all heads: Die Katze saß auf der Matte." in page.inner_text("#switched")
    page.screenshot(path=studio.shots / "look-off.png", full_page=True)
    page.click("text=restore all")
    page.wait_for_selector("#switched", state="detached")
    ready(page)
    assert page.inner_text("#output") == "Die Katze saß auf der Matte."


def test_two_sentences_side_by_side(studio: Studio) -> None:
    page = studio.page(link("look"))
    page.click("summary")
    page.fill("[aria-label='Second sentence']", "The dog sees a cat.")
    page.click("button:text-is('Compare')")
    until(page, "document.querySelectorAll('svg.links g.token').length > 20")
    ready(page)
    assert "The dog sees a cat. → Der Hund sieht eine Katze." in page.inner_text(
        "[aria-label=Attention]"
    )


def test_another_head_costs_one_small_request(studio: Studio) -> None:
    page = studio.page(link("look"))
    before = len(studio.asked())
    tokens = page.evaluate_handle("document.querySelector('svg.links .token')")
    page.click('[data-head="decoder.1.cross.2"]')
    until(page, "document.querySelector('canvas.map').dataset.title === 'decoder.1.cross, head 2'")
    ready(page)
    assert studio.asked()[before:] == ["attention"]
    assert page.evaluate("(one) => one.isConnected", tokens)  # the tokens were not drawn again
    page.go_back()
    until(page, "document.querySelector('canvas.map').dataset.title === 'decoder.1.cross, head 3'")
    ready(page)
    assert len(studio.asked()) == before + 1  # a head that was seen is remembered


@pytest.mark.parametrize(
    ("tab", "visible"),
    [
        ("roles", "pronoun→referent"),
        ("patching", "Logit of “er” − “es”"),
        ("neurons", "promotes"),
        pytest.param("circuits", "Heads that compose most", marks=pytest.mark.slow),
        pytest.param("angles", "the lengths of keys", marks=pytest.mark.slow),
        pytest.param("entropy", "Attention entropy of each head", marks=pytest.mark.slow),
        pytest.param("lens", "layer 1", marks=pytest.mark.slow),
        pytest.param("rollout", "attention rollout of the encoder", marks=pytest.mark.slow),
        pytest.param("attribution", "Attention is not explanation.", marks=pytest.mark.slow),
    ],
)
def test_more_analyses(studio: Studio, tab: str, visible: str) -> None:
    text = "The dog does not enter the house because it is too tired."
    page = studio.page(link("look", text=text))
    page.locator(f"[aria-label='More analyses'] [data-value={tab}]").focus()
    page.keyboard.press("Enter")
    until(
        page,
        "document.querySelector('[aria-label=\"More analyses\"]')"
        ".getAttribute('aria-busy') === 'false'",
    )
    assert visible in page.inner_text("#more")
    assert page.locator("#more .error").count() == 0
    restored = studio.page(page.url.partition("#/")[2])
    until(
        restored,
        "document.querySelector('[aria-label=\"More analyses\"]')"
        ".getAttribute('aria-busy') === 'false'",
    )
    assert restored.inner_text("#more") == page.inner_text("#more")
    page.screenshot(path=studio.shots / f"more-{tab}.png", full_page=True)
    if tab == "roles":
        page.click("#roles tr:has-text('pronoun→referent') button")
        until(page, "document.querySelector('canvas.map').dataset.title.startsWith('encoder.')")
    if tab == "neurons":
        page.fill("#corpus", "The cat sat.")
        page.fill("#neuron", "5000")
        page.keyboard.press("Enter")
        page.wait_for_selector("#more .error")
        assert page.input_value("#corpus") == "The cat sat."
        studio.complaints[:] = [texts for texts in studio.complaints if "400" not in texts]
    if tab == "patching":
        page.fill("#patched", "The dog sleeps.")
        page.keyboard.press("Enter")
        page.wait_for_selector("#more .error")
        assert "the same number of tokens" in page.inner_text("#more .error")
        assert page.locator("#patched").count() == 1
        studio.complaints[:] = [texts for texts in studio.complaints if "400" not in texts]
    for each in (page, restored):
        each.context.close()


def sensing(studio: Studio, name: str) -> str:
    """A model that sees or hears, with a name that wants to be an element."""
    pytest.importorskip("transformers")
    pytest.importorskip("PIL")
    from looked import save_sensing

    if not (studio.folder / name).exists():
        save_sensing(name, studio.folder / name)
    return name


PASTE = """(bytes) => {
  const given = new DataTransfer();
  given.items.add(new File([new Uint8Array(bytes)], "pasted.png", { type: "image/png" }));
  document.dispatchEvent(new ClipboardEvent("paste", { clipboardData: given }));
}"""


BRIGHTNESS = """() => {
  const canvas = document.querySelector("#seen");
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  return data.reduce((sum, value, i) => sum + (i % 4 === 3 ? 0 : value), 0) / data.length;
}"""


def test_a_head_that_looks_everywhere_alike_leaves_the_picture_dim(studio: Studio) -> None:
    import safetensors.torch
    import torch

    folder = studio.folder / "even"
    if not folder.exists():
        shutil.copytree(studio.folder / sensing(studio, "vit"), folder)
        weights = safetensors.torch.load_file(folder / "model.safetensors")
        for name, tensor in weights.items():
            if ".query." in name:
                weights[name] = torch.zeros_like(tensor)
        safetensors.torch.save_file(weights, folder / "model.safetensors", {"format": "pt"})
    page = studio.page(link("look", model="even"))
    assert "The class token attends to all positions equally" in page.inner_text(
        "[aria-label=Attention]"
    )
    page.wait_for_selector("#seen")
    # The picture is of mean brightness 110 by itself; an even veil takes half of it.
    assert 30 < page.evaluate(BRIGHTNESS) < 75


def test_a_picture(studio: Studio, tmp_path: Path) -> None:
    from looked import png

    page = studio.page(link("look", model=sensing(studio, "vit")))
    assert "example image" in page.inner_text("section.files")
    assert "The class token attends most to patch" in page.inner_text("[aria-label=Attention]")
    page.set_input_files("#file", [{"name": HOSTILE, "mimeType": "image/png", "buffer": png()}])
    until(page, "location.hash.includes('file=')")
    ready(page)
    assert page.inner_text("#filename") == HOSTILE
    assert page.locator("main img").count() == 0
    assert page.evaluate("window.broken") is None
    box = page.locator("#seen").bounding_box()
    page.mouse.click(box["x"] + box["width"] * 0.5, box["y"] + box["height"] * 0.5)
    until(
        page, "document.querySelector('#seen').getAttribute('aria-valuenow') === '25'"
    )  # 3 rows of 7, 3, and the class
    assert "Patch 4 · 4 attends most to" in page.inner_text("[aria-label=Attention]")
    page.locator("#seen").focus()
    page.keyboard.press("ArrowDown")
    until(page, "document.querySelector('#seen').getAttribute('aria-valuenow') === '32'")
    ready(page)
    assert page.evaluate("document.activeElement.id") == "seen"
    restored = studio.page(page.url.partition("#/")[2])
    assert restored.inner_text("main") == page.inner_text("main")
    for tab, words in (
        ("rollout", "accumulates most attention on"),
        ("attribution", "depends most on"),
    ):
        page.click(f"[aria-label='More analyses'] [data-value={tab}]")
        until(page, f"document.querySelector('#more').innerText.includes('{words}')")
    page.screenshot(path=studio.shots / "look-picture.png", full_page=True)
    page.set_input_files(
        "#file", [{"name": "no.png", "mimeType": "image/png", "buffer": b"no picture"}]
    )
    page.wait_for_selector("main > .error")
    assert "cannot be read" in page.inner_text("main > .error")
    assert page.locator("#file").count() == 1
    studio.complaints[:] = [texts for texts in studio.complaints if "400" not in texts]
    page.click("text=Use the example")
    page.wait_for_selector("#seen")
    ready(page)
    page.evaluate(PASTE, list(png(20, 20)))
    until(page, "document.querySelector('#filename').textContent === 'pasted.png'")


# Rows of the right edge that are white, and how many columns below the bars are drawn on.
AXES = """() => {
  const canvas = document.querySelector("#seen"), context = canvas.getContext("2d"), { width, height } = canvas;
  const edge = context.getImageData(width - 3, 0, 1, height - 80).data;
  const below = context.getImageData(0, height - 17, width, 2).data;
  return {
    frequencies: [...Array(height - 80).keys()].filter((y) => edge[4 * y + 2] > 180),
    times: [...Array(width).keys()].filter((x) => below[4 * x + 3] > 200),
    width, tall: height - 74,
  };
}"""


def test_axes_of_a_recording(studio: Studio) -> None:
    from looked import wav
    from regard.data.audio import frequency_ticks

    page = studio.page(link("look", model=sensing(studio, "wav2vec2"), at="encoder.1.self"))
    recording = {"name": "one.wav", "mimeType": "audio/wav", "buffer": wav(1.0)}
    page.set_input_files("#file", [recording])
    until(page, "location.hash.includes('file=')")
    ready(page)
    drawn = page.evaluate(AXES)
    shares = sorted(frequency_ticks(80).values(), reverse=True)
    expected = [drawn["tall"] * (1 - share) for share in shares]
    assert drawn["frequencies"] == pytest.approx(expected, abs=1)
    # Every 0.2 of one second; the last is the last column.
    seconds = [x / (drawn["width"] - 1) for x in drawn["times"]]
    assert seconds == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0], abs=0.002)


def test_a_recording_can_be_listened_to(studio: Studio) -> None:
    from looked import wav

    page = studio.page(link("look", model=sensing(studio, "wav2vec2"), at="encoder.1.self"))
    recording = {"name": "one.wav", "mimeType": "audio/wav", "buffer": wav(1.0)}
    page.set_input_files("#file", [recording])
    until(page, "location.hash.includes('file=')")
    ready(page)
    until(page, "document.querySelector('.files audio').readyState > 0")
    assert page.evaluate("document.querySelector('.files audio').duration") == pytest.approx(1.0)
    # A line over the spectrogram is where the sound is.
    assert not page.locator(".playhead").is_visible()
    page.evaluate("document.querySelector('.files audio').currentTime = 0.5")
    page.locator(".playhead").wait_for(state="visible")
    at = page.evaluate(
        "parseFloat(document.querySelector('.playhead').style.left)"
        " / document.querySelector('#seen').clientWidth"
    )
    assert at == pytest.approx(0.5, abs=0.01)
    page.screenshot(path=studio.shots / "look-recording.png", full_page=True)


def test_a_token_is_shown_without_its_tokenizers_marks(studio: Studio) -> None:
    script = "async (token) => (await import('/dom.js')).shown(token)"
    page = studio.page(link("look"))
    for token in ("house", "▁house", "Ġhouse", "house</w>"):
        assert page.evaluate(script, token) == "house"
    assert page.evaluate(script, "\u200d") == "U+200D"  # joins two emoji, and is not seen itself


@pytest.mark.parametrize("name", ["wav2vec2", pytest.param("whisper", marks=pytest.mark.slow)])
def test_a_recording(studio: Studio, name: str) -> None:
    from looked import wav

    page = studio.page(link("look", model=sensing(studio, name), at="encoder.1.self"))
    page.set_input_files(
        "#file", [{"name": f"{HOSTILE}.wav", "mimeType": "audio/wav", "buffer": wav(0.8)}]
    )
    until(page, "location.hash.includes('file=')")
    ready(page)
    assert page.inner_text("#filename") == HOSTILE + ".wav"
    assert page.evaluate("window.broken") is None
    page.locator("#seen").focus()
    page.keyboard.press("ArrowRight")
    until(page, "document.querySelector('#seen').getAttribute('aria-valuenow') === '1'")
    assert re.search(
        r"0\.0\d s attends most to \d\.\d\d s", page.inner_text("[aria-label=Attention]")
    )
    if name == "whisper":
        page.click("[data-value='decoder.cross']")
        until(page, "document.querySelectorAll('[aria-label=\"Query tokens\"] button').length > 2")
        page.click("[aria-label='Query tokens'] button >> nth=1")
        until(page, "location.hash.includes('pin=1')")
    page.screenshot(path=studio.shots / f"look-{name}.png", full_page=True)
    page.goto(page.url.replace("#/look", "#/learn"))
    ready(page)
    assert page.locator("svg.anatomy").count() == 1


def test_the_keyboard_reaches_heads_and_cells_by_arrow_keys(studio: Studio) -> None:
    page = studio.page(link("look"))
    assert page.locator("[data-head][tabindex='0']").count() == 1  # of 24
    page.locator("[data-head][tabindex='0']").focus()
    # The sharpest head of the last layer is shown first.
    assert page.evaluate("document.activeElement.dataset.head") == "decoder.1.cross.3"
    page.keyboard.press("ArrowLeft")
    assert page.evaluate("document.activeElement.dataset.head") == "decoder.1.cross.2"
    page.keyboard.press("Enter")
    until(page, "document.querySelector('canvas.map').dataset.title === 'decoder.1.cross, head 2'")
    page.locator("[aria-label=Attention] canvas.map").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    assert "“Die → Katze” attends to “The”" in page.inner_text("[aria-label=Attention]")
    page.keyboard.press("Enter")
    until(page, "location.hash.includes('pin=1')")
    assert page.locator("h1").inner_text() == "Look: demo"


def test_empty_input_unknown_words_and_300_tokens(studio: Studio) -> None:
    page = studio.page(link("look", text="The xylophone sat on the mat."))
    assert "xylophone" in page.inner_text("#unknown")
    assert page.locator("svg.links text", has_text="xylophone ⁇").count() >= 1
    long = studio.page(
        link("learn", text="A " + "Donaudampfschifffahrtsgesellschaft" * 4 + " שלום")
    )
    warning = long.locator("#unknown")
    assert warning.evaluate("(box) => box.scrollWidth <= box.clientWidth")
    assert warning.locator("bdi").all_inner_texts()[-1] == "שלום"  # each word in its direction
    before = page.url
    page.fill("input[name=text]", "  ")
    page.keyboard.press("Enter")
    assert "The input is empty" in page.inner_text("#empty")
    assert page.url == before
    page = studio.page(link("look", text="The cat sat on the mat. " * 43))
    until(page, "document.querySelector('[aria-label=Alignment] svg') !== null")
    box = page.locator("[aria-label=Alignment] svg").bounding_box()
    words = page.locator("[aria-label=Alignment] svg text").evaluate_all(
        "(words) => words.map((word) => word.getBoundingClientRect().x)"
    )
    # Both lines begin at the left edge, inside the card.
    assert sum(x < box["x"] + 200 for x in words) >= 4
    # The translation is no longer than the source: its words stand together, not over all of it.
    lower = page.locator("[aria-label=Alignment] svg text[y='156']").evaluate_all(
        "(words) => words.map((word) => word.getBoundingClientRect().x)"
    )
    assert all(after - before < 250 for before, after in itertools.pairwise(lower))
    assert len(page.inner_text(".model-output")) < 600
    assert "Longer than any training example: 302 tokens" in page.inner_text("#overlong")
    page.screenshot(path=studio.shots / "look-300.png", full_page=True)
    page = studio.page(link("decode", text="The xylophone sat on the mat."))
    until(page, "document.querySelector('#unknown')?.innerText.includes('xylophone')")


def test_another_model_is_opened_from_the_page(studio: Studio, tmp_path: Path) -> None:
    shutil.copytree(DEMO, tmp_path / "elsewhere")
    page = studio.page(link("look"))
    page.click("#open")
    page.fill("#path", str(tmp_path / "nowhere"))
    page.keyboard.press("Enter")
    page.wait_for_selector("dialog .error")
    assert "there is no folder" in page.inner_text("dialog .error")
    studio.complaints[:] = [texts for texts in studio.complaints if "400" not in texts]
    page.fill("#path", str(tmp_path))
    page.click("dialog button:text-is('Browse')")
    page.click("dialog button:text-is('Open elsewhere')")
    until(page, "document.querySelector('#model').value === 'elsewhere'")
    ready(page)
    assert page.inner_text("#output") == "Die Katze saß auf der Matte."
    page.click("#open")
    assert str(tmp_path / "elsewhere") in page.inner_text("dialog")


def test_decode(studio: Studio) -> None:
    page = studio.page(link("decode"))
    assert page.inner_text("#which") == "Step 1 of 8: “Die” is chosen"
    # What comes later is not told before.
    assert page.inner_text("#output") == "Die …"
    page.click("text=Next")
    assert page.inner_text("#output") == "Die Katze …"
    assert "“Katze”" in page.inner_text("#which")
    assert page.locator("#bars .track").count() == 8
    assert page.locator("#bars .drawn").count() == 0  # nothing is sampled
    page.click("[data-value=sample]")
    ready(page)
    assert page.locator("#bars .drawn").count() == 8
    page.locator("input[aria-label=Temperature]").press("ArrowRight")
    until(page, "location.hash.includes('temperature=1.1')")
    ready(page)
    page.screenshot(path=studio.shots / "decode.png", full_page=True)
    page.click("text=Beam search")
    page.wait_for_selector("svg.tree")
    best = page.locator("svg.tree [data-fate=best] .name").all_text_contents()
    assert best[:3] == ["start", "Die", "Katze"]
    assert page.locator("svg.tree [data-fate=pruned]").count() > 5
    tree = page.locator("svg.tree").bounding_box()
    assert tree["x"] + tree["width"] <= 1400  # all steps are seen
    page.locator("svg.tree [data-fate=pruned]").first.click()
    assert "pruned · log-probability" in page.inner_text("#hypothesis")
    page.click("text=Pruned hypotheses")
    until(page, "document.querySelectorAll('svg.tree [data-fate=pruned]').length === 0")
    page.screenshot(path=studio.shots / "beam.png", full_page=True)
    page.click("text=KV cache")
    page.wait_for_selector("#cached")
    assert page.inner_text("#cached") == "1,024 bytes per generated token"
    # The source and six lengths; and the same for any decoder.
    assert page.locator(".memory .track").count() == 7
    assert page.inner_text("#calculated strong") == "32.8 kB"  # 1,024 bytes × 32 tokens
    page.fill("[data-size=length]", "64")
    assert page.inner_text("#calculated strong") == "65.5 kB"
    page.select_option("[aria-label='Sizes of']", "LLaMA 2 7B")
    assert page.inner_text("#calculated strong") == "2.15 GB"  # 2 · 32 · 32 · 128 · 4,096 · 2 bytes


def test_train_follows_a_run(studio: Studio) -> None:
    run = studio.folder / "begun"
    run.mkdir()
    log = run / "metrics.jsonl"
    line = {"loss": 2.0, "gradient_norm": 1.0, "learning_rate": 0.1, "tokens_per_second": 1000.0}
    log.write_text("".join(json.dumps({"step": step, **line}) + "\n" for step in range(1, 11)))
    page = studio.page("train?runs=begun")
    curve = "section[aria-label^=Loss] path[data-line$=training]"
    assert page.get_attribute(curve, "data-points") == "10"
    with log.open("a") as file:
        file.write("".join(json.dumps({"step": step, **line}) + "\n" for step in range(11, 31)))
    page.wait_for_selector(
        "section[aria-label^=Loss] path[data-points='30']", state="attached", timeout=10_000
    )
    page.check("label.run:has-text('demo') >> nth=0 >> input")
    until(
        page,
        "document.querySelectorAll('section[aria-label^=Loss] path[data-line$=training]')"
        ".length === 2",
    )
    # The demo has label smoothing: what it minimises is another line than its log-likelihood.
    objective = page.locator("section[aria-label^=Loss] path[data-line$=objective]")
    assert objective.count() == 1
    titles = page.locator(".charts h2").all_text_contents()
    assert titles[0] == "Loss: negative log-likelihood"
    assert {"Learning rate", "Gradient norm", "Throughput"} <= set(titles)
    # Attention entropy is measured at validations only; this run has none, the other nine.
    widely = page.locator("section[aria-label^='Attention entropy'] path[data-points]")
    assert [widely.nth(i).get_attribute("data-points") for i in range(2)] == ["0", "9"]
    assert page.locator("section[aria-label^='Attention entropy'] .chart circle").count() == 9
    page.screenshot(path=studio.shots / "train.png", full_page=True)


@pytest.mark.slow
def test_a_run_that_goes_on_does_not_disturb_its_reader(studio: Studio) -> None:
    """Settings stay open, the focus stays, and a chart is left alone while one drags over it."""
    run = studio.folder / "going"
    (run / "state").mkdir(parents=True)
    recipe = {"train": {"steps": 1000, "label_smoothing": 0.1, "objective": "translate"}}
    (run / "state" / "recipe.json").write_text(json.dumps(recipe))
    log = run / "metrics.jsonl"

    def train(steps: range) -> None:
        values = [{"step": i, "loss": 6.0 - i / 9, "nll": 5.5 - i / 9, "seconds": i} for i in steps]
        with log.open("a") as file:
            file.write("".join(json.dumps(value) + "\n" for value in values))

    train(range(1, 11))
    page = studio.page("train?runs=going")
    training = "section[aria-label^=Loss] path[data-line=training]"
    assert "16 min 30 s" in page.inner_text("#figures")  # 990 steps of a second each
    assert page.locator("[data-line='training, label smoothing 0.1']").count() == 1
    page.click("#settings summary")
    page.focus("input[aria-label=Smoothing]")
    train(range(11, 21))
    page.wait_for_selector(f"{training}[data-points='20']", state="attached", timeout=10_000)
    assert page.evaluate("document.querySelector('#settings').open")
    assert page.evaluate("document.activeElement.ariaLabel") == "Smoothing"
    # From a third to two thirds of the chart, while the run logs more.
    box = page.locator("section[aria-label^=Loss] .chart").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 3, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 2 / 3, box["y"] + 60)
    train(range(21, 23))
    until(page, "document.querySelector('#figures').innerText.includes('22 of 1,000')")
    assert page.get_attribute(training, "data-points") == "20"
    page.mouse.up()
    until(page, "location.hash.includes('zoom=')")
    ready(page)
    begin, end = map(int, page.url.partition("zoom=")[2].split("-"))
    assert 5 <= begin < end <= 15
    # Another run that begins is offered by itself.
    (studio.folder / "later").mkdir()
    (studio.folder / "later" / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n')
    page.wait_for_selector("label.run:has-text('later')", timeout=10_000)


def test_charts_of_one_point_of_huge_numbers_and_of_less_than_a_decade(studio: Studio) -> None:
    run = studio.folder / "exploded"
    run.mkdir()
    (run / "metrics.jsonl").write_text('{"step": 1, "loss": 8.0, "learning_rate": 1e20}\n')
    page = studio.page("train?runs=exploded")
    assert page.locator("section[aria-label='Learning rate'] .chart circle").count() == 1
    labels = page.locator("section[aria-label='Learning rate'] .chart text").all_text_contents()
    assert "1e+20" in labels
    assert not [text for text in labels if "." in text]  # steps are whole numbers
    lines = [json.dumps({"step": i, "loss": 9.0 - i / 10}) for i in range(1, 41)]
    (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    page = studio.page("train?runs=exploded&scale=log")
    loss = page.locator("section[aria-label^=Loss] .chart .grid")
    assert loss.count() >= 3


def test_a_constant_on_a_logarithmic_axis_a_gap_and_one_axis_for_all_charts(
    studio: Studio,
) -> None:
    run = studio.folder / "broken"
    run.mkdir()
    steps: list[dict[str, object]] = [
        {"step": i, "loss": 3 / i, "learning_rate": 1e-3} for i in range(1, 21)
    ]
    steps[9] = {"step": 10, "loss": "nan", "learning_rate": 1e-3}
    validation = {"event": "validation", "step": 30, "loss": 0.2, "bleu": 11.0}
    lines = [json.dumps(record) for record in (*steps, validation)]
    (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    page = studio.page("train?runs=broken&scale=log&smooth=0.8")
    assert "NaN" not in page.inner_html(".charts")
    page = studio.page("train?runs=broken")
    training = page.locator("[data-line=training]").first.get_attribute("d")
    assert training.count("M") == 2  # the line is not drawn through the step without a loss
    assert page.locator(".chart .broken").count() == 1
    # Charts below each other have the same steps: 30 is at the right edge of all.
    for title in ("Learning rate", "BLEU"):
        assert "30" in page.locator(f"section[aria-label='{title}'] text").all_text_contents()


def test_an_address_that_was_changed_by_hand(studio: Studio) -> None:
    """What is no number counts as not given."""
    for view, more in {
        "learn": {"layer": "x", "row": "-3", "head": "y", "temperature": "z"},
        "decode": {"step": "999", "how": "sample", "temperature": "x", "topp": "7"},
        "look": {"aligned": "x", "pin": "y", "head": "z"},
        "train": {"zoom": "a-b", "smooth": "x"},
    }.items():
        page = studio.page(link(view, **more))
        until(page, "document.querySelectorAll('.loading').length === 0")
        assert page.locator(".error").count() == 0


@pytest.mark.parametrize("view", ["constructor", "toString?model=demo", "decode?view=constructor"])
def test_an_address_of_what_every_object_has_is_no_page(studio: Studio, view: str) -> None:
    page = studio.page(view)
    assert "undefined" not in page.inner_text("#title")
    assert not page.query_selector("main .error")


def test_a_studio_that_has_stopped_can_be_asked_again(studio: Studio) -> None:
    before = list(studio.complaints)
    page = studio.page(link("look"))
    page.context.set_offline(True)
    page.fill("input[name=text]", "The dog sat.")
    page.keyboard.press("Enter")
    page.wait_for_selector(".error")
    page.context.set_offline(False)
    page.click("button:text-is('Try again')")
    until(page, "document.querySelector('#output')?.textContent === 'Der Hund saß.'")
    assert page.locator(".error").count() == 0
    studio.complaints[:] = before  # the browser itself reports the lost connection


def test_the_tour_goes_through_all_layers_to_the_word(studio: Studio) -> None:
    page = studio.page(link("learn", stack="encoder", layer="1", station="encoder.output"))
    open_station = "document.querySelector('.station.open')?.dataset.station"
    # From the encoder to the decoder, and back.
    page.click("#forward")
    until(page, f"{open_station} === 'decoder.embedded'")
    assert "has token id 1." not in page.inner_text("#caption")
    assert "has token id" in page.inner_text("#caption")
    page.click("#back")
    until(page, f"{open_station} === 'encoder.output'")
    # From layer to layer: what leaves one is what the next one reads.
    page = studio.page(link("learn", row="1", station="decoder.0.words"))
    assert page.get_attribute("[aria-current=step]", "data-chapter") == "decoder.0"
    assert "Logit lens" in page.inner_text("#caption")
    page.click("#forward")
    until(page, f"{open_station} === 'decoder.0.residual'")
    assert "layer 1" in page.inner_text("[aria-label=Path] h2")
    # How a vector comes about: the stream and what was found are added, values are mixed.
    page.click("[data-station='decoder.1.self.sum']")
    until(page, "document.querySelectorAll('#equation figure').length === 3")
    assert "norm (" in page.inner_text("#equation")  # post-norm
    page.click("[data-station='decoder.1.cross.weights']")  # opens the sublayer
    page.click("[data-station='decoder.1.cross.mixed']")
    until(page, "document.querySelector('#equation')?.innerText.includes('V of “cat”')")
    page.click("[data-station='decoder.1.words']")
    until(page, "document.querySelector('#guesses') !== null")
    assert page.locator("#forward").is_disabled()
    assert "The path ends here" in page.inner_text("#caption")
    assert page.get_attribute("[aria-current=step]", "data-chapter") == "output"
    assert page.text_content(".out.marked .word") == "Katze"
    assert page.inner_text("#guesses tr.marked td:last-child") == "Katze"
    # The drawing and what is said of the station are seen at once, above the fold.
    for part in ("#caption", "svg.anatomy"):
        box = page.locator(part).bounding_box()
        assert box["y"] >= 0, part
        assert box["y"] + box["height"] <= 900, part
    page.click("#again")
    until(page, f"{open_station} === 'encoder.embedded'")
    assert page.locator("#back").is_disabled()
    assert page.inner_text("#progress") == "Chapter 1 of 6 · step 1 of 1"


def test_learn_shows_the_picture_and_what_the_followed_patch_looks_at(studio: Studio) -> None:
    page = studio.page(link("learn", model=sensing(studio, "vit")))
    until(page, "document.querySelectorAll('.loading').length === 0")
    assert page.inner_text("#pictured .read").startswith("The class token attends")
    # Its class after each layer is read from the class token alone.
    assert page.locator("svg.anatomy .out").count() == 1
    said = page.text_content("svg.anatomy [data-station$='.words'] text.title")
    assert said in ("Class", "Logit lens")
    # A patch of the picture is followed by pressing it.
    page.locator("#pictured canvas").click(position={"x": 5, "y": 5})
    until(page, "document.querySelector('[aria-label=Path] h2')?.innerText.includes('“1 · 1”')")
    until(page, "document.querySelector('#pictured .read')?.innerText.startsWith('Patch 1 · 1')")


def test_playing_is_one_step_of_the_history(studio: Studio) -> None:
    page = studio.page(link("learn", station="decoder.0.self.weights"))
    page.click("[data-station='decoder.0.self.output']")
    ready(page)
    page.click("#play")
    for station in ("sum", "cross.q"):
        until(
            page, f"document.querySelector('.station.open')?.dataset.station.endsWith('{station}')"
        )
    page.click("#play")
    until(page, "document.querySelector('#play')?.textContent === 'Play'")
    page.go_back()
    until(
        page, "document.querySelector('.station.open')?.dataset.station === 'decoder.0.self.output'"
    )
    assert "play=" not in page.url


def test_on_a_phone_the_open_station_is_in_sight(studio: Studio) -> None:
    page = studio.page(link("learn"), 390)
    for _ in range(3):
        page.click("#forward")
        ready(page)
    for part in (".station.open", "#forward", "#caption .formula"):
        box = page.locator(part).bounding_box()
        assert box["x"] >= 0, part
        assert box["x"] + box["width"] <= 390, part
        assert 0 <= box["y"] <= 900, part


def test_values_flow_unless_motion_is_unwanted(studio: Studio) -> None:
    context = studio.browser.new_context(reduced_motion="no-preference")
    page = context.new_page()
    page.goto(studio.address)
    page.goto(studio.base + "#/" + link("learn", station="decoder.0.self.sum"))
    page.wait_for_selector(".anatomy .drop", state="attached")
    page = studio.page(link("learn", station="decoder.0.self.sum"))
    assert page.locator(".anatomy .drop").count() == 0


def test_learn(studio: Studio) -> None:
    page = studio.page(link("learn", station="decoder.0.self.weights"))
    scores = page.locator("#example .score").all_text_contents()
    assert scores == [".30", ".96", ".10", "0", ".30", ".20"]
    assert page.locator("#example .weight").all_text_contents() == [
        ".16",
        ".23",
        ".15",
        ".14",
        ".16",
        ".16",
    ]
    assert page.inner_text("#mixed") == "[.22 .14 .24 .57]"
    page.click("[data-token='2']")  # the path of another token, and what follows it
    until(page, "document.querySelector('#out')?.innerText.includes('Next token after “Katze”')")
    page.locator("input[aria-label=Temperature]").press("ArrowRight")
    until(page, "location.hash.includes('temperature=1.1')")
    # The shares of a query, key by key: products, scaled, masked, and softmax, which sum to 1.
    until(page, "document.querySelector('#scores') !== null")
    table = page.locator("#scores tr").all_inner_texts()
    assert table[0].split("\t") == ["key of", "q · k", "÷ √16", "mask", "softmax", ""]
    shares = [row.split("\t")[-2] for row in table[1:]]
    assert abs(sum(float(share.rstrip(" %")) for share in shares) - 100) < 0.5
    later = [row.split("\t") for row in table[4:]]  # what is not written yet
    assert all(row[-3:-1] == ["−∞", "0"] for row in later)
    page.locator("[data-station='decoder.0.cross.weights']").focus()
    page.keyboard.press("Enter")  # opens the sublayer
    until(page, "document.querySelector('.block.open .label')?.textContent.startsWith('Cross')")
    ready(page)
    page.locator("[data-station='decoder.0.cross.k']").focus()
    page.keyboard.press("Enter")
    until(page, "document.querySelector('#station h2')?.textContent === 'Keys'")
    ready(page)
    assert page.inner_text("#shape") == "4 × 8 × 16"
    assert page.text_content("#caption math msub") == "WK"
    assert page.get_attribute("#caption math", "data-formula") == "K = memory W_K"
    page.click("[data-station='decoder.0.cross.k']")  # once more: the block is closed
    until(page, "document.querySelector('.block.open') === null")
    page.go_back()
    until(page, "document.querySelector('#station h2')?.textContent === 'Keys'")
    ready(page)
    assert page.locator("#station table.numbers tr").count() == 8
    until(page, "document.querySelectorAll('[aria-label=Positions] canvas.map').length === 2")
    assert "sinusoidal vectors added at the input of the encoder" in page.inner_text(
        "[aria-label=Positions]"
    )
    page.screenshot(path=studio.shots / "learn.png", full_page=True)


def test_the_layout_of_a_layer_without_its_drawing(studio: Studio) -> None:
    """Streams are straight, Q, K and V are side by side, the memory has a lane of its own; nothing covers anything else."""
    page = studio.page(link("learn"))
    question = {"model": "demo", "text": TEXT, "stack": "decoder", "layer": 0, "head": 0}
    for opened in ("cross.weights", "self.q", "feedforward.output", "words"):
        found = page.evaluate(
            """async ([question, open]) => {
          const [{ layout }, { columns }, { ask }] = await Promise.all(
            ["flow_layout", "stations", "api"].map((name) => import(`./${name}.js`)));
          const [path, model] = await Promise.all([ask("path", question), ask("model", { model: question.model })]);
          const given = { open, marked: 1, labels: 100, room: 1000, norms: "post", kind: "transformer" };
          return layout(path, columns(path, model), given);
        }""",
            [question, f"decoder.0.{opened}"],
        )
        blocks, stops = found["blocks"], found["stops"]
        assert [block["name"][10:] for block in blocks] == ["self", "cross", "feedforward"]
        assert [block["open"] for block in blocks] == [
            opened.startswith(block["name"][10:]) for block in blocks
        ]
        # From left to right; each returns to the stream behind the block, where its sum stands.
        ends = [place for block in blocks for place in (block["read"], block["x"], block["joins"])]
        assert ends == sorted(ends)
        assert found["lane"]["bottom"] < found["zone"]["top"] < found["zone"]["bottom"]
        assert (
            found["zone"]["bottom"] < found["rows"][0]["y"] < found["rows"][-1]["y"] < found["foot"]
        )
        boxes = [(one["x"], one["y"], one["x"] + one["width"], one["y"] + one["height"])
                 for block in blocks for one in block["stations"]]  # fmt: skip
        for (a, b, c, d), (e, f, g, i) in itertools.combinations(boxes, 2):
            assert c <= e or g <= a or d <= f or i <= b
        parts = {
            one["name"].rsplit(".", 1)[1]: one for block in blocks for one in block["stations"]
        }
        if "q" in parts:
            assert parts["q"]["x"] == parts["k"]["x"] == parts["v"]["x"] < parts["weights"]["x"]
        assert max(stop["x"] + stop["width"] / 2 for stop in stops) <= found["width"]


def test_formulas_are_mathml(studio: Studio) -> None:
    page = studio.page(link("look"))
    for line, expected in {
        "A = softmax(Q Kᵀ / √d + mask)": "<mfrac><mrow><mi>Q</mi><msup><mi>K</mi><mi>T</mi></msup></mrow><msqrt><mi>d</mi></msqrt></mfrac>",
        "LayerNorm(x) = (x − mean) / std · γ": "<mfrac><mrow><mrow><mi>x</mi><mo>−</mo><mi>mean</mi></mrow></mrow><mi>std</mi></mfrac><mo>·</mo><mi>γ</mi>",
        "W₂ x + b₂": "<msub><mi>W</mi><mi>2</mi></msub><mi>x</mi><mo>+</mo><msub><mi>b</mi><mi>2</mi></msub>",
        "x = E[token]": "<mrow><mi>E</mi><mrow><mo>[</mo><mrow><mi>token</mi></mrow><mo>]</mo></mrow></mrow>",
    }.items():
        found = page.evaluate(
            "async (line) => (await import('./formula.js')).formula(line).innerHTML", line
        )
        plain = re.sub(r"<mspace[^>]*></mspace>", "", found).replace(' mathvariant="normal"', "")
        assert expected in plain


def test_matrices_cell_by_cell(studio: Studio) -> None:
    """Each cell of Q Kᵀ is the sum of the products; divided, masked, and through softmax it is the weight."""
    page = studio.page(link("learn", station="decoder.0.self.weights", row="2"))
    until(page, "document.querySelectorAll('#matrices canvas.map').length === 4")
    titles = page.locator("#matrices .matrix h3 math").evaluate_all(
        "(all) => all.map((each) => each.dataset.formula)"
    )
    assert titles == ["Q Kᵀ", "÷ √16", "+ mask", "softmax"]
    page.locator("#matrices canvas.map").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")  # a later token
    told = page.locator("#matrices .chain b").all_text_contents()
    assert told[2] == "−∞"
    assert float(told[3]) == 0
    assert abs(float(told[0]) / 4 - float(told[1])) < 0.01
    terms = page.locator("#matrices .products tr:last-child td").evaluate_all(
        "(cells) => cells.map((cell) => Number(cell.title))"
    )
    assert abs(sum(terms) - float(told[0])) < 0.02


INKED_EDGE = """() => [...document.querySelectorAll('canvas.map')].some((map) => {
  const edge = map.getContext('2d').getImageData(map.width - 1, 0, 1, map.height).data;
  return edge.some((value, i) => i % 4 === 3 && value > 0);
})"""


def test_a_memory_network_in_its_own_words(studio: Studio) -> None:
    """Sentences, hops and a story; no residual stream, no √d, no label that is cut off."""
    from regard.builder import build
    from regard.data.text.tokenizer import Tokenizer
    from regard.data.text.tokenizer_training import word_level_json
    from regard.families.presets import preset
    from regard.models.memory_network import MemoryNetworkModel

    words = word_level_json(["Mary went to the kitchen John garden Where is"], cls_token=False)
    backend = tokenizers.Tokenizer.from_str(words)
    tokenizer = Tokenizer(backend).for_prompts()
    description = preset("memory:tiny", len(tokenizer), 64)
    model = MemoryNetworkModel(build(description), description, tokenizer)  # type: ignore[arg-type]
    model.save(studio.folder / "memory")
    page = studio.page("look?model=memory")
    until(page, "document.querySelectorAll('.loading').length === 0")
    assert not page.evaluate(INKED_EDGE)
    assert page.inner_text("#more") == "attention entropy per head"
    # Two stories side by side, each with its answer.
    second = "Mary went to the garden. Where is Mary?"
    page = studio.page(f"look?model=memory&compare=1&text2={second.replace(' ', '+')}")
    until(
        page,
        "[...document.querySelectorAll('[aria-label=Attention] .model-output')]"
        ".filter((line) => line.innerText.includes('Mary? → ')).length === 2",
    )
    page = studio.page("learn?model=memory&station=memory.0.cross.weights")
    until(page, "document.querySelectorAll('.loading').length === 0")
    chip = page.locator("[data-token='0'] rect").bounding_box()
    name = page.locator("[data-token='0'] text").bounding_box()
    assert chip["x"] <= name["x"]
    assert name["x"] + name["width"] <= chip["x"] + chip["width"]
    line = page.get_attribute("#caption math", "data-formula")
    assert line == "A = softmax(Q Kᵀ + mask)"
    assert "the key k of each sentence" in page.inner_text("#station")
    heads = page.locator("#scores th").all_text_contents()
    assert heads[:3] == ["key of", "q · k", "softmax"]  # nothing is scaled
    assert page.locator("svg.anatomy .dim", has_text="Mary went to the kitchen").count() == 1
    assert "The line is the question" in page.inner_text("[aria-label=Path]")
    assert "Each sentence has a learned vector for its age" in page.inner_text(
        "[aria-label=Positions]"
    )
    page.click("[data-station='memory.0.cross.v']")
    until(page, "document.querySelector('#caption math')?.dataset.formula.includes('C[word]')")


@pytest.mark.slow
def test_the_towers_of_a_dual_encoder_each_in_its_own_words(studio: Studio) -> None:
    """Patches while a picture is shown, tokens once a sentence is written."""
    pytest.importorskip("PIL")
    from regard.builder import build
    from regard.data.text.tokenizer_training import SpecialTokenTemplate, train_lossless_tokenizer
    from regard.families.presets import preset
    from regard.models import DualEncoderModel

    template = SpecialTokenTemplate(("<|endoftext|>",))
    tokenizer = train_lossless_tokenizer(["a red circle a blue square"], "bpe", 300, template)
    sizes = {"image_size": 16, "patch": 8, "d_model": 16, "heads": 2, "layers": 1}
    description: Any = preset("clip:tiny", len(tokenizer), 32, **sizes)
    DualEncoderModel(build(description), description, tokenizer).save(studio.folder / "towers")
    preprocessor = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "size": {"shortest_edge": 16}}
    settings = studio.folder / "towers" / "preprocessor_config.json"
    settings.write_text(json.dumps({**preprocessor, "crop_size": {"height": 16, "width": 16}}))
    page = studio.page("learn?model=towers")
    until(page, "document.querySelectorAll('.loading').length === 0")
    assert page.locator(".asks .chips [aria-pressed=true]").count() == 0  # the picture is shown
    assert page.inner_text("[aria-label=Positions] h2") == "Position encoding of patches"
    page.click("button:text-is('a red circle')")
    until(
        page,
        "document.querySelector('.answer')?.innerText.includes('This is the embedding of the text encoder')",
    )
    ready(page)
    assert page.inner_text(".answer .model-output") == "a 64-dimensional vector"
    assert page.inner_text("[aria-label=Positions] h2") == "Position encoding of tokens"
    page.click("button:text-is('Match')")  # leads back to the picture
    until(page, "document.querySelector('.answer h2')?.innerText === 'Best caption'")
    page = studio.page("learn?model=towers&station=image.encoder.0.self.weights", 320)
    until(page, "document.querySelectorAll('.loading').length === 0")
    tracks = page.locator(".answer .track").evaluate_all("(all) => all.map((e) => e.offsetWidth)")
    assert min(tracks) >= 48  # long captions leave room for their bars
    table = page.locator("#scores").bounding_box()
    assert table["x"] + table["width"] <= 320
    # One picture before two models: the second is asked for the same layer of what it has.
    page = studio.page(link("look", model=sensing(studio, "vit")))
    page.click("summary:text-is('Compare with another model')")
    page.select_option("[aria-label='Second model']", "towers")
    page.click("button:text-is('Compare')")
    until(page, "document.querySelectorAll('canvas.seen').length === 2")
    ready(page)
    assert "Showing image.encoder.0.self" in page.inner_text("[aria-label=Attention]")
    assert not page.inner_text("[aria-label=Attention] .model-output").startswith("→")
    page = studio.page("look?model=towers", 900)
    assert page.locator("body > header").bounding_box()["height"] < 70  # one line


def test_a_recurrent_decoder_remembers_the_same_however_much_it_writes(studio: Studio) -> None:
    from regard.builder import build
    from regard.families.presets import preset
    from regard.models import Translator, load

    demo = load(DEMO, device="cpu")
    assert isinstance(demo, Translator)
    words = demo.input_tokenizer
    description: Any = preset("bahdanau:tiny", len(words), 64, d_model=16)
    start = words.required_token_id("bos")
    Translator(build(description), description, words, words, start).save(studio.folder / "cells")
    page = studio.page("decode?model=cells&view=cache")
    page.wait_for_selector("#cached")
    assert "independent of the length" in page.inner_text("#cached")
    assert page.locator(".memory .track").count() == 2  # the source, and one state
    assert "keys" not in page.inner_text("main").lower()


@pytest.mark.slow
def test_a_language_model_goes_on_with_the_sentence(studio: Studio) -> None:
    from regard.builder import build
    from regard.data.text.tokenizer_training import SpecialTokenTemplate, train_lossless_tokenizer
    from regard.families.presets import preset
    from regard.models import LanguageModel

    template = SpecialTokenTemplate(("<|endoftext|>",))
    tokenizer = train_lossless_tokenizer(["the cat sat on the mat"], "bpe", 300, template)
    description: Any = preset("llama:tiny", len(tokenizer), 64, d_model=16)
    LanguageModel(build(description), description, tokenizer).save(studio.folder / "writer")
    page = studio.page("decode?model=writer&text=the+cat")
    assert "→" not in page.inner_text(".model-output")
    assert page.inner_text(".model-output").startswith("the cat ")
    assert page.locator(".model-output mark#output").count() == 1
    # A likely word is written by pressing it: the path of the next follows.
    page = studio.page("learn?model=writer&text=the+cat")
    until(page, "document.querySelector('#next button.word') !== null")
    page.click("#next button.word >> nth=0")
    until(page, "document.querySelector('input[name=text]')?.value.length > 'the cat'.length")
    assert page.input_value("input[name=text]").startswith("the cat")
    # LLaMA's own parts: no position is added, RMSNorm, gates, and rotated queries.
    for station, formula in {
        "embedded": "x = E[token]",
        "0.self.input": "RMSNorm(x) = x / √mean(x²) · γ",
        "0.self.q": "Q = R(x W_Q)",
        "0.feedforward.hidden": "SiLU(W x) ⊙ V x",
        "0.feedforward.output": "W₂ (SiLU(W x) ⊙ V x)",
        "0.residual": "x + sublayer(RMSNorm(x))",
    }.items():
        page = studio.page(f"learn?model=writer&text=the+cat&station=decoder.{station}")
        until(page, "document.querySelector('#caption .formula') !== null")
        assert page.get_attribute("#caption math", "data-formula") == formula
        of_heads = page.locator("#station [aria-label=Head]").count()
        assert of_heads == (station == "0.self.q")  # a norm has no heads to choose from


@pytest.mark.slow
def test_a_linear_forecaster_on_every_page(studio: Studio, tmp_path: Path) -> None:
    """It has no layers and no attention, and is no language model: its own words, no error."""
    import regard

    series = tmp_path / "load.csv"
    series.write_text("load\n" + "".join(f"{i % 7}\n" for i in range(120)))
    settings = {
        "model": "dlinear:tiny", "series": str(series), "horizon": 5, "context": 24, "steps": 2,
        "warmup_steps": 1, "device": "cpu", "threads": 1, "learning_rate": 0.001,
    }  # fmt: skip
    regard.train(settings, out=studio.folder / "linear")
    page = studio.page("look?model=linear")
    assert page.inner_text(".answer h2") == "Forecast"
    assert page.inner_text("summary") == "Compare two series or two models"
    assert page.locator("#overlay svg line").count() > 20
    page = studio.page("learn?model=linear")
    assert page.inner_text("[aria-label=Path] h2") == "A linear map without layers"
    assert "trend" in page.text_content("[aria-label=Path] math")
    assert "computes its output in one pass" in studio.page("decode?model=linear").inner_text(
        "main"
    )
    page = studio.page("train?runs=linear")
    assert page.locator(".charts h2").first.inner_text() == "Loss: mean squared error"
    assert "NLL" not in page.inner_text("main")
    # Of a decoder of steps, neither who looks nor who is looked at stands on the window.
    regard.train({**settings, "model": "time-series-transformer:tiny"}, out=studio.folder / "steps")
    page = studio.page("look?model=steps&at=decoder.0.self")
    assert page.locator("#overlay").count() == 0
    assert page.locator("[aria-label=Attention] svg.links").count() == 1
    # A sentence is not handed on to a model that reads files.
    page = studio.page(link("look", model="demo", text="The dog sees a cat."))
    page.select_option("#model", "linear")
    until(page, "document.querySelector('.answer h2')?.innerText === 'Forecast'")
    assert page.locator(".error").count() == 0


def test_hostile_names_words_and_samples_stay_text(studio: Studio) -> None:
    for view in ("look", "decode", "decode&view=beam", "learn", "train"):
        name, _, rest = view.partition("&")
        page = studio.page(
            link(name, model=HOSTILE, text="The cat sat " + HOSTILE) + ("&" + rest if rest else "")
        )
        assert HOSTILE in page.inner_text("body")
        assert page.locator("main img").count() == 0
        assert page.evaluate("window.broken") is None
    page = studio.page(link("look", model=HOSTILE))
    assert HOSTILE in page.inner_text("#output")
    assert page.locator("main img").count() == 0


def test_a_mistake_is_told_and_can_be_repaired(studio: Studio) -> None:
    before = list(studio.complaints)
    page = studio.browser.new_context().new_page()
    page.goto(studio.base)
    page.wait_for_selector("#key")
    assert "Access key required" in page.inner_text("main")
    page.fill("#key", studio.address.partition("token=")[2])
    page.keyboard.press("Enter")
    page.wait_for_selector("#output")
    page = studio.page(link("look", off="encoder.0.self.77"))
    assert "head 77" in page.inner_text(".error")
    assert page.locator("input[name=text]").count() == 1
    # An input that cannot be read is refused once, and the rest of the page stands.
    page = studio.page(link("learn", text="The cat " * 3000))
    assert page.locator(".error").count() == 1
    assert page.locator("#example").count() == 1
    assert page.locator("#station").count() == 0
    studio.complaints[:] = before  # the browser itself reports the refused requests


@pytest.mark.slow
def test_512_tokens_of_144_heads_and_100_000_steps_stay_usable(studio: Studio) -> None:
    pytest.importorskip("transformers")
    large(studio.folder / "large")
    text = ("the dog sees " * 170).strip()
    page = studio.page(link("look", model="large", text=text, at="encoder.3.self", head="5"))
    assert page.locator("[data-head]").count() == 144
    assert page.locator("g.token[data-row]").count() == 512
    assert 0 < page.locator("path.look").count() <= 400
    assert sent(page, "grid") < 700_000
    page.evaluate("performance.clearResourceTimings()")
    page.click('[data-head="encoder.7.self.2"]')
    until(
        page,
        "document.querySelector('svg.links')"
        "?.getAttribute('aria-label') === 'encoder.7.self, head 2'",
    )
    assert 512 * 512 * 4 < sent(page, "") < 1_400_000
    page.context.close()
    page = studio.page("train?runs=large")
    points = int(page.get_attribute("section[aria-label^=Loss] path[data-points]", "data-points"))
    assert sent(page, "metrics") < 500_000
    assert 500 <= points <= 2001
    assert "100,000" in page.inner_text("[aria-label=Runs]")
    page.context.close()
    shutil.rmtree(studio.folder / "large")


@pytest.mark.parametrize(
    ("width", "scheme"),
    [
        (320, "dark"),
        (1400, "light"),
        pytest.param(320, "light", marks=pytest.mark.slow),
        pytest.param(1400, "dark", marks=pytest.mark.slow),
    ],
)
def test_every_page_fits_light_and_dark(studio: Studio, width: int, scheme: str) -> None:
    for view, more in (
        ("look", {"more": "attribution"}),
        (
            "look",
            {
                "more": "patching",
                "text": "The dog does not enter the house because it is too tired.",
            },
        ),
        ("decode", {}),
        ("decode", {"view": "cache"}),
        ("train", {}),
        ("learn", {}),
    ):
        page = studio.page(link(view, **more), width, scheme)
        until(page, "document.querySelectorAll('.loading').length === 0")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (
            view,
            more,
            width,
        )
        assert page.evaluate("document.documentElement.dataset.theme") == scheme
        name = "-".join([view, *(v for v in more.values() if " " not in v), scheme, str(width)])
        page.screenshot(path=studio.shots / f"{name}.png", full_page=True)
        page.context.close()
