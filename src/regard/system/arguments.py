"""Checks of values that come from outside: Python callers, configs, flags.

`is_whole` and `is_number` tell whether a value of JSON is a number; `whole_number`, `real_number`
and `switch` check an argument. Numbers of numpy count as Python's there: a width that was computed
is one as much as a width written.
"""

from __future__ import annotations

import math
import numbers
from typing import Any, TypeGuard

from regard.system.errors import SettingError

# Sizes, counts and token ids: what 32 bits hold. No tensor has a longer dimension.
LARGEST_SIZE = 2**31 - 1
# Other numbers: far from the end of float32 (3.4e38), so that a few of them can be multiplied.
LARGEST_NUMBER = 1e18
LARGEST_SEED = 2**63 - 1  # of torch's generators


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


def whole_number(name: str, value: object, least: float = -math.inf, most: float = math.inf) -> int:
    """An integer within these bounds; strings, floats and booleans are refused."""
    repair = f"pass an integer, for example {name}=5"
    if least > -math.inf:
        repair = f"pass an integer above {least - 1}"
    if not isinstance(value, numbers.Integral) or isinstance(value, bool):
        raise SettingError(f"{name} = {value!r} is not an integer", repair)
    number = int(value)
    if number < least:
        raise SettingError(f"{name} = {number} is too small", repair)
    if number > most:
        raise SettingError(f"{name} = {number} is too large", f"use {most} at most")
    return number


def real_number(name: str, value: object) -> float:
    """A number as a float; strings and booleans are refused."""
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        raise SettingError(
            f"{name} = {value!r} is not a number", f"pass a number, for example {name}=0.8"
        )
    return float(value)


def switch(name: str, value: object) -> bool:
    """A boolean; strings such as "no" and numbers, which Python would accept, are refused."""
    if isinstance(value, bool):
        return value
    import numpy as np  # imported late: most switches are Python's

    if isinstance(value, np.bool_):
        return bool(value)
    raise SettingError(
        f"{name} = {value!r} is neither True nor False", f"set {name}=True or {name}=False"
    )
