"""Parser of settings written as one word with options: `gnmt:0.6`, `window:128`, `dilated:64:2`.

No torch here: recipes and the command line parse their options before anything heavy is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from regard.system.errors import SettingError, did_you_mean

T = TypeVar("T")


def parse_option(
    text: str,
    constructors: Mapping[str, Callable[..., T]],
    *,
    subject: str = "choice",
    usage: str | None = None,
    convert: Callable[[str], Any] = str,
) -> T:
    """Parses `word`, `word:option` or `word:option:option` and calls the constructor of that word.

    `subject` names the setting in error messages, `usage` shows how to write it, and `convert` is
    applied to each option (for instance `int`) before the constructor is called.
    """
    word, _, rest = str(text).partition(":")  # a number, where a file has no quotes
    if word not in constructors:
        raise SettingError(f"there is no {subject} {text!r}", did_you_mean(word, constructors))
    # A trailing colon without an option (`gnmt:`) asks for the defaults, as the word alone does.
    options = rest.split(":") if rest else []
    return construct(
        lambda *values: constructors[word](*map(convert, values)),
        options,
        problem=f"{subject} {text!r} does not have the numbers that it needs",
        usage=usage or f"write it like {word}:NUMBER, or {word} alone",
    )


def number_within(text: str, least: float, most: float) -> float:
    """A number of an option, from `least` to `most`; ValueError for any other, and for nan."""
    number = float(text)
    if not least <= number <= most:
        raise ValueError(text)
    return number


def construct(
    constructor: Callable[..., T], options: Sequence[str], *, problem: str, usage: str
) -> T:
    """Calls `constructor` with the options; too few, too many or malformed ones are user errors."""
    try:
        return constructor(*options)
    # KeyError: no such name. TypeError: the wrong number of options. ValueError: no number.
    except (KeyError, TypeError, ValueError):
        raise SettingError(problem, usage) from None
