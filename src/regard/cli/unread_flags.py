"""Flags that a command has, and that what it is asked for does not read: refused, not ignored."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import click
from click.core import ParameterSource

from regard.errors import SettingError


def given_flags() -> list[click.Parameter]:
    """The parameters of the current command that were typed."""
    context = click.get_current_context()
    return [
        parameter
        for parameter in context.command.params
        if context.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE
    ]


def check_flags_are_read(readers: Mapping[str, Collection[str]], reader: str, kind: str) -> None:
    """Refuses flags that were given, and that `reader` does not read.

    `readers` are all that there are of this kind, with the parameters that not all of them read.
    """
    for flag in given_flags():
        others = [name for name, parameters in readers.items() if flag.name in parameters]
        if others and reader not in others:
            raise SettingError(
                f"{flag.opts[0]} changes nothing in {kind} {reader!r}",
                f"leave it out; it is read by: {', '.join(others)}",
            )
