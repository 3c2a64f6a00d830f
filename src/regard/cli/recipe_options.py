"""Options generated from the recipe schema, for the verbs that train: train, compare, finetune."""

from __future__ import annotations

from typing import Any

import click

from regard.errors import SettingError, did_you_mean
from regard.training.recipe import schema as recipes


class RecipeCommand(click.Command):
    """A command whose options are the recipe's keys; an unknown one is answered by the nearest."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            options = [name for parameter in self.params for name in parameter.opts]
            # Arguments have names without dashes; only flags are candidates.
            flags = [name for name in options if name.startswith("--")]
            raise SettingError(
                f"there is no flag {error.option_name}", did_you_mean(error.option_name, flags)
            ) from None


# ------------------------------------------------------------------ options of recipe keys


def recipe_option(key: str) -> click.Option:
    """The option of one recipe key: type, help text and default come from its pydantic field."""
    section = recipes.SECTIONS[recipes.KEYS[key]]
    field = section.model_fields[key]  # pydantic's: annotation, default, description
    value_type = recipes.value_type(key)
    name = key.replace("_", "-")
    text = field.description or ""
    if field.default is not None and not text.endswith("]"):
        text += f"  [{_format_default(field.default)}]"
    text = text.strip()
    if value_type is bool:
        # Both spellings, so that a flag can undo what a recipe says.
        return click.Option([f"--{name}/--no-{name}", key], default=None, help=text)
    return click.Option([f"--{name}", key], type=_click_type(value_type), default=None, help=text)


def recipe_changes(flags: dict[str, Any]) -> dict[str, Any]:
    """The recipe keys that flags set; Adam's betas are parsed from BETA1,BETA2."""
    # Options have no defaults of their own: None means that the recipe decides.
    changes = {key: value for key, value in flags.items() if value is not None}
    if "betas" in changes:
        changes["betas"] = tuple(float(part) for part in changes["betas"].split(","))
    return changes


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
