"""Checks of numbers and switches that a Python caller gives, where annotations check nothing.

Numbers of numpy count as Python's: a width that was computed is one as much as a width written.
"""

from __future__ import annotations

import math
import numbers

from regard.errors import SettingError


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
