"""Mistakes on the command line, each answered in one form: the problem, then the repair."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import regard
from command_line import Command
from regard.system import memory

pytestmark = pytest.mark.thorough

_SIZES = {"--d-model": 16, "--d-ff": 32, "--heads": 2, "--layers": 1}
_QUICK = {"--steps": 2, "--samples": 0, "--threads": 1, "--device": "cpu"}


@pytest.fixture(scope="module")
def language_model(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GPT-2 of 2 steps on the built-in language's English."""
    out = tmp_path_factory.mktemp("runs") / "gpt2"
    flags = _flags({**_SIZES, **_QUICK, "--context": 32, "--batch-tokens": 256})
    _run("train", "--model", "gpt2:tiny", "--text", str(files / "s.en"), *flags, "--out", str(out))
    return out


@pytest.fixture(scope="module")
def classifier(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT of 2 steps that tells two classes apart, with what its training printed in log.txt."""
    folder = tmp_path_factory.mktemp("classes")
    lines = (files / "s.en").read_text().splitlines()
    table = [f"{line}\t{'even' if i % 2 else 'odd'}\n" for i, line in enumerate(lines)]
    (folder / "classes.tsv").write_text("".join(table))
    flags = _flags({**_SIZES, **_QUICK, "--context": 24, "--objective": "classify"})
    out = folder / "run"
    text = str(folder / "classes.tsv")
    printed = _run("train", "--model", "bert:tiny", "--text", text, *flags, "--out", str(out))
    (out / "log.txt").write_text(printed)
    return out


def _flags(values: dict[str, object]) -> list[str]:
    return [str(word) for pair in values.items() for word in pair]


def _run(*arguments: str) -> str:
    """What a command prints, in a process of its own: fixtures of a module cannot capture."""
    command = [sys.executable, "-m", "regard", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("finetune", "x", "--task", "clasify", "--data", "y"), "did you mean 'classify'"),
        (("translate", "x", "--quantize", "int4"), "did you mean 'int8'"),
        (("translate", "x", "--beem", "3"), "did you mean '--beam'"),
        (("translate",), "--help"),
        (("generate", "x", "--max-new-tokens", "0"), "whole number from 1"),
        (("translate", "godo"), "--download"),
    ],
)
def test_flags_and_names(arguments: tuple[str, ...], words: str, command: Command) -> None:
    command(*arguments).refused(words)


def test_latin_1_on_standard_input(
    command: Command, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    latin = tmp_path / "latin.txt"
    latin.write_bytes("Stra\u00dfe\n".encode("latin-1"))
    done = command("translate", trained, "--input", latin)
    done.refused(str(latin), "byte 0xdf", "iconv -f latin1 -t utf-8")


def test_a_text_on_the_command_line_is_translated(
    command: Command, demo: Path, tmp_path: Path
) -> None:
    done = command("translate", demo, "The dog sees a cat.", "")
    assert done.out == "Der Hund sieht eine Katze.\n\n"
    command("translate", demo, "Hello", "--output", tmp_path / "out.txt").refused("TEXT")


def test_a_folder_that_is_not_there_has_one_short_repair(command: Command) -> None:
    done = command("translate", "godo")
    done.refused("--download")
    assert "load(" not in done.err


@pytest.mark.parametrize(
    ("flag", "words"),
    [("--average", "regard train --help"), ("--stpes", "did you mean '--steps'")],
)
def test_a_flag_that_is_like_none_points_to_the_help(
    flag: str, words: str, command: Command
) -> None:
    command("train", flag, "3").refused(words)


def test_two_empty_files_are_empty(command: Command, tmp_path: Path) -> None:
    for name in ("e.en", "e.de"):
        (tmp_path / name).touch()
    files = ("--source", tmp_path / "e.en", "--target", tmp_path / "e.de")
    command("train", *files, "--preset", "tiny", "--out", tmp_path / "run").refused("are empty")


def test_pairs_are_no_text_for_a_language_model(
    command: Command, language_model: Path, tmp_path: Path
) -> None:
    """The tab and the second language would be scored as a part of the text."""
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("The dog sleeps.\tDer Hund schläft.\n")
    command("evaluate", language_model, "--pairs", pairs).refused("plain text", "--data")


def test_a_language_model_names_the_words_it_has_never_seen(
    command: Command, language_model: Path
) -> None:
    """Bytes spell every word; those that training lacked are as unknown as any."""
    prompt = ("generate", language_model, "--max-new-tokens", "2", "--seed", "1")
    done = command(*prompt, "The 漢字")
    assert "does not know these words: 漢字\n" in done.err
    assert "never seen" not in command(*prompt, "The dog").err


def test_what_a_base_model_has_seen_stays_seen(
    command: Command, language_model: Path, tmp_path: Path
) -> None:
    text = tmp_path / "more.txt"
    text.write_text("The house 漢字 is old.\n" * 200)
    arguments = ("--task", "causal", "--data", text, "--out", tmp_path / "run")
    flags = ("--epochs", "1", "--threads", "1", "--device", "cpu")
    # The default context is what this model has positions for, not 256.
    command("finetune", language_model, *arguments, "--context", "33").refused("--context 32")
    done = command("finetune", language_model, *arguments, *flags)
    assert done.code == 0, done.err
    done = command("generate", tmp_path / "run", "The dog 漢字", "--max-new-tokens", "2")
    assert "never seen" not in done.err


def test_own_labels_are_not_announced_as_listops(command: Command, classifier: Path) -> None:
    log = (classifier / "log.txt").read_text()
    assert "ListOps" not in log
    assert "accuracy" in log


def test_long_texts_are_refused_or_cut(command: Command, classifier: Path) -> None:
    long = "the dog sees a cat " * 50
    command("predict", classifier, long).refused("--truncation")
    done = command("predict", classifier, long, "--truncation")
    assert done.code == 0, done.err
    assert "are truncated" in done.err
    command("predict", classifier, "a dog", "--task", "embed", "--truncation")
    command("predict", classifier, "a dog", "--task", "fill", "--truncation").refused("it can")


def test_held_out_pairs_are_said_once(command: Command, files: Path, tmp_path: Path) -> None:
    text = ("--source", files / "s.en", "--target", files / "s.de")
    flags = _flags({"--preset": "tiny", **_SIZES, **_QUICK})
    done = command("train", *text, *flags, "--out", tmp_path / "run")
    assert done.code == 0, done.err
    assert done.err.count("held out for validation") == 1


def test_training_needs_more_memory_than_the_weights(
    command: Command, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients and the two moments of Adam are three times the weights."""
    flags = ("--source", files / "s.en", "--target", files / "s.de", "--preset", "base")
    # About 60 million parameters: 0.25 GB as they are, 1 GB while they are trained.
    monkeypatch.setattr(memory, "available", lambda: 600_000_000)
    done = command("train", *flags, "--device", "cpu", "--out", tmp_path / "run")
    done.refused("gradients and optimizer state", "regard plan")
    assert not (tmp_path / "run").exists()


def test_a_limit_on_the_address_space_is_a_limit_on_memory() -> None:
    code = (
        "import resource, regard.system.memory as m; limit = 1 << 30; "
        "resource.setrlimit(resource.RLIMIT_AS, (limit, limit)); "
        "assert 0 < m.available() < limit"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_unknown_type_with_a_neighbour_is_no_list(
    command: Command, trained: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(trained, folder)
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(config.replace('"marian"', '"marain"'))
    done = command("translate", folder, "Hello")
    done.refused("did you mean 'marian'?")
    assert "known:" not in done.err


def test_the_short_help_has_what_a_command_cannot_do_without(command: Command) -> None:
    done = command("finetune", "--help")
    for flag in ("--task TASK", "--data FILE", "--out"):
        assert flag in done.out


def test_no_text_to_look_at_names_what_each_kind_reads(command: Command, demo: Path) -> None:
    command("look", demo).refused("INPUT", "image", "story")


def test_columns_of_the_lens_are_no_rows(command: Command, demo: Path) -> None:
    done = command("look", demo, "The dog sees a cat.", "--what", "lens")
    assert "The last layer is the output of the model." in done.out


def test_an_error_in_the_middle_of_a_stream_has_a_line_of_its_own(
    command: Command, language_model: Path, tmp_path: Path
) -> None:
    model = regard.load(language_model)
    assert isinstance(model, regard.LanguageModel)
    # NaN from the second generated token on, by numbers that are finite, but too large to add up.
    (table,) = [one for name, one in model.model.named_parameters() if "position" in name]
    with torch.no_grad():
        table[len(model.tokenizer.encode("The dog")) + 1 :] = torch.finfo(torch.float32).max
    done = command("generate", model.save(tmp_path / "nan"), "The dog", "--max-new-tokens", "9")
    done.refused("not a number")
    assert done.out.startswith("The dog")
    assert done.out.endswith("\n")


def test_a_text_that_ends_at_once_is_its_prompt(
    command: Command, language_model: Path, tmp_path: Path
) -> None:
    model = regard.load(language_model)
    assert isinstance(model, regard.LanguageModel)
    folder = Path(model.save(tmp_path / "silent"))
    # Every token is an end token.
    ends = {"eos_token_id": list(range(len(model.tokenizer)))}
    (folder / "generation_config.json").write_text(json.dumps(ends))
    assert command("generate", folder, "The dog", "--greedy").out == "The dog\n"


def test_an_error_before_a_stream_leaves_no_output(
    command: Command, language_model: Path, tmp_path: Path
) -> None:
    model = regard.load(language_model)
    with torch.no_grad():
        next(model.model.parameters()).fill_(torch.nan)
    done = command("generate", model.save(tmp_path / "nan"), "The dog", "--max-new-tokens", "2")
    done.refused("not a number")
    assert done.out == ""
