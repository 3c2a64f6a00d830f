"""Validation of sizes, for the specs of all files."""

from __future__ import annotations

from typing import Any

from regard.errors import ModelError


def sizes(part: Any, *names: str, least: int = 1) -> None:
    """Raises a ModelError unless each of these fields is None or at least `least`."""
    for name in names:
        value = getattr(part, name)
        if value is not None and value < least:
            raise ModelError(
                f"{type(part).__name__}.{name} cannot be {value}", f"give at least {least}"
            )
