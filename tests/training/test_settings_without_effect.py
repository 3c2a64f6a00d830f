"""Settings that a run cannot follow are refused or said, and files that are read are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from command_line import Command
from regard.families import presets
from regard.system.errors import SettingError

TEXT = "the cat sees the dog\nthe dog sees the cat\n" * 30
QUICK = [
    "--model",
    "gpt2:tiny",
    "--steps",
    "2",
    "--layers",
    "1",
    "--warmup-steps",
    "1",
    "--context",
    "16",
]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    file = tmp_path / "text.txt"
    file.write_text(TEXT)
    return file


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--compile",), "--compile has no effect"),
        (("--strategy", "fsdp"), "--processes N"),
        (("--valid-text", "TEXT"), "both training and validation data"),
    ],
    ids=["compile", "strategy", "validation"],
)
def test_without_effect_is_said(
    command: Command, text: Path, flags: tuple[str, ...], words: str
) -> None:
    given = [str(text) if flag == "TEXT" else flag for flag in flags]
    out = str(text.parent / "run")
    done = command("train", "--text", str(text), "--device", "cpu", "--out", out, *QUICK, *given)
    assert done.code == 0, done.err
    assert "warning: " in done.err
    assert words in done.err


def test_test_data_that_is_trained_on_is_said(command: Command, tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("the cat\tdie Katze\nthe dog\tder Hund\n" * 30)
    both = ["--pairs", str(pairs), "--test-pairs", f"{tmp_path}/./pairs.tsv"]
    sizes = ["--preset", "tiny", "--layers", "1", "--vocabulary", "60", "--steps", "1"]
    done = command("train", *both, *sizes, "--device", "cpu", "--out", str(tmp_path / "run"))
    assert done.code == 0, done.err
    assert "both training and test data" in done.err


def test_nothing_is_said_of_a_usual_run(command: Command, text: Path) -> None:
    out = str(text.parent / "run")
    done = command("train", "--text", str(text), "--device", "cpu", "--out", out, *QUICK)
    assert done.code == 0, done.err
    assert "warning: " not in done.err


def test_a_folder_of_texts_names_what_is_read(command: Command, tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    for name in "abcdefg":
        (folder / f"{name}.txt").write_text(TEXT)
    (folder / "notes.md").write_text("not read")
    out = str(tmp_path / "run")
    done = command("train", "--text", str(folder), "--out", out, *QUICK)
    assert done.code == 0, done.err
    assert f"{folder} is read as a.txt, b.txt, c.txt, d.txt, e.txt and 2 more" in done.err
    assert "notes.md" not in done.err


def test_a_data_root_without_a_recipe(command: Command, text: Path) -> None:
    root = str(text.parent)
    command("train", "--data-dir", root).refused("--data-dir", "no recipe is given")
    command("train", "--data-dir", root, "--text", str(text), *QUICK).refused("--data-dir")


def test_the_column_of_a_text_file(command: Command, text: Path) -> None:
    out = text.parent / "run"
    arguments = ["--text", str(text), "--text-column", "body", "--out", str(out), *QUICK]
    command("train", *arguments).refused("no column 'body'")
    assert not out.exists()


def test_the_column_of_lines_to_translate(command: Command, trained: Path, text: Path) -> None:
    done = command("translate", str(trained), "--input", str(text), "--text-column", "body")
    done.refused("no column 'body'")


def test_a_colon_without_a_size() -> None:
    with pytest.raises(SettingError, match="has no size after the colon") as caught:
        presets.preset("gpt2:")
    assert "tiny" in caught.value.repair


def test_a_length_penalty_of_greedy_search(command: Command, trained: Path) -> None:
    flags = ["--beam", "1", "--length-penalty", "gnmt:1"]
    command("translate", str(trained), "a", *flags).refused("--length-penalty")


def test_a_wrong_number_has_its_meaning(command: Command) -> None:
    command("train", "--steps", "0").refused("steps = 0", "correct steps: number of updates")


def test_a_picture_for_a_model_of_text(command: Command, trained: Path, tmp_path: Path) -> None:
    picture = tmp_path / "cat.png"
    picture.write_bytes(b"\x89PNG")
    command("translate", str(trained), str(picture)).refused("is a file", "reads no images")
