"""What a command writes never is what it reads, and replaces nothing of value."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from command_line import Command

TEXT = "The dog sees a cat.\n"


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    path = tmp_path / "pairs.tsv"
    path.write_text("The dog sees a cat.\tDer Hund sieht eine Katze.\n")
    return path


@pytest.fixture
def model(demo: Path, tmp_path: Path) -> Path:
    """A model that may be damaged."""
    return Path(shutil.copytree(demo, tmp_path / "model"))


def _content(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("out", ["", ".", "../model"])
def test_a_model_is_not_pruned_onto_itself(
    out: str, command: Command, model: Path, pairs: Path
) -> None:
    before = _content(model)
    flags = ("--heads", "2", "--pairs", pairs)
    command("prune", model, *flags, "--out", f"{model}/{out}").refused("nothing is overwritten")
    assert _content(model) == before


def test_what_exists_is_not_pruned_or_converted_onto(
    command: Command, model: Path, pairs: Path, tmp_path: Path
) -> None:
    command("convert", model, model).refused("nothing is overwritten")
    command("convert", model, pairs).refused("nothing is overwritten")
    flags = ("--heads", "2", "--pairs", pairs)
    command("prune", model, *flags, "--out", pairs).refused("nothing is overwritten")
    assert command("prune", model, *flags).code == 0
    command("prune", model, *flags).refused("choose another --out")


@pytest.mark.parametrize("mistake", [("--lines", "0"), ("--pairs", "empty.tsv")], ids=" ".join)
def test_a_refused_pruning_leaves_nothing(
    mistake: tuple[str, str], command: Command, demo: Path, pairs: Path, tmp_path: Path
) -> None:
    (tmp_path / "empty.tsv").write_text("")
    out = tmp_path / "pruned"
    mistake = (mistake[0], mistake[1].replace("empty", f"{tmp_path}/empty"))
    flags = ("--heads", "2", "--pairs", pairs, *mistake, "--out", out)
    command("prune", demo, *flags).refused()
    assert not out.exists()


MISSING = [("onnx", "onnx"), ("onnx", "onnxscript"), ("onnx", "onnxruntime")]
MISSING += [("ctranslate2", "ctranslate2")]


@pytest.mark.parametrize(("format_name", "package"), MISSING)
def test_a_conversion_without_its_package_leaves_nothing(
    format_name: str,
    package: str,
    command: Command,
    demo: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    out = tmp_path / "converted"
    command("convert", demo, out, "--to", format_name).refused(package, "pip install")
    assert not list(tmp_path.iterdir())


def test_a_file_for_what_is_typed_is_refused(command: Command, demo: Path, tmp_path: Path) -> None:
    """At a terminal the translation was printed, and no file was written."""
    out = tmp_path / "out.txt"
    for terminal in (True, False):
        done = command("translate", demo, "--output", out, text=TEXT, terminal=terminal)
        done.refused("--input")
        assert not done.out
    (tmp_path / "in.txt").write_text(TEXT)
    done = command("translate", demo, "--input", tmp_path / "in.txt", "--output", out)
    assert done.code == 0, done.err
    assert out.read_text().count("\n") == 1


@pytest.mark.parametrize("name", ["in.txt", "./in.txt", "link.txt"])
def test_the_output_never_is_the_input(
    name: str, command: Command, demo: Path, pairs: Path, tmp_path: Path
) -> None:
    source = tmp_path / "in.txt"
    source.write_text(TEXT)
    (tmp_path / "link.txt").symlink_to(source)
    out = f"{tmp_path}/{name}"
    command("translate", demo, "--input", source, "--output", out).refused("also an input")
    flags = ("--source", source, "--target", source)
    command("evaluate", demo, *flags, "--output", out).refused("also an input")
    assert source.read_text() == TEXT


def test_predictions_and_pages_replace_no_other_file(
    command: Command, demo: Path, pairs: Path, tmp_path: Path
) -> None:
    thesis = tmp_path / "thesis.txt"
    thesis.write_text("precious")
    command("evaluate", demo, "--pairs", pairs, "--output", thesis).refused("remove it")
    command("look", demo, TEXT.strip(), "--html", thesis).refused("nothing is overwritten")
    command("look", demo, TEXT.strip(), "--png", thesis).refused("nothing is overwritten")
    command("doctor", demo, "--html", thesis).refused("nothing is overwritten")
    command("study", "scaling", "--html", thesis).refused("nothing is overwritten")
    command("study", "scaling", "--out", thesis).refused("is a file")
    command("look", demo, TEXT.strip(), "--html", tmp_path / "no" / "x.html").refused("no folder")
    assert thesis.read_text() == "precious"
    # A picture is not written under the name of another format, nor into a folder called ~.
    command("look", demo, TEXT.strip(), "--png", tmp_path / "x.pdf").refused("--png", ".png")
    command("look", demo, TEXT.strip(), "--html", "~/no/x.html").refused(str(Path.home()))
    page = tmp_path / "page.html"
    for _ in range(2):  # a page is made anew
        assert command("look", demo, TEXT.strip(), "--html", page).code == 0


def test_a_picture_is_not_drawn_over_the_picture_that_is_read(
    command: Command, demo: Path, tmp_path: Path
) -> None:
    image = tmp_path / "cat.png"
    image.write_bytes(b"an image")
    command("look", demo, image, "--png", image).refused("also an input")
    assert image.read_bytes() == b"an image"
