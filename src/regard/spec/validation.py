"""Validation of sizes and other numbers, for the specs of all files."""

from __future__ import annotations

import math
from typing import Any, TypeGuard

from regard.errors import ModelError

# Sizes, counts and token ids: what 32 bits hold. No tensor has a longer dimension.
LARGEST_SIZE = 2**31 - 1
# Other numbers: far from the end of float32 (3.4e38), so that a few of them can be multiplied.
LARGEST_NUMBER = 1e18


def sizes(part: Any, *names: str, least: int = 1, most: int = LARGEST_SIZE) -> None:
    """Raises a ModelError unless each of these fields is None, or from `least` to `most`."""
    for name in names:
        value = getattr(part, name)
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
