"""A recipe as a TOML file, which `regard train` takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regard.training.model_card import toml_value


def recipe_toml(values: Mapping[str, Mapping[str, Any]], name: str) -> str:
    """The text of a recipe: its sections with the settings that are set."""
    lines = [f"# {name}, tuned by `regard tune`."]
    for section, entries in values.items():
        # None is no value of TOML: such keys keep their defaults.
        settings = {key: value for key, value in entries.items() if value is not None}
        if settings:
            lines += ["", f"[{section}]"]
            lines += [f"{key} = {toml_value(value)}" for key, value in settings.items()]
    return "\n".join(lines) + "\n"
