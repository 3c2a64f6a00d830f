"""The examples in examples/serve, run as they are against a server of the small demo."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import regard
from regard.studio.model_store import DEMO
from regard.training.translation_languages import Pair
from serving import Served, served

EXAMPLES = Path(__file__).parents[2] / "examples" / "serve"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
KEY = "a-key-of-this-test"
MAT = "Die Katze saß auf der Matte."


@pytest.fixture(scope="module")
def page_address() -> Iterator[str]:
    """Where a page of another address than the server's is."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    pages = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(EXAMPLES)))
    threading.Thread(target=pages.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{pages.server_address[1]}"
    pages.shutdown()


@pytest.fixture(scope="module")
def guarded(page_address: str) -> Iterator[Served]:
    demo = regard.load(DEMO, device="cpu", say=lambda text: None)
    pair = {"demo": Pair("en", "de")}
    with served({"demo": demo}, key=KEY, languages=pair, origins=[page_address]) as running:
        yield running


def run(*command: str) -> str:
    environment = {**os.environ, "REGARD_API_KEY": KEY}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl(guarded: Served) -> None:
    printed = run("bash", str(EXAMPLES / "ask.sh"), guarded.url)
    assert '{"status":"ok"}' in printed
    assert printed.count(MAT) >= 2  # as a completion, and by /translate
    assert "data: [DONE]" in printed
    assert '"alternatives":["' in printed
    assert '"alignment":{' in printed


def test_python(guarded: Served) -> None:
    printed = run(sys.executable, str(EXAMPLES / "ask.py"), guarded.url)
    name, first, second = printed.splitlines()
    assert (name, first) == ("demo", MAT)
    assert second == guarded.model("demo").translate("The dog does not enter the house.")


@pytest.mark.thorough
@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
def test_the_page(guarded: Served, page_address: str) -> None:
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(f"{page_address}/page.html?server={guarded.url}")
        page.click("button")
        page.wait_for_function("document.getElementById('answer').textContent.includes('key')")
        page.fill("#key", KEY)
        page.click("button")
        page.wait_for_function(f"document.getElementById('answer').textContent === '{MAT}'")
        browser.close()
