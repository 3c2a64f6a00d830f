"""The README, the guides, the notebooks and the site: what they say is executed."""

from __future__ import annotations

import json
import re
import signal
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import docs_pages  # noqa: E402

from regard.lab.study import listing  # noqa: E402

# Pages train on a few sentences: that words are unknown then is rightly said, and no error.
pytestmark = [
    pytest.mark.thorough,
    pytest.mark.filterwarnings("default::UserWarning:regard"),
]

DOCS = ROOT / "docs"
# Pages with `execute: true` are executed where the site is built.
BUILT = "execute: true"
PAGES = [
    path
    for path in [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
    if BUILT not in path.read_text(encoding="utf-8")
    and docs_pages.blocks(path.read_text(encoding="utf-8"))
]
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """Pages train models and set threads and signal handlers; other tests expect their own."""
    threads = torch.get_num_threads()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    torch.set_num_threads(threads)
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_page_runs(path: Path, tmp_path: Path) -> None:
    outputs = docs_pages.execute(path, tmp_path)
    assert any(block.language in ("python", "sh") for block, _ in outputs)


@pytest.mark.slow
@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_page_runs_in_a_shell(path: Path, tmp_path: Path) -> None:
    docs_pages.execute(path, tmp_path, in_process=False)


def test_a_block_that_fails_is_named() -> None:
    page = "Text.\n\n```python\nprint(1)\n```\n\n```sh\nregard show nothing:here\n```\n"
    good, bad = docs_pages.blocks(page)
    execution = docs_pages.Execution("page.md", ROOT)
    assert execution.run(good).text == "1\n"
    with pytest.raises(docs_pages.PageError, match=r"page\.md, line 8: .*nothing:here"):
        execution.run(bad)


def test_the_readme_is_short() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 120


def test_links_of_the_readme_lead_somewhere() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#]+)\)", text)
    assert len(links) > 10
    assert [link for link in links if not (ROOT / link).exists()] == []


# ------------------------------------------------------------------ the site and the notebooks


def test_the_site_builds_strictly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Executes the annotated paper, the gallery, the concepts and the cells of all notebooks."""
    monkeypatch.setenv("NO_MKDOCS_2_WARNING", "1")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(tmp_path), strict=True))
    pages = sorted(tmp_path.rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        text = page.read_text(encoding="utf-8")
        # Nothing is fetched from elsewhere.
        loaded = re.findall(r'<(?:script|link|img|iframe)[^>]*(?:src|href)="(https?:[^"]+)"', text)
        assert loaded == [], page
    annotated = (tmp_path / "annotated.html").read_text(encoding="utf-8")
    assert annotated.count("<svg") >= 8  # figures
    assert annotated.count("<math") >= 6
    assert "largest difference of 2100 logits" in annotated  # the short version and the package
    demo = (tmp_path / "assets" / "lecture.html").read_text(encoding="utf-8")
    assert 'id="regard-model"' in demo
    commands = (tmp_path / "reference" / "commands.html").read_text(encoding="utf-8")
    assert 'id="regard-translate"' in commands
    recipe = (tmp_path / "reference" / "recipe.html").read_text(encoding="utf-8")
    assert "label_smoothing" in recipe
    studies = (tmp_path / "studies.html").read_text(encoding="utf-8")
    assert studies.count('class="chip') == len(listing.STUDIES)
    for name in listing.STUDIES:
        study = (tmp_path / "studies" / f"{name}.html").read_text(encoding="utf-8")
        assert study.count('<article class="study"') == 1
    results = (tmp_path / "results.html").read_text(encoding="utf-8")
    assert results.count("<svg") >= 3  # charts of the tables
    for notebook in NOTEBOOKS:
        text = (tmp_path / "notebooks" / f"{notebook.stem}.html").read_text(encoding="utf-8")
        assert "<svg" in text


def test_the_report_of_the_studies_is_of_full_runs() -> None:
    """`regard study --all` as it was run: every study, with all seeds, and nothing else."""
    folder = DOCS / "studies"
    names = list(listing.STUDIES)
    assert {path.stem for path in folder.glob("*.json")} == set(names)
    for name in names:
        assert json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))["quick"] is False


def test_notebooks_are_stored_without_outputs() -> None:
    assert len(NOTEBOOKS) == 3
    for path in NOTEBOOKS:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        assert all(not cell.get("outputs") for cell in cells), path


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_in_a_kernel(path: Path, tmp_path: Path) -> None:
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=300, resources=resources).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    shown = "".join(output.get("data", {}).get("text/html", "") for output in outputs)
    assert "<svg" in shown
    # A progress bar, where something is trained by `regard.train`.
    source = "".join(cell.source for cell in notebook.cells)
    assert ("<progress" in shown) == ("regard.train(" in source)


def test_the_package_describes_itself() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for key in ("description", "readme", "license", "authors", "keywords", "classifiers"):
        assert project[key], key
    assert {"docs", "test", "studio", "export"} <= set(project["optional-dependencies"])


def test_a_style_sheet_in_an_output_stays_one() -> None:
    """`&#10;` inside <style> is not a line break: the rules would end, and figures lose colour."""
    pytest.importorskip("mkdocs")
    import docs_hook

    fragment = "<style>\n.a { color: red; }\n</style><pre>1\n2</pre>"
    output = docs_hook._output(docs_pages.Output("", fragment))
    assert "<style> .a { color: red; } </style>" in output
    assert "1&#10;2" in output
