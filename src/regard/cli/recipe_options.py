"""Options generated from the recipe schema, for the commands that train."""

from __future__ import annotations

import re
from typing import Any

import click

from regard.cli.shared_options import (
    FILE,
    MODEL_FOLDER,
    Suggested,
    flag,
    option,
    options,
    preset_names,
    preset_sizes,
    recipe_names,
)
from regard.training.recipe import schema

# The settings of the short help, by section; `--help all` has the others too.
COMMON_KEYS = (
    # data and tokens
    "source", "target", "pairs", "valid_source", "valid_target", "text", "images",
    "sounds", "series", "graph", "generated", "context", "tokenizer", "vocabulary",
    # model
    "model", "preset", "spec", "d_model", "heads", "layers", "dropout", "position", "attention",
    "residual", "horizon",
    # training
    "objective", "steps", "batch_tokens", "optimizer", "schedule", "learning_rate",
    "warmup_steps", "label_smoothing", "precision", "compile", "final_weights",
    "validate_every", "patience", "seed", "device", "beam",
    # fine-tuning
    "task", "base", "epochs", "freeze", "lora",
    # several processes
    "strategy",
)  # fmt: skip
# Validation and test data stand beside --data.
_HELP_SECTIONS = {**schema.KEYS, "valid": "", "test": ""}
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
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        everything = _EVERYTHING in ctx.meta
        rows: dict[str, list[tuple[str, str]]] = {"": []}  # by section; "" has the command's own
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None or isinstance(parameter, click.Argument):
                continue
            name = parameter.name or ""
            section = _HELP_SECTIONS[name] if isinstance(parameter, _RecipeOption) else ""
            if section and not everything and name not in COMMON_KEYS:
                continue
            flags, text = record
            if section and not everything:
                text = _first_part(text)
            if "--help" in parameter.opts:
                flags += " [all]"
                text = "Show this message and exit; `all`: every setting."
            rows.setdefault(section, []).append((flags, text))
        with formatter.section("Options"):
            formatter.write_dl(rows.pop(""))
        for section, settings in rows.items():
            # What it is about: the beginning of its docstring.
            title = re.split("[.:]", schema.SECTIONS[section].__doc__ or "")[0]
            with formatter.section(f"[{section}]  {title}"):
                formatter.write_dl(settings)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if any(parameter.name == "recipe" for parameter in self.params):
            with formatter.section("Built-in recipes"):
                formatter.write_text(", ".join(recipe_names()))
        super().format_epilog(ctx, formatter)


def command_arguments(ctx: click.Context) -> list[str]:
    """The arguments that a command was called with."""
    return list(ctx.meta[_ARGUMENTS])


def _first_part(text: str) -> str:
    """A help text up to its first semicolon, with its default."""
    head, separator, tail = text.partition(";")
    default = tail[tail.rfind("  [") :] if separator and "  [" in tail else ""
    return head + default


# ------------------------------------------------------------------ options of recipe keys


# What a shell completes; other settings are numbers, choices or free text.
_COMPLETED: dict[str, Suggested] = {
    "model": Suggested(preset_names),
    "preset": Suggested(preset_sizes),
    **dict.fromkeys(("base", "teacher"), MODEL_FOLDER),
    **dict.fromkeys((*schema.FILE_KEYS["data"], *schema.FILE_KEYS["model"]), FILE),
    **dict.fromkeys(("valid", "test", "tokenizer", "target_tokenizer"), FILE),
}


class _RecipeOption(click.Option):
    """The option of a recipe's key, which the help has in its section."""


def recipe_option(key: str, text: str | None = None, default: str | None = None) -> click.Option:
    """The option of one recipe key, by its pydantic field; help and default may be other ones."""
    field = schema.SECTIONS[schema.KEYS[key]].model_fields[key]
    text = text or field.description or ""
    if default is None and field.default is not None and not text.endswith("]"):
        default = _format_default(field.default)
    if default is not None:
        text = f"{text}  [{default}]"
    name = "--" + key.replace("_", "-")
    value_type = schema.value_type(key)
    if value_type is bool:
        # Both spellings, so that a flag can undo what a recipe says.
        return _RecipeOption([f"{name}/--no-{name[2:]}", key], default=None, help=text)
    if isinstance(value_type, tuple):
        value_type = click.Choice(list(map(str, value_type)))
    elif value_type not in (int, float):
        value_type = str  # pydantic parses the rest
    return _RecipeOption([name, key], type=_COMPLETED.get(key, value_type), help=text)


def _format_default(value: Any) -> str:
    """A default value as it would be typed."""
    # As TOML spells it.
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


data_dir_option = option(
    "--data-dir",
    "folder with the recipe's data files  [$REGARD_DATA]",
    MODEL_FOLDER,
    metavar="DIR",
)
# Training data of whatever kind, and where recipes find theirs.
data_options = options(
    option(
        "--data",
        "training data for the objective; or name its kind: --pairs, --text, --images, …",
        FILE,
        metavar="FILE",
    ),
    data_dir_option,
)
resume_option = option("--resume", "resume what was begun in DIR", MODEL_FOLDER, metavar="DIR")
overwrite_option = flag("--overwrite", "remove a run that is in --out")


def recipe_changes(flags: dict[str, Any]) -> dict[str, Any]:
    """The recipe keys that flags set."""
    # Options have no defaults of their own: None, or nothing, means that the recipe decides.
    return {key: value for key, value in flags.items() if value not in (None, ())}
