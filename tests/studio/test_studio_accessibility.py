"""Every page through axe, at the widths of a phone, of a zoomed page and of a wide screen: no finding, no message, no
foreign request, nothing wider than the page.

axe-core is fetched by npm for the test, into pytest's folder; without npm or a registry the test is skipped.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")
playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
NPM = shutil.which("npm")
pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
    pytest.mark.skipif(NPM is None, reason="npm is not installed"),
]
AXE = "axe-core@4.14.0"
STUDIO = Path(__file__).parents[2] / "src" / "regard" / "studio"
PAGES = (
    "look?model=demo",
    "look?model=demo&sort=entropy&pin=2&relative=1",
    "look?model=shakespeare&more=lens",
    "decode?model=demo",
    "decode?model=demo&view=beam",
    "decode?model=demo&view=cache",
    "decode?model=shakespeare&how=sample",
    "learn?model=demo",
    "learn?model=demo&station=decoder.0.cross.weights",
    "learn?model=shakespeare&station=decoder.3.words&values=all",
    "train?runs=demo|shakespeare&by=tokens",
)
WIDTHS = (320, 1440)
FINDINGS = """async () => (await axe.run(document, { resultTypes: ["violations"] })).violations.map(
  (found) => `${found.id}: ${found.nodes.slice(0, 3).map((node) => node.html.slice(0, 160)).join(" | ")}`)"""
OVER = "document.documentElement.scrollWidth - window.innerWidth"


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    assert NPM is not None
    folder = tmp_path_factory.mktemp("axe")
    command = [NPM, "install", "--no-save", "--prefix", str(folder), AXE]
    found = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    script = folder / "node_modules" / "axe-core" / "axe.min.js"
    if not script.exists():
        pytest.skip(f"npm did not fetch {AXE}: {found.stderr[-300:]}")
    return script.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("runs")
    for name in ("demo", "shakespeare"):
        shutil.copytree(STUDIO / name, folder / name)
    command = [sys.executable, "-m", "regard", "studio", str(folder), "--port", "0"]
    server = subprocess.Popen(
        [*command, "--device", "cpu"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert server.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:\d+/#token=\S+", server.stdout.readline())
        assert found is not None
        yield found[0]
    finally:
        server.terminate()
        server.wait()


def settled(page: Any) -> None:
    for _ in range(600):
        page.wait_for_timeout(50)
        done = "document.querySelector('main')?.getAttribute('aria-busy') === 'false'"
        if page.evaluate(f"{done} && !document.querySelector('.loading')"):
            return
    raise AssertionError(page.url)


def watched(browser: Any, base: str, width: int, scheme: str, found: list[str]) -> Any:
    """A page that notes its errors, its messages, and requests to any other address."""
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce"
    )
    page = context.new_page()
    page.on("pageerror", lambda error: found.append(f"error: {error}"))
    page.on("console", lambda line: found.append(f"console: {line.text}"))

    def requested(request: Any) -> None:
        if not request.url.startswith((base, f"blob:{base}", "data:")):
            found.append(f"request: {request.url}")

    page.on("request", requested)
    return page


def test_axe_finds_nothing(address: str, axe: str) -> None:
    base = address.partition("#")[0]
    found: list[str] = []
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for width, scheme in zip(WIDTHS, ("light", "dark"), strict=True):
            page = watched(browser, base, width, scheme, found)
            page.goto(address)
            for view in PAGES:
                page.goto(f"{base}#/{view}")
                settled(page)
                page.evaluate(axe)
                found += [f"{view} at {width}: {each}" for each in page.evaluate(FINDINGS)]
                if (over := page.evaluate(OVER)) > 0:
                    found.append(f"{view} at {width}: {over} px too wide")
        browser.close()
    assert not found, "\n".join(found)
