"""The list of presets: each with its parameters, counted and published."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from regard.builder.parameter_count import parameter_count
from regard.families import presets
from regard.families.presets import Preset
from regard.lab.show.page import published_count, published_data

_HEADER = ("preset", "kind", "parameters", "published", "vocabulary", "context")


def lines() -> Iterator[str]:
    """A table of all presets, one line each, as they are counted."""
    yield _row(*_HEADER)
    for preset in presets.listing():
        published = "" if preset.published is None else published_count(preset.published)
        yield _row(
            preset.name,
            preset.kind,
            f"{_count(preset):,}",
            published,
            f"{preset.vocabulary:,}",
            f"{preset.context:,}",
        )
    yield ""
    yield "`regard show NAME:SIZE` explains why two counts differ; SIZE is optional."


def data() -> list[dict[str, Any]]:
    """The list as JSON values."""
    return [
        {
            "name": preset.name,
            "kind": preset.kind,
            "parameters": _count(preset),
            "published": published_data(preset),
            "vocabulary": preset.vocabulary,
            "context": preset.context,
        }
        for preset in presets.listing()
    ]


def _count(preset: Preset) -> int:
    # On the meta device: a model of 540 billion parameters takes no memory.
    return parameter_count(presets.preset(preset.name))


def _row(
    name: str, kind: str, parameters: str, published: str, vocabulary: str, context: str
) -> str:
    cells = f"{name:<31}{kind:<16}{parameters:>16}{published:>12}{vocabulary:>12}{context:>10}"
    return cells.rstrip()
