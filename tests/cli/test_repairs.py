"""Repairs that errors name: their flags and commands exist, and they work when followed."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

import regard
from command_line import Command
from regard.cli import regard as group
from regard.look.decoding_steps import Candidate, DecodingStep, Steps

SOURCE = Path(regard.__file__).parent
OTHER_PROGRAMS = {"--max-restarts"}  # of torchrun
QUICK: dict[str, Any] = {
    "d_model": 16, "d_ff": 16, "heads": 2, "layers": 1, "steps": 2, "device": "cpu", "threads": 1,
    "learning_rate": 1e-3, "samples": 0,
}  # fmt: skip


# --- what is named exists ---


def flags_by_command() -> dict[str, set[str]]:
    context = click.Context(group)
    flags = {}
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        commands = [command]
        if isinstance(command, click.Group):
            commands += command.commands.values()
        flags[name] = {
            flag
            for one in [*commands, group]  # the group's own may stand anywhere
            for parameter in one.params
            for flag in parameter.opts
        } | {"--help"}
    return flags


def literal(node: ast.AST) -> str:
    """The constant parts of a string."""
    return "".join(
        part.value
        for part in ast.walk(node)
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    )


def errors_of(path: Path) -> Iterator[tuple[int, str]]:
    """The line of each error that a file makes, with its problem and repair."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call) or len(node.args) < 2:
            continue
        if re.search(r"(Error|Interrupted)$", ast.unparse(node.func)):
            yield node.lineno, " ".join(map(literal, node.args[:2]))


def test_every_flag_and_command_of_an_error_exists() -> None:
    commands = flags_by_command()
    everywhere = set().union(*commands.values()) | OTHER_PROGRAMS
    counted = 0
    for path in sorted(SOURCE.rglob("*.py")):
        # An error of one command names flags of that command.
        known = everywhere
        if path.parent.name == "cli" and path.stem in commands:
            known = commands[path.stem]
        for line, text in errors_of(path):
            where = f"{path.name}:{line}: {text}"
            flags = re.findall(r"(?<![\w-])--[a-z][a-z-]*", text)
            # A message may send to another command, with its flags.
            named = re.findall(r"`regard ([a-z]+)|: regard ([a-z]+)", text)
            for name in filter(None, (word for pair in named for word in pair)):
                assert name in commands, where
                known = known | commands[name]
            assert set(flags) <= known, where
            counted += len(flags)
    assert counted > 80  # the errors were found


# --- what is named works ---


@pytest.fixture(scope="module")
def language_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lm")
    (folder / "text.txt").write_text("a good film of cats\n" * 60)
    settings = {**QUICK, "model": "gpt2:tiny", "context": 32, "text": str(folder / "text.txt")}
    regard.train(settings, out=folder / "run")
    return folder / "run"


def test_an_attention_that_there_is(command: Command, language_model: Path) -> None:
    done = command("look", language_model, "a good film", "--part", "cross")
    done.refused("no part 'cross'")
    word = re.search(r"known: (\w+)", done.err)
    assert word is not None
    assert command("look", language_model, "a good film", "--part", word[1]).code == 0


def test_more_translations_than_the_beam_has(command: Command, demo: Path) -> None:
    done = command("translate", demo, "The dog sleeps.", "--n-best", "6")
    done.refused("set beam (--beam) to 6")
    done = command("translate", demo, "The dog sleeps.", "--n-best", "6", "--beam", "6")
    assert (done.code, len(done.out.splitlines())) == (0, 6)


def test_views_of_decoding(command: Command, demo: Path) -> None:
    text = "The dog sleeps."
    command("look", demo, text, "--what", "beam", "--sample").refused("ablation, steps")
    assert command("look", demo, text, "--what", "steps", "--sample").code == 0
    command("look", demo, text, "--what", "steps", "--beam", "3").refused("--beam 1")
    assert command("look", demo, text, "--what", "steps", "--beam", "1").code == 0


def test_a_step_that_has_one_candidate_more() -> None:
    """A token that was drawn, and is none of the likeliest, made rows of unequal lengths."""
    candidate = Candidate(0, "a", 0.5, 0.5)
    few = DecodingStep("a", 0, (candidate,))
    more = DecodingStep("b", 1, (candidate, candidate))
    assert "0.50" in str(Steps("a text", "ab", (few, more)))


def test_texts_under_another_key(command: Command, language_model: Path, tmp_path: Path) -> None:
    """Not every command has --text-column."""
    file = tmp_path / "texts.jsonl"
    file.write_text('{"body": "a good film of cats"}\n' * 9)
    command("evaluate", language_model, "--data", file).refused("call it `text`", "body")
    file.write_text('{"text": "a good film of cats"}\n' * 9)
    done = command("evaluate", language_model, "--data", file)
    assert done.code == 0, done.err


def test_pairs_in_several_languages(command: Command, demo: Path, tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    languages = {"en": "The dog sleeps.", "de": "Der Hund schläft."}
    file.write_text(json.dumps({"translation": languages}) + "\n")
    command("evaluate", demo, "--pairs", file).refused("`source` and `target`", "--languages")
    pair = {"source": languages["en"], "target": languages["de"]}
    file.write_text(json.dumps(pair) + "\n")
    assert command("evaluate", demo, "--pairs", file).code == 0


def test_a_teacher_of_other_tokens(command: Command, demo: Path, tmp_path: Path) -> None:
    """`finetune` has neither --tokenizer nor --teacher-translates."""
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("The dog sleeps.\tDer Hund schläft.\n" * 20)
    regard.train({**QUICK, "preset": "tiny", "pairs": str(pairs)}, out=tmp_path / "teacher")
    arguments = ("finetune", demo, "--task", "translate", "--data", pairs, "--device", "cpu")
    done = command(*arguments, "--teacher", tmp_path / "teacher", "--out", tmp_path / "run")
    done.refused("other tokens", "leave --teacher out")
    flags = flags_by_command()["finetune"]
    assert set(re.findall(r"--[a-z-]+", done.err.split("→")[-1])) <= flags
    assert not (tmp_path / "run").exists()
