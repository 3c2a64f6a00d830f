"""Answers of the studio: JSON, or `Packed`, JSON and one array as bytes.

Many numbers are then neither printed nor parsed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from regard.look.result import AnalysisResult, Array


@dataclass(frozen=True)
class Packed:
    """A JSON header, and with it one array of float32 numbers or of bytes.

    Attention weights have their shades beside them, from 0 to 1: the page draws what `regard.look`
    draws.
    """

    header: dict[str, Any]
    values: Array
    shades: Array | None = None


Answer = dict[str, Any] | Packed


def with_note(result: AnalysisResult) -> dict[str, Any]:
    """A result of `regard.look` as JSON, with what is to be said about it."""
    return {**result.to_dict(), "note": result.note}
