"""A mistyped file name is not read as a text."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

import regard
from command_line import Command

QUICK: dict[str, Any] = {
    "d_model": 16, "d_ff": 16, "heads": 2, "layers": 1, "steps": 2, "device": "cpu", "threads": 1,
    "learning_rate": 1e-3, "samples": 0, "context": 32,
}  # fmt: skip
REVIEWS = "a good film\tgood\na bad film\tbad\n" * 12
MISTYPED = ["txet.txt", "pairs.tsv", "PHOTO.JPG", "speech.wav", "./no/texts", "/tmp/no-texts"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    (folder / "reviews.tsv").write_text(REVIEWS)
    (folder / "plain.txt").write_text(REVIEWS * 4)
    for name, settings in {
        "classify": {"model": "bert:tiny", "objective": "classify", "text": "reviews.tsv"},
        "gpt": {"model": "gpt2:tiny", "text": "plain.txt"},
    }.items():
        settings["text"] = str(folder / settings["text"])
        regard.train({**QUICK, **settings}, out=folder / name)
    return folder


def verbs(models: Path, demo: Path) -> dict[str, tuple[object, ...]]:
    return {
        "predict": ("predict", models / "classify"),
        "classify": ("classify", models / "classify"),
        "embed": ("embed", models / "classify"),
        "translate": ("translate", demo),
        "generate": ("generate", models / "gpt", "--greedy", "--max-new-tokens", 3),
        "look": ("look", models / "classify"),
    }


VERBS = ("predict", "classify", "embed", "translate", "generate", "look")


@pytest.mark.parametrize("name", MISTYPED)
@pytest.mark.parametrize("verb", VERBS)
def test_a_name_of_no_file_is_no_text(
    verb: str, name: str, command: Command, models: Path, demo: Path
) -> None:
    arguments = verbs(models, demo)[verb]
    done = command(*arguments, name)
    done.refused(f"there is no file {name!r}", "if it is a text")
    assert done.out == ""
    # The repair, followed.
    piped = re.search(r"echo (.*) \| regard (.*)", done.err)
    if piped is not None:
        answered = command(*shlex.split(piped[2]), text=shlex.split(piped[1])[0] + "\n")
    else:
        space = re.search(r"trailing space: (.*)", done.err)
        assert space is not None
        answered = command(*arguments, *shlex.split(space[1]))
    assert answered.code == 0, answered.err
    assert answered.out


@pytest.mark.parametrize("verb", VERBS)
def test_a_file_without_a_suffix_is_no_text(
    verb: str, command: Command, models: Path, demo: Path, tmp_path: Path
) -> None:
    file = tmp_path / "notes"
    file.write_text("a good film\n")
    command(*verbs(models, demo)[verb], file).refused("is a file, not a text")


TEXTS = [
    *("a good film", "good/bad or not", "a film.", "question\tx.txt", "10/10", "he/she", "km/h"),
    *("<b>good</b>", "2026/11/17", "I saved it as notes.txt", "映画/本"),
]


@pytest.mark.parametrize("text", TEXTS)
def test_texts_are_texts(text: str, command: Command, models: Path) -> None:
    done = command("classify", models / "classify", text)
    assert done.code == 0, done.err


def test_a_context_that_is_no_file(command: Command, models: Path) -> None:
    done = command("predict", models / "classify", "Who?", "--context", "story.txt")
    done.refused("there is no file 'story.txt'")


def test_a_name_in_a_folder_that_is_there(
    command: Command, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "texts").mkdir()
    monkeypatch.chdir(tmp_path)
    command("classify", models / "classify", "texts/old").refused("there is no file 'texts/old'")
