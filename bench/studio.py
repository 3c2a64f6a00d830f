"""Latency of the studio in Chromium: how long a person waits, as medians over several tries.

python bench/studio.py [--tries 7] [--width 768] [--steps 100000]

An encoder of 12 layers with 12 heads each reads 512 tokens. "First view" is from the answer of the
forward pass to the first heat map on the screen; "head switch" from the click to the other head on
the screen; "run opened" from following the link to a run of 100,000 logged steps to its curves on
the screen. All are measured in the page, up to the frame that shows them.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

LAYERS = 12
HEADS = 12
TOKENS = 512
WORDS = [f"{a}{b}{c}" for a in "bdfgklmnprst" for b in "aeiou" for c in "lmnrst"]

# Runs `act` in the page, waits until `done` holds, then for the frame that shows it; milliseconds.
CLOCK = """([act, done]) => new Promise((resolve) => {
  const acts = { click: (what) => document.querySelector(what).click(),
    go: (where) => { location.hash = where; } };
  const began = performance.now();
  const ends = { map: (title) => document.querySelector("canvas.map")?.dataset.title === title,
    curve: () => document.querySelector("path[data-points]") !== null,
    grid: (count) => document.querySelectorAll("[data-head] canvas").length === count };
  acts[act[0]](act[1]);
  const look = () => {
    if (!ends[done[0]](done[1])) return requestAnimationFrame(look);
    requestAnimationFrame(() => setTimeout(() => resolve({ began, ended: performance.now(),
      answers: performance.getEntriesByType("resource")
        .map((e) => [e.name, e.startTime, e.responseEnd]) }), 0));
  };
  look();
})"""


def write_model(folder: Path, width: int) -> None:
    """BERT with random weights, large enough for heads to differ, and short made-up words."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    from regard.builder import build
    from regard.data.text.tokenizer import Tokenizer as TextTokenizer
    from regard.families.encoders import bert
    from regard.models.text_encoder import TextEncoder

    torch.manual_seed(0)
    names = {
        word: i for i, word in enumerate(["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]", *WORDS])
    }
    words = Tokenizer(models.WordLevel(names, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 1), ("[SEP]", 2)],
    )
    description = bert.preset("base", len(names), TOKENS, d_model=width)
    model = build(description)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "qkv.weight" in name:
                weight.mul_(3)
    TextEncoder(model, description, TextTokenizer(words)).save(folder)


def write_run(folder: Path, steps: int) -> None:
    with (folder / "metrics.jsonl").open("w") as log:
        for step in range(1, steps + 1):
            noise = random.random()
            line = {
                "step": step,
                "loss": 5 / step**0.3 + 0.1 * noise,
                "learning_rate": 1e-3 / step**0.5,
            }
            log.write(
                json.dumps(
                    line | {"gradient_norm": 1 + noise, "tokens_per_second": 9000 + 500 * noise}
                )
                + "\n"
            )


class Visitor:
    """A page of the studio, and the clock in it."""

    def __init__(self, page: Any, address: str) -> None:
        self.page = page
        page.goto(address)
        page.wait_for_selector("main[aria-busy=false]")

    def time(self, act: tuple[str, Any], done: tuple[str, Any]) -> dict[str, Any]:
        return dict(self.page.evaluate(CLOCK, [act, done]))


def link(page: str, **state: Any) -> str:
    return f"#/{page}?{urlencode(state)}"


def text(seed: int) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=TOKENS - 2))


def first_view(visitor: Visitor, seed: int) -> tuple[float, float, float]:
    """Milliseconds from the forward's answer to the map; from the link to the map, and to all."""
    visitor.page.evaluate("performance.clearResourceTimings()")
    # Another head each time, so that its title shows when it is there.
    name = f"encoder.{seed % LAYERS}.self"
    head = seed // LAYERS
    where = link("look", model="large", text=text(seed), at=name, head=head)
    timing = visitor.time(("go", where), ("map", f"{name}, head {head}"))
    ran = max(
        end
        for name, start, end in timing["answers"]
        if name.endswith("/api/look") and start >= timing["began"]
    )
    visitor.page.wait_for_timeout(100)
    rest = visitor.time(("go", visitor.page.evaluate("location.hash")), ("grid", LAYERS * HEADS))
    visitor.page.wait_for_selector("main[aria-busy=false]")
    return timing["ended"] - ran, timing["ended"] - timing["began"], rest["ended"] - timing["began"]


def switched(visitor: Visitor, layer: int, head: int) -> float:
    """To a head that was not shown before."""
    name = f"encoder.{layer}.self"
    timing = visitor.time(
        ("click", f'[data-head="{name}.{head}"]'), ("map", f"{name}, head {head}")
    )
    visitor.page.wait_for_timeout(150)
    return float(timing["ended"] - timing["began"])


def opened(browser: Any, address: str) -> float:
    """By a new visitor each time: a page that knows the run would only read on."""
    visitor = Visitor(browser.new_page(), address)
    timing = visitor.time(("go", link("train", runs="large")), ("curve", None))
    visitor.page.close()
    return float(timing["ended"] - timing["began"])


def print_median(what: str, times: list[float], bound: float) -> None:
    spread = f"{min(times):.0f}–{max(times):.0f} ms over {len(times)}"
    print(
        f"{what:<28} {statistics.median(times):6.0f} ms  (bound {bound:.0f}; {spread})", flush=True
    )


def main() -> None:
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tries", type=int, default=7)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--steps", type=int, default=100_000)
    options = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    with tempfile.TemporaryDirectory() as folder:
        large = Path(folder) / "large"
        write_model(large, options.width)
        write_run(large, options.steps)
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
        server = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        try:
            assert server.stdout is not None
            address = re.search(r"http://\S+", server.stdout.readline())
            assert address is not None
            with sync_playwright() as driver:
                browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
                visitor = Visitor(
                    browser.new_page(viewport={"width": 1400, "height": 900}), address[0]
                )
                views = [first_view(visitor, seed) for seed in range(1, options.tries + 1)]
                print_median("first view after the forward", [view[0] for view in views], 1000)
                with_forward = statistics.median(view[1] for view in views)
                with_pictures = statistics.median(view[2] for view in views)
                print(
                    f"  with the forward {with_forward:.0f} ms, "
                    f"with all {LAYERS * HEADS} small pictures {with_pictures:.0f} ms"
                )
                heads = [(layer, head) for layer in range(LAYERS) for head in range(1, HEADS)]
                print_median(
                    "head switch",
                    [
                        switched(visitor, *one)
                        for one in random.Random(0).sample(heads, 3 * options.tries)
                    ],
                    100,
                )
                print_median(
                    "run opened", [opened(browser, address[0]) for _ in range(options.tries)], 2000
                )
                browser.close()
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
