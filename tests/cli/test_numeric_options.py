"""Every numeric option of every command is checked: the tree of commands is walked.

A new option is checked here without a line more: it must have a type of `cli.shared_options`, or be
a key of the recipe, whose schema has bounds.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from command_line import Command
from regard import cli
from regard.cli.recipe_options import RecipeCommand
from regard.cli.shared_options import Number, WholeNumber
from regard.decode.strategy import parse_length_penalty
from regard.system.errors import RegardError, SettingError
from regard.training.recipe import consistency, schema
from regard.training.recipe.options import parse_initialization

OF_CLICK = (type(click.INT), type(click.FLOAT), click.IntRange, click.FloatRange)
NO_NUMBERS = ("", " ", "many", "nan", "inf", "-inf", "1e999", "-1", "0x10", "1,", "9" * 5000)
NO_WHOLE_NUMBERS = (*NO_NUMBERS, "1.5", "1e3", str(10**23))


def options() -> Iterator[tuple[str, click.Command, click.Option]]:
    """Every option of every command, with its name as it is typed."""
    todo: list[tuple[str, click.Command]] = [("regard", cli.regard)]
    while todo:
        name, command = todo.pop()
        if isinstance(command, click.Group):
            context = click.Context(command)
            for verb in command.list_commands(context):
                child = command.get_command(context, verb)
                assert child is not None
                todo.append((f"{name} {verb}", child))
            continue
        for option in command.params:
            if isinstance(option, click.Option):
                yield f"{name} {option.opts[0]}", command, option


OPTIONS = {name: (command, option) for name, command, option in options()}
CHECKED = {name: option for name, (_, option) in OPTIONS.items() if isinstance(option.type, Number)}
RECIPE_KEYS = sorted(
    {
        str(option.name)
        for command, option in OPTIONS.values()
        if isinstance(command, RecipeCommand) and isinstance(option.type, OF_CLICK)
    }
)


def test_every_numeric_option_has_a_type_with_bounds() -> None:
    assert len(CHECKED) > 60
    for name, (command, option) in OPTIONS.items():
        of_recipe = isinstance(command, RecipeCommand) and option.name in schema.KEYS
        # A default that is a number has one of click's types, too.
        assert of_recipe or not isinstance(option.type, OF_CLICK), name


@pytest.mark.parametrize("name", list(CHECKED))
def test_an_option_takes_no_other_number(name: str) -> None:
    option = CHECKED[name]
    wrong = NO_WHOLE_NUMBERS if isinstance(option.type, WholeNumber) else NO_NUMBERS
    for value in wrong:
        with pytest.raises(SettingError, match=option.opts[0]) as refused:
            option.type.convert(value, option, None)
        assert len(refused.value.problem) < 100
    # What the repair says is taken.
    assert isinstance(option.type, Number)
    for bound in (option.type.least, option.type.most):
        assert option.type.convert(str(bound), option, None) in (bound, [bound])


@pytest.mark.parametrize("key", RECIPE_KEYS)
def test_a_key_of_the_recipe_takes_no_other_number(key: str) -> None:
    is_whole = schema.value_type(key) is int
    wrong: list[Any] = [float("nan"), float("inf"), "", "many"]
    if is_whole:
        wrong += [10**23, -1, 1.5]
    for value in wrong:
        with pytest.raises(RegardError):
            consistency.parse({schema.KEYS[key]: {key: value}})


# ------------------------------------------------------------------ numbers inside of words

WORDS = [
    ("train", "--init", "normal:nan"),
    ("train", "--init", "normal:inf"),
    ("train", "--init", "scaled:-1"),
    ("train", "--final-weights", f"average:{10**23}"),
    ("train", "--length-penalty", "power:1e300"),
    ("train", "--generated", f"copying:1:{10**23}"),
    ("train", "--generated", "copying:1:200000"),
    ("train", "--epochs", "1e300"),
    ("train", "--processes", "0"),
    ("compare", "--steps", "inf"),
    ("compare", "--steps", "nan"),
    ("compare", "--steps", "-1"),
    ("compare", "--steps", "0.5"),
    ("compare", "--steps", str(10**23)),
    ("compare", "--minutes", "0"),
    ("compare", "--flops", "1e999"),
    ("compare", "--steps", ""),
    ("compare", "--models", "transformer@epochs=40"),
    ("compare", "--models", "transformer@steps=40"),
    ("tune", "--minutes", "nan"),
    ("plan", "gpt2:tiny", "--device", "cpu", "--utilization", "0.3"),
    ("data", "listops", "--depth", "1000000"),
    ("data", "listops", "--arguments", "2"),
    ("data", "sorting", "--max-length", "2147483647"),
    ("bench", "decode", "--batch", "1,,3"),
]


@pytest.mark.parametrize("arguments", WORDS, ids=" ".join)
def test_a_number_inside_of_a_word_is_checked(
    arguments: tuple[str, ...], command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command(*arguments).refused()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("flag", ["--batch", "--length"])
def test_a_plan_of_more_than_a_device_holds_is_not_traced(flag: str, command: Command) -> None:
    """The token ids of a traced step are real tensors."""
    done = command("plan", "gpt2:tiny", "--device", "H100", flag, 2**31 - 1)
    done.refused("do not fit on any device", "--accumulate")


@pytest.mark.parametrize("text", ["normal:nan", "normal:inf", "scaled:-1", "power:nan"])
def test_numbers_of_words_are_parsed_strictly(text: str) -> None:
    parse = {"power": parse_length_penalty}
    with pytest.raises(SettingError):
        parse.get(text.partition(":")[0], parse_initialization)(text)


@pytest.mark.parametrize("heads", ["inf%", "nan%", "1e999%", str(10**23), "-1", "", "1.5"])
def test_a_share_of_heads_is_checked(
    heads: str, command: Command, demo: Path, tmp_path: Path
) -> None:
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("The dog sees a cat.\tDer Hund sieht eine Katze.\n")
    out = tmp_path / "pruned"
    command("prune", demo, "--heads", heads, "--pairs", pairs, "--out", out).refused("heads")
    assert not out.exists()
