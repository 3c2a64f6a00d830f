"""Types of options that are numbers: finite, within bounds, refused before anything is loaded.

click's own take any number of digits, `nan` and `inf`; so every numeric option has one of these.
Keys of recipes are checked by their schema instead.
"""

from __future__ import annotations

import math
from typing import Any

import click

from regard.system.arguments import LARGEST_NUMBER, LARGEST_SEED, LARGEST_SIZE
from regard.system.errors import SettingError

_SHOWN = 40  # characters of a wrong value: it may have thousands


class WholeNumber(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.2
    """A whole number from `least` to `most`."""

    name = "integer"

    def __init__(self, least: int = 1, most: int = LARGEST_SIZE) -> None:
        self.least = least
        self.most = most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            number = int(value)
        except ValueError:
            number = None
        if number is None or not self.least <= number <= self.most:
            raise _refusal(value, param, f"a whole number from {self.least:,} to {self.most:,}")
        return number


class WholeNumbers(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.2
    """Whole numbers with commas between them, each from 1 to `most`."""

    name = "integer,…"

    def __init__(self, most: int) -> None:
        self.each = WholeNumber(1, most)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> list[int]:
        return [self.each.convert(part, param, ctx) for part in str(value).split(",")]


class Number(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.2
    """A finite number from `least` to `most`."""

    name = "float"

    def __init__(self, least: float = 0, most: float = LARGEST_NUMBER) -> None:
        self.least = least
        self.most = most

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        # Comparisons of nan are false.
        if not self.least <= number <= self.most:
            raise _refusal(value, param, f"a number from {self.least:g} to {self.most:g}")
        return number


def _refusal(value: Any, param: click.Parameter | None, expected: str) -> SettingError:
    flag = "the value" if param is None else param.opts[0]
    shown = str(value)
    if len(shown) > _SHOWN:
        shown = shown[:_SHOWN] + "…"
    return SettingError(f"{flag} cannot be {shown!r}", f"give {expected}")


COUNT = WholeNumber()
INDEX = WholeNumber(0)
PARAMETERS = WholeNumber(1, 10**18)
SEED = WholeNumber(0, LARGEST_SEED)
SEEDS = WholeNumber(1, 1000)  # each is a run of its own
FLOPS = Number(1, 1e36)
MINUTES = Number(0.01, 60 * 24 * 7)
SHARE = Number(0, 1)
