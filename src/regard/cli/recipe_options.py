"""Options generated from the recipe schema, for the commands that train."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import click

from regard.cli import nearest_flag
from regard.cli.completion import (
    FILE,
    MODEL_FOLDER,
    Suggested,
    preset_names,
    preset_sizes,
    recipe_names,
)
from regard.system.errors import SettingError
from regard.training.recipe import schema

# The settings of the short help, by section; `--help all` has the others too.
COMMON_KEYS = (
    # data and tokens
    "source", "target", "pairs", "valid_source", "valid_target", "text", "valid_text", "images",
    "sounds", "series", "graph", "generated", "context", "tokenizer", "vocabulary",
    # model
    "model", "preset", "spec", "d_model", "heads", "layers", "dropout", "position", "attention",
    "residual", "init", "horizon",
    # training
    "objective", "steps", "batch_tokens", "optimizer", "schedule", "learning_rate",
    "warmup_steps", "label_smoothing", "precision", "compile", "final_weights",
    "validate_every", "patience", "seed", "device", "beam",
    # fine-tuning
    "task", "base", "valid", "test", "epochs", "freeze", "lora",
    # several processes
    "strategy",
)  # fmt: skip
_ARGUMENTS = "regard.system.arguments"  # likewise: the arguments as they were given
_EVERYTHING = "regard.help.everything"  # the key in a click context: `--help all` was asked for


class RecipeCommand(click.Command):
    """A command whose options are the recipe's keys.

    Its help has the sections of a recipe, with the usual settings; `--help all` has every setting.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_ARGUMENTS] = list(args)  # click takes them out of the list
        for name in ctx.help_option_names:
            if name in args and args[args.index(name) + 1 :][:1] == ["all"]:
                ctx.meta[_EVERYTHING] = True
                click.echo(self.get_help(ctx), color=ctx.color)
                ctx.exit()
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            raise SettingError(
                f"there is no flag {error.option_name}", nearest_flag(error.option_name, ctx)
            ) from None

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        everything = _EVERYTHING in ctx.meta
        rows: dict[str, list[tuple[str, str]]] = {"": []}  # by section; "" has the command's own
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None or isinstance(parameter, click.Argument):
                continue
            section = schema.KEYS.get(parameter.name or "", "")
            if section and not everything and parameter.name not in COMMON_KEYS:
                continue
            flag, text = record
            if section and not everything:
                text = _first_part(text)
            if "--help" in parameter.opts:
                flag += " [all]"
                text = "Show this message and exit; `all`: every setting."
            rows.setdefault(section, []).append((flag, text))
        with formatter.section("Options"):
            formatter.write_dl(rows.pop(""))
        for section, settings in rows.items():
            with formatter.section(f"[{section}]  {_title(section)}"):
                formatter.write_dl(settings)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if any(parameter.name == "recipe" for parameter in self.params):
            names = ", ".join(recipe_names())
            with formatter.section("Built-in recipes"):
                formatter.write_text(names)
        super().format_epilog(ctx, formatter)


def command_arguments(ctx: click.Context) -> list[str]:
    """The arguments that a command was called with."""
    return list(ctx.meta[_ARGUMENTS])


def _title(section: str) -> str:
    """What a section is about: the beginning of its docstring."""
    text = schema.SECTIONS[section].__doc__ or ""
    return re.split("[.:]", text)[0]


def _first_part(text: str) -> str:
    """A help text up to its first semicolon, with its default."""
    head, separator, tail = text.partition(";")
    default = tail[tail.rfind("  [") :] if separator and "  [" in tail else ""
    return head + default


# ------------------------------------------------------------------ options of recipe keys


def recipe_option(key: str) -> click.Option:
    """The option of one recipe key: type, help text and default come from its pydantic field."""
    section = schema.SECTIONS[schema.KEYS[key]]
    field = section.model_fields[key]  # pydantic's: annotation, default, description
    value_type = schema.value_type(key)
    name = key.replace("_", "-")
    text = field.description or ""
    if field.default is not None and not text.endswith("]"):
        text += f"  [{_format_default(field.default)}]"
    text = text.strip()
    if value_type is bool:
        # Both spellings, so that a flag can undo what a recipe says.
        return click.Option([f"--{name}/--no-{name}", key], default=None, help=text)
    click_type = _COMPLETED.get(key) or _click_type(value_type)
    return click.Option([f"--{name}", key], type=click_type, help=text)


def data_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: training data of whatever kind, and where recipes find theirs."""
    function = click.option(
        "--data-dir",
        type=MODEL_FOLDER,
        metavar="DIR",
        help="folder with the recipe's data files  [$REGARD_DATA]",
    )(function)
    return click.option(
        "--data",
        type=FILE,
        metavar="FILE",
        help="training data for the objective; or name its kind: --pairs, --text, --images, …",
    )(function)


resume_option = click.option(
    "--resume", type=MODEL_FOLDER, metavar="DIR", help="resume what was begun in DIR"
)
overwrite_option = click.option("--overwrite", is_flag=True, help="remove a run that is in --out")


# What a shell completes; other settings are numbers, choices or free text.
_COMPLETED: dict[str, Suggested] = {
    "model": Suggested(preset_names()),
    "preset": Suggested(preset_sizes()),
    "base": MODEL_FOLDER,
    "teacher": MODEL_FOLDER,
    **dict.fromkeys((*schema.FILE_KEYS["data"], *schema.FILE_KEYS["model"]), FILE),
    **dict.fromkeys(("valid", "test", "tokenizer", "target_tokenizer"), FILE),
}


def recipe_changes(flags: dict[str, Any]) -> dict[str, Any]:
    """The recipe keys that flags set."""
    # Options have no defaults of their own: None, or nothing, means that the recipe decides.
    return {key: value for key, value in flags.items() if value not in (None, ())}


def _click_type(value_type: Any) -> Any:
    """A recipe's value type as click's: a tuple lists the choices of a Literal."""
    if isinstance(value_type, tuple):
        return click.Choice([str(option) for option in value_type])
    if value_type in (int, float):
        return value_type
    return str  # pydantic parses the rest


def _format_default(value: Any) -> str:
    """A default value as it would be typed."""
    # As TOML spells it.
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value)
