"""regard look, as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click.testing
import pytest
from test_commands import refused, regard

from looked import TARGET, TEXT, WORDS, translator
from regard.cli import look as command
from regard.families import folder as folders
from regard.look import alignment, patching
from regard.look.views import VIEWS
from regard.system import disk

OTHER = "The cat sees a small dog."


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    held = translator()
    special: dict[str, Any] = {
        "pad": WORDS.special_token_id("pad"),
        "start": WORDS.special_token_id("bos"),
        "end": WORDS.special_token_id("eos"),
        "unk": WORDS.special_token_id("unk"),
    }
    ids = folders.SpecialTokenIds(**special)
    disk.write_json(folder / "config.json", folders.describe(held.spec, ids))
    folders.write_weights(folder / "model.safetensors", held.model, held.spec)
    WORDS.save(folder / "tokenizer.json")
    return folder


def test_attention_in_the_terminal_and_as_files(model: Path, tmp_path: Path) -> None:
    done = regard(
        "look",
        str(model),
        TEXT,
        "--target",
        TARGET,
        "--part",
        "cross",
        "--layer",
        "1",
        "--head",
        "2",
        "--html",
        "a.html",
        "--png",
        "a.png",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("decoder.1.cross, head 2")
    assert "\x1b" not in done.stdout
    assert "█" in done.stdout
    assert all(len(line) <= 100 for line in done.stdout.splitlines() if "░" in line)
    assert (tmp_path / "a.html").read_text().startswith("<!doctype html>")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_json_is_what_python_gives(model: Path, tmp_path: Path) -> None:
    done = regard(
        "look", str(model), TEXT, "--target", TARGET, "--what", "alignment", "--json", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    own = alignment(translator().look(TEXT, target=TARGET))
    assert found["source"] == list(own.source)
    for row, mine in zip(found["weights"], own.weights.tolist(), strict=True):
        assert row == pytest.approx(mine, abs=1e-5)


def test_patching_says_which_layer_and_place_makes_the_difference(
    model: Path, tmp_path: Path
) -> None:
    asked = ["look", str(model), TEXT, "--target", TARGET, "--what", "patching", "--other", OTHER]
    done = regard(*asked, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("activation patching: logit of")
    assert "cat←dog" in done.stdout
    found = json.loads(regard(*asked, "--part", "decoder", "--json", cwd=tmp_path).stdout)
    own = patching(translator(), TEXT, OTHER, target=TARGET, stack="decoder")
    assert (found["at"], found["answer"], found["instead"]) == (own.at, own.answer, own.instead)
    for row, mine in zip(found["effect"], own.effect.tolist(), strict=True):
        assert row == pytest.approx(mine, abs=1e-4)


def test_every_view_and_what_is_refused(model: Path, tmp_path: Path) -> None:
    options = {"target": ["--target", TARGET], "other": ["--other", OTHER]}
    for what, view in VIEWS.items():
        names = view.options
        given = [flag for name in names for flag in options.get(name, [])]
        if "part" in names:
            given += ["--part", "decoder"]
        if what in ("steps", "beam"):
            given += ["--max-length", "1,3"]
        if what == "probe":
            (tmp_path / "texts").write_text(f"{TEXT}\n" * 8)
            given = ["--texts", str(tmp_path / "texts")]
        text = [TEXT] if view.takes_input else []
        done = click.testing.CliRunner().invoke(
            command.command, [str(model), *text, "--what", what, "--device", "cpu", *given]
        )
        assert done.exit_code == 0, (what, done.output, done.exception)
        assert done.output.strip()
    refused(regard("look", str(model), TEXT, "--what", "patching", cwd=tmp_path), "--other")
    refused(
        regard("look", str(model), TEXT, "--what", "entorpy", cwd=tmp_path),
        "did you mean 'entropy'",
    )
    refused(regard("look", str(model), cwd=tmp_path), "no text")
    refused(regard("look", str(model), TEXT, "--layer", "9", cwd=tmp_path), "0 to 1")
    refused(regard("look", str(model), TEXT, "--head", "9", cwd=tmp_path), "head 9")
    refused(regard("look", str(tmp_path), TEXT, cwd=tmp_path), "config.json")
