"""The end-to-end memory network (Sukhbaatar et al. 2015): presets."""

from __future__ import annotations

from typing import Any

from regard import spec
from regard.families.preset_settings import PresetFamily, Size, preset_settings

# `tiny` is a little wider than the 20 of the paper.
SIZES = {
    "tiny": Size({"d_model": 32, "layers": 3, "sentences": 50}),
    "small": Size({"d_model": 100, "layers": 3, "sentences": 50}),
}


def preset(name: str, vocabulary: int, context: int, **changes: Any) -> spec.MemoryNetwork:
    """A named size; `changes`: d_model, layers (the paper's hops), sentences; no context."""
    s = preset_settings("memory", SIZES, name, {}, changes)
    return spec.MemoryNetwork(s["d_model"], vocabulary, s["layers"], s["sentences"])


PRESETS = {"memory": PresetFamily("memory network", preset, SIZES, (), 200, 50, "tiny")}
