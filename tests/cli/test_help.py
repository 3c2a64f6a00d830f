"""Help in the sections of a recipe, and shell completion that needs no torch."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from click.testing import CliRunner, Result

from command_line import Command
from regard.cli import regard
from regard.cli.compare import SET_BY_COMPARISON
from regard.cli.shared_options import recipe_names
from regard.cli.train import FINETUNE_KEYS
from regard.look.views import VIEWS
from regard.system.errors import SettingError
from regard.training.entry_points import train
from regard.training.recipe import loading, schema

# Flags under the names they had before, with a command that has them.
THREE_SCREENS = 120  # lines
# What the field calls the settings that have a name of their own here.
FIELD_WORDS = {
    "residual": "pre-norm",
    "patience": "early stopping",
    "d_model": "hidden size",
}

BUDGET = ("steps", "minutes")  # flags of a comparison itself


@pytest.mark.parametrize(
    ("verb", "flag", "ours"),
    [
        ("train", "--lr", "--learning-rate"),
        ("train", "--batch-size", "--batch-tokens"),
        ("plan", "--batch-size", "--batch"),
        ("train", "--gpu", "--device cuda"),
        ("finetune", "--fp16", "--precision fp16"),
        ("train", "--output", "--out"),
        ("translate", "--output-dir", "--output"),
        ("tune", "--max-steps", "--steps"),
        ("tune", "--updates", "--steps"),
        ("compare", "--budget", "--steps N or --minutes N"),
    ],
)
def test_a_flag_of_other_programs_is_answered_by_ours(
    command: Command, verb: str, flag: str, ours: str
) -> None:
    command(verb, "x", flag, "1").refused(f"use {ours}")


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("lr", "learning_rate"), ("batch_size", "batch_tokens"), ("gpu", "device='cuda'"),
        ("fp16", "precision='fp16'"), ("output", "out"), ("leaning_rate", "'learning_rate'"),
    ],
)  # fmt: skip
def test_a_setting_of_other_programs_too(name: str, ours: str) -> None:
    with pytest.raises(SettingError, match=ours):
        train({name: 1}, model="gpt2:tiny")


def test_models_to_compare_are_added_up(command: Command) -> None:
    command("compare", "--models", "transformer,nothing-a", "--models", "rnn").refused("nothing-a")
    command("compare", "--models", "rnn", "--models", "nothing-b").refused("nothing-b")


def help_of(*arguments: str) -> str:
    result: Result = CliRunner().invoke(regard, list(arguments))
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("verb", ["train", "finetune", "compare"])
def test_the_short_help_fits_three_screens_in_the_sections_of_a_recipe(verb: str) -> None:
    text = help_of(verb, "--help")
    assert len(text.splitlines()) <= THREE_SCREENS
    places = [text.find(f"[{section}]") for section in schema.SECTIONS]
    named = [place for place in places if place >= 0]
    assert len(named) >= 3
    assert "--help [all]" in text


def test_help_all_has_every_setting() -> None:
    text = help_of("train", "--help", "all")
    for key in schema.KEYS:
        assert (f"--{key.replace('_', '-')} " in text) == (key not in FINETUNE_KEYS), key
    compared = help_of("compare", "--help", "all")
    for key in schema.KEYS:
        assert (f"--{key.replace('_', '-')} " in compared) == (
            key in BUDGET or key not in SET_BY_COMPARISON
        ), key


def test_help_has_the_fields_words_and_the_recipes() -> None:
    text = " ".join(help_of("train", "--help", "all").split())
    for key, words in FIELD_WORDS.items():
        description = text.partition(f"--{key.replace('_', '-')} ")[2][:400]
        assert words in description, key
    assert all(name in text for name in loading.packaged())


def test_every_setting_is_described() -> None:
    for key, section in schema.KEYS.items():
        field = schema.SECTIONS[section].model_fields[key]
        assert field.description or key == "activation", key


def completions(line: str) -> tuple[list[str], str]:
    """What bash is offered after `line`, and which heavy modules that took."""
    script = (
        "import sys; sys.argv = ['regard']\n"
        "from regard.cli import main\n"
        "try: main()\n"
        "finally: print('torch' in sys.modules, file=sys.stderr)\n"
    )
    environment = {
        **os.environ,
        "_REGARD_COMPLETE": "bash_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split()) - 1),
    }
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True
    )
    return done.stdout.split(), done.stderr.strip()


def test_the_shell_completes_presets_recipes_views_and_folders() -> None:
    assert completions("regard show gpt2:m") == (["dir,gpt2:m", "plain,gpt2:medium"], "False")
    # A recipe may be a file of one's own.
    assert completions("regard train wmt14_bi") == (["file,wmt14_bi", "plain,wmt14_big"], "False")
    for flag in ("--series", "--graph", "--spec", "--tokenizer", "--valid-text"):
        assert completions(f"regard train {flag} a")[0] == ["file,a"], flag
    assert completions("regard predict runs/x ca")[0] == ["file,ca"]
    assert completions("regard evaluate runs/x --data te")[0] == ["file,te"]
    assert completions("regard look runs/x text --what ali")[0] == ["plain,alignment"]
    assert completions("regard translate ru")[0] == ["dir,ru"]
    assert completions("regard train --model palm:5") == (["plain,palm:540b"], "False")


def test_what_is_completed_is_all_there_is() -> None:
    assert recipe_names() == sorted(loading.packaged())
    assert "patching" in VIEWS


@pytest.mark.parametrize("words", [(), ("bench",), ("data",)])
def test_a_command_alone_is_answered_by_its_help(words: tuple[str, ...], command: Command) -> None:
    done = command(*words)
    assert done.code == 2
    assert done.err.startswith("Usage: ")
    assert "error" not in done.err.splitlines()[0]
    assert "Commands:" in done.err
