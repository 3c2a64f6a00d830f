"""Options of several commands: types of values, completed by shells; flags that nothing reads."""

from __future__ import annotations

import importlib.resources
import json
import math
import os
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any, Literal

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from regard.system.arguments import LARGEST_NUMBER, LARGEST_SEED, LARGEST_SIZE
from regard.system.errors import SettingError


class Number(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.2
    """A finite number from `least` to `most`.

    click's own types take any number of digits, `nan` and `inf`; so every numeric option has one of
    these. Keys of recipes are checked by their schema instead.
    """

    name = "float"
    parse: Callable[[Any], float] = float
    expected = "a number from {:g} to {:g}"

    def __init__(self, least: float = 0, most: float = LARGEST_NUMBER) -> None:
        self.least = least
        self.most = most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            number = self.parse(value)
        except ValueError:
            number = math.nan
        # Comparisons of nan are false.
        if not self.least <= number <= self.most:
            flag = "the value" if param is None else param.opts[0]
            expected = self.expected.format(self.least, self.most)
            raise SettingError(f"{flag} cannot be {value!r:.40}", f"give {expected}")
        return number


class WholeNumber(Number):
    """A whole number from `least` to `most`."""

    name = "integer"
    parse = int
    expected = "a whole number from {:,} to {:,}"

    def __init__(self, least: int = 1, most: int = LARGEST_SIZE) -> None:
        super().__init__(least, most)


class WholeNumbers(WholeNumber):
    """Whole numbers with commas between them, each from 1 to `most`."""

    name = "integer,…"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return [WholeNumber.convert(self, part, param, ctx) for part in value.split(",")]


# ------------------------------------------------------------------ what a shell completes


class Suggested(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.2
    """A text for which a shell offers values, and folders or files besides if it may be one."""

    name = "text"

    def __init__(
        self,
        values: Iterable[str] | Callable[[], Iterable[str]] = (),
        places: Literal["dir", "file"] | None = None,
        may_be_empty: bool = False,
    ) -> None:
        # What is not in a list yet is made when a shell asks for it.
        self.values = values if callable(values) else lambda: values
        self.may_be_empty = may_be_empty or places is None
        self.places = places  # shells offer the folders on the way to a file too

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        # Python's Path("") is the current folder: errors would speak of ".".
        if not value and not self.may_be_empty:
            name = "the path" if param is None else as_written(param)
            raise SettingError(f"{name} is empty", "give a path")
        # A quoted ~ reaches us as it is; one in a sentence is no path.
        is_home = self.places is not None and str(value).startswith("~/")
        return os.path.expanduser(value) if is_home else str(value)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        # First, because click's script for bash forgets the values before it.
        places = [CompletionItem(incomplete, type=self.places)] if self.places else []
        return [
            *places,
            *(CompletionItem(value) for value in self.values() if value.startswith(incomplete)),
        ]


def preset_names() -> list[str]:
    """NAME:SIZE of every preset."""
    from regard.families import presets

    return [preset.name for preset in presets.listing()]


def preset_sizes() -> list[str]:
    """The SIZEs of all presets."""
    return sorted({name.partition(":")[2] for name in preset_names()})


def recipe_names() -> list[str]:
    """The recipes of the package."""
    # As a resource: a package may be installed as a zip file, which has no folders on disk.
    folder = importlib.resources.files("regard") / "training" / "recipes"
    return sorted(
        file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml")
    )


# A run folder or a folder in Hugging Face's layout.
MODEL_FOLDER = Suggested(places="dir")
PRESET_OR_FOLDER = Suggested(preset_names, "dir")
RECIPE = Suggested(recipe_names, "file")
FILE = Suggested(places="file")
TEXT_OR_FILE = Suggested(places="file", may_be_empty=True)


# ------------------------------------------------------------------ options

Flags = dict[str, Any]  # the values of parameters, by name

COUNT = WholeNumber()
INDEX = WholeNumber(0)
PARAMETERS = WholeNumber(1, 10**18)
SEED = WholeNumber(0, LARGEST_SEED)
SEEDS = WholeNumber(1, 1000)  # each is a run of its own
FLOPS = Number(1, 1e36)
MINUTES = Number(0.01, 60 * 24 * 7)
SHARE = Number(0, 1)
PENALTY = Number(1e-6, 1e6)


def option(flags: str, text: str, kind: Any = None, **settings: Any) -> Callable[..., Any]:
    """The decorator of an option: its flags and the name of its parameter, help, type of values."""
    return click.option(*flags.split(), help=text, type=kind, **settings)


flag = partial(option, is_flag=True)


def options(*decorators: Callable[..., Any]) -> Callable[..., Any]:
    """Several options as one decorator, in the order of the help."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        # Decorators apply from the innermost outwards.
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate


download_option = flag(
    "--download", "allow MODEL to be a name on the Hub (owner/name); downloaded once and cached"
)
# One word for each unit of a budget, in every command that has one.
budget_options = options(
    option("--steps", "budget in steps", COUNT),
    option("--minutes", "budget in minutes of training", MINUTES),
    option("--flops", "budget in FLOPs", FLOPS),
)
device_option = option("--device", "auto, cpu, cuda or cuda:N", default="auto")


def json_option(text: str = "print one JSON object") -> Callable[..., Any]:
    """The decorator of --json, with its help."""
    return flag("--json as_json", text)


def print_result(as_json: bool, value: Any, lines: Iterable[str]) -> None:
    """A result on standard output: as one JSON object, or as lines."""
    click.echo(json_text(value) if as_json else "\n".join(lines))


def json_text(value: Any) -> str:
    """A value as JSON on one line; a number that JSON does not have becomes null."""
    from regard.look.result import to_json

    return json.dumps(to_json(value), ensure_ascii=False, allow_nan=False)


def local_folder(model: str, download: bool) -> str:
    """The folder of MODEL; a name on the hub is fetched if `download` says so."""
    if not download:
        return model  # whoever opens it says what is wrong with it
    # Imported late: torch is not needed to report wrong flags.
    from regard.models.loading import find_folder

    return str(find_folder(model, download, partial(print, file=sys.stderr)))


# ------------------------------------------------------------------ flags that nothing reads


def given_flags() -> list[click.Parameter]:
    """The parameters of the current command that were typed."""
    context = click.get_current_context()
    return [
        parameter
        for parameter in context.command.params
        if context.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE
    ]


def refuse_flags(names: Collection[str], problem: str, repair: str = "") -> None:
    """Refuses the parameters of these names if they were typed: nothing would read them."""
    typed = [as_written(flag) for flag in given_flags() if flag.name in names]
    if typed:
        flags = ", ".join(typed)
        raise SettingError(f"{flags}: {problem}", repair or f"leave {flags} out")


def refuse_other_flags(read: Collection[str], problem: str, repair: str) -> None:
    """Refuses all that was typed but for the parameters of these names."""
    others = [flag.name or "" for flag in given_flags() if flag.name not in read]
    refuse_flags(others, problem, repair)


def as_written(parameter: click.Parameter) -> str:
    """A parameter as the help writes it: --flag, or ARGUMENT."""
    if isinstance(parameter, click.Argument):
        return parameter.metavar or parameter.opts[0].upper()
    return parameter.opts[0]


def check_flags_are_read(readers: Mapping[str, Collection[str]], reader: str, kind: str) -> None:
    """Refuses flags that were given, and that `reader` does not read.

    `readers` are all that there are of this kind, with the parameters that not all of them read.
    """
    for flag in given_flags():
        others = [name for name, parameters in readers.items() if flag.name in parameters]
        if others and reader not in others:
            raise SettingError(
                f"{flag.opts[0]} has no effect on {kind} {reader!r}",
                f"leave it out; it applies to: {', '.join(others)}",
            )
