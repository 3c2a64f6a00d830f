"""Flags that a command has, and that what it is asked for does not read: refused, not ignored."""

from __future__ import annotations

from collections.abc import Collection

import click
from click.core import ParameterSource

from regard.errors import SettingError


def check_flags_are_read(conditional: Collection[str], read: Collection[str], reader: str) -> None:
    """Refuses flags of the current command that were given, and that `reader` does not read.

    `conditional` are the parameters that not all readers have; all others are read by each.
    """
    context = click.get_current_context()
    for parameter in context.command.params:
        name = parameter.name or ""
        if name not in conditional or name in read:
            continue
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise SettingError(f"{parameter.opts[0]} is not for {reader}", "leave it out")
