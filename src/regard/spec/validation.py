"""What several kinds check of their options."""

from __future__ import annotations

from typing import Any

from regard.errors import ModelError


def sizes(part: Any, *names: str, least: int = 1) -> None:
    """Each of these options is at `least` so large, or left out."""
    for name in names:
        value = getattr(part, name)
        if value is not None and value < least:
            raise ModelError(
                f"{type(part).__name__}.{name} cannot be {value}", f"give at least {least}"
            )
