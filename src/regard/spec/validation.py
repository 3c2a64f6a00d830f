"""Validation of the parts of a spec: each value has the annotated type, and is in its bounds."""

from __future__ import annotations

import dataclasses
import functools
import math
import reprlib
import types
import typing
from typing import Annotated, Any, Literal

from regard.system.arguments import LARGEST_NUMBER, LARGEST_SEED, LARGEST_SIZE, is_number, is_whole
from regard.system.errors import ModelError

# ------------------------------------------------------------------ numbers with bounds


@dataclasses.dataclass(frozen=True)
class Bounds:
    """The bounds of an annotated number, and the words for the numbers between them."""

    least: float
    most: float
    words: str

    def hold(self, value: float) -> bool:
        return self.least <= value <= self.most


def _between(least: int, most: int) -> Bounds:
    return Bounds(least, most, f"a whole number, at least {least} and at most {most:,}")


SMALLEST_NUMBER = 1 / LARGEST_NUMBER

Size = Annotated[int, _between(1, LARGEST_SIZE)]
# How many of something there may be none of, or a token id.
Count = Annotated[int, _between(0, LARGEST_SIZE)]
Rate = Annotated[float, Bounds(0, 1, "a number from 0 to 1")]  # of dropout
Fraction = Annotated[float, Bounds(SMALLEST_NUMBER, 1, "a number above 0, at most 1")]
# A fraction that leaves something.
Share = Annotated[float, Bounds(0, math.nextafter(1, 0), "a number of at least 0 and below 1")]
Positive = Annotated[float, Bounds(SMALLEST_NUMBER, LARGEST_NUMBER, "a number above 0")]
NonNegative = Annotated[float, Bounds(0, LARGEST_NUMBER, "a number, at least 0")]


# Layers, hops and the like. Each is an object of its own, also on the meta device: a thousand take
# seconds to build. DeepNet (Wang et al. 2022) has 1,000 layers.
Depth = Annotated[int, _between(1, 1024)]
# Patches along an image and along a window: each patch, and each pair of a window's, has a number
# that is computed on the meta device too. Swin has up to 24 in a window.
GridSide = Annotated[int, _between(1, 1024)]
WindowSide = Annotated[int, _between(1, 64)]
ExtraTokens = Annotated[int, _between(0, 1024)]
Experts = Annotated[int, _between(1, 4096)]  # Switch Transformers have up to 2,048
# Heads and their widths: slopes and frequencies are computed one by one, also on the meta device.
HeadSize = Annotated[int, _between(1, 2**20)]


# ------------------------------------------------------------------ which value fits where


class Part:
    """Base class of all parts of a spec: what a part is given is checked when it is made.

    Python does not check annotations: `Tokens(512, Rope())` would be made without complaint.
    """

    def __post_init__(self) -> None:
        check_fields(self)
        self.validate()

    def validate(self) -> None:
        """Raises a ModelError for values that do not fit together; each one has been checked."""


def check_fields(part: Any) -> None:
    """Raises a ModelError for a value that has not the annotated type, or is out of its bounds."""
    kind: type = type(part)
    hints = type_hints(kind)
    for field in dataclasses.fields(part):
        check_field(kind.__name__, field.name, getattr(part, field.name), hints[field.name])


def check_field(owner: str, name: str, value: Any, hint: Any) -> None:
    """The same for one field of a part."""
    if fits(value, hint):
        return
    words = type(value).__name__  # of a part; texts and numbers as they are written
    if isinstance(value, int) and abs(value) > LARGEST_NUMBER**2:
        words = "so large a number"  # Python refuses to write some
    elif isinstance(value, type) or not dataclasses.is_dataclass(value):
        words = reprlib.repr(value)
    raise ModelError(f"{owner}.{name} cannot be {words}", f"use {describe(hint)}")


def describe(hint: Any) -> str:
    """What an annotation allows, in words."""
    origin = typing.get_origin(hint)
    options = typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return ", ".join(describe(option) for option in options if option is not type(None))
    if origin is tuple:
        return f"a tuple of {describe(options[0])}"
    if origin is Literal:
        return ", ".join(map(repr, options))
    if origin is Annotated:
        return str(options[1].words)
    if getattr(hint, "_is_protocol", False):
        members = [f"`{name}`" for name in vars(hint) if not name.startswith("_")]
        return f"a frozen dataclass of your own with {' and '.join(members)}"
    words = {int: "a whole number", float: "a number", str: "a text", bool: "True or False"}
    return words.get(hint) or str(getattr(hint, "__name__", hint))


@functools.cache
def type_hints(kind: type) -> dict[str, Any]:
    """The annotations of a dataclass, with their bounds."""
    try:
        return typing.get_type_hints(kind, include_extras=True)
    except NameError:  # a class from outside, whose annotations name what only its file knows
        return {field.name: Any for field in dataclasses.fields(kind)}


def fits(value: Any, hint: Any) -> bool:
    """Whether a value has the annotated type, for the annotations that specs use."""
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, option) for option in typing.get_args(hint))
    if origin is Annotated:
        kind, bounds = typing.get_args(hint)
        return fits(value, kind) and bounds.hold(value)
    if origin is Literal:
        # True is equal to 1 in Python, and an array to nothing.
        return any(type(value) is type(choice) and value == choice for choice in hint.__args__)
    if origin is tuple:
        hints = typing.get_args(hint)
        if not isinstance(value, tuple):
            return False
        if hints[-1] is Ellipsis:  # any number of items
            return all(fits(item, hints[0]) for item in value)
        return len(value) == len(hints) and all(map(fits, value, hints))
    # bool is a subclass of int in Python, but `true` is no number in JSON.
    if hint is float:
        return is_number(value)
    if hint is int:
        return is_whole(value, -LARGEST_SEED, LARGEST_SEED)
    if hint is type(None):
        return value is None
    if hint is Any or not isinstance(hint, type):
        return True  # of a class from outside
    # A class has the attributes that a protocol asks of its instances.
    return isinstance(value, hint) and not isinstance(value, type)


def check_odd(*kernels: int) -> None:
    """Kernels over images reach as far to both sides, so that a stride divides rows and columns."""
    for kernel in kernels:
        if kernel % 2 == 0:
            raise ModelError(f"a kernel over images must be odd, not {kernel}", "set an odd kernel")
