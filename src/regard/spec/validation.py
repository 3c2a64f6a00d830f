"""Validation of sizes and other numbers, for the specs of all files."""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from typing import Any, Literal, TypeGuard

from regard.errors import ModelError

# Sizes, counts and token ids: what 32 bits hold. No tensor has a longer dimension.
LARGEST_SIZE = 2**31 - 1
# Other numbers: far from the end of float32 (3.4e38), so that a few of them can be multiplied.
LARGEST_NUMBER = 1e18
LARGEST_SEED = 2**63 - 1  # of torch's generators


def sizes(part: Any, *names: str, least: int = 1, most: int = LARGEST_SIZE) -> None:
    """Raises a ModelError unless each of these fields is None, or from `least` to `most`."""
    for name in names:
        value = getattr(part, name)
        if value is not None and not is_number(value, -math.inf, math.inf):
            raise ModelError(f"{type(part).__name__}.{name} cannot be {value!r}", "give a number")
        if value is None or least <= value <= most:
            continue
        bound = f"at least {least}" if value < least else f"at most {most:,}"
        raise ModelError(f"{type(part).__name__}.{name} cannot be {value}", f"give {bound}")


def is_whole(value: Any, least: int = 0, most: int = LARGEST_SIZE) -> TypeGuard[int]:
    """Whether a value is a whole number in these bounds; `true` of JSON is none."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def is_number(
    value: Any, least: float = -LARGEST_NUMBER, most: float = LARGEST_NUMBER
) -> TypeGuard[float]:
    """Whether a value is a finite number in these bounds; `true` of JSON is none."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return False
    # Comparisons of nan are false; whole numbers of any length can be compared.
    return least <= value <= most and math.isfinite(value)


# --- which part fits where ---


def check_parts(part: Any) -> None:
    """Raises `ModelError` for a part in a place where it does not fit, at any depth of a spec.

    Python does not check annotations: `Tokens(512, Rope())` is made without complaint.
    """
    if isinstance(part, tuple):
        for item in part:
            check_parts(item)
    if not dataclasses.is_dataclass(part) or isinstance(part, type):
        return
    check_fields(part)
    for field in dataclasses.fields(part):
        check_parts(getattr(part, field.name))


def check_fields(part: Any) -> None:
    """The same for the fields of one part; the checks of a spec that ask its parts come after."""
    # Annotations of classes from outside may name what cannot be resolved here.
    if not type(part).__module__.startswith("regard.spec"):
        return
    kind: type = type(part)
    hints = type_hints(kind)
    for field in dataclasses.fields(part):
        value = getattr(part, field.name)
        owner = type(part).__name__
        _check_part(owner, field.name, value, hints[field.name])
        is_rate = field.name.endswith(("dropout", "drop_path"))
        if is_rate and not is_number(value, 0.0, 1.0):
            problem = f"{owner}.{field.name} cannot be {value!r}"
            raise ModelError(problem, "give a number from 0 to 1")
        if field.name == "d_model" and value < 1:
            raise ModelError(f"{owner}.d_model cannot be {value!r}", "give at least 1")


def _check_part(owner: str, name: str, value: Any, hint: Any) -> None:
    if fits(value, hint):
        return
    is_part = dataclasses.is_dataclass(value) and not isinstance(value, type)
    described = type(value).__name__ if is_part else repr(value)
    options = [_describe(option) for option in _options(hint) if option is not type(None)]
    fitting = ", ".join(options)
    if typing.get_origin(hint) is tuple:
        fitting = f"a tuple of {fitting}"
    raise ModelError(f"{owner}.{name} cannot be {described}", f"what fits there: {fitting}")


def _describe(option: Any) -> str:
    """An alternative of an annotation, in words."""
    if typing.get_origin(option) is Literal:
        return ", ".join(repr(choice) for choice in typing.get_args(option))
    words = {int: "a whole number", float: "a number", str: "a text", bool: "True or False"}
    return words.get(option) or str(getattr(option, "__name__", option))


def _options(hint: Any) -> tuple[Any, ...]:
    """The alternatives of a union, of the items where it is a tuple's."""
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return tuple(inner for option in typing.get_args(hint) for inner in _options(option))
    if origin is tuple:
        return _options(typing.get_args(hint)[0])
    return (hint,)


@functools.cache
def type_hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def fits(value: Any, hint: Any) -> bool:
    """Whether a value has the annotated type, for the annotations that specs use."""
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, option) for option in typing.get_args(hint))
    if origin is Literal:
        return value in typing.get_args(hint)
    if origin is tuple:
        return isinstance(value, tuple) and all(
            fits(item, typing.get_args(hint)[0]) for item in value
        )
    # bool is a subclass of int in Python, but `true` is no number in JSON.
    if hint is float:
        return is_number(value)
    if hint is int:
        # Seeds may have 63 bits; sizes are checked by the parts themselves.
        return is_whole(value, -LARGEST_SEED, LARGEST_SEED)
    if hint is type(None):
        return value is None
    return isinstance(value, hint)
