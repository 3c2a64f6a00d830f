"""Flags that a command has, and that what it is asked for does not read: refused, not ignored."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import click
from click.core import ParameterSource

from regard.system.errors import SettingError


def given_flags() -> list[click.Parameter]:
    """The parameters of the current command that were typed."""
    context = click.get_current_context()
    return [
        parameter
        for parameter in context.command.params
        if context.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE
    ]


def refuse_flags(names: Collection[str], problem: str, repair: str) -> None:
    """Refuses the parameters of these names if they were typed: nothing would read them."""
    typed = [as_written(flag) for flag in given_flags() if flag.name in names]
    if typed:
        raise SettingError(f"{', '.join(typed)}: {problem}", repair)


def refuse_other_flags(read: Collection[str], problem: str, repair: str) -> None:
    """Refuses all that was typed but for the parameters of these names."""
    others = [flag.name for flag in given_flags() if flag.name is not None]
    refuse_flags([name for name in others if name not in read], problem, repair)


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
