"""The end-to-end memory network (Sukhbaatar et al. 2015): presets."""

from __future__ import annotations

from typing import Any

from regard import spec
from regard.families.preset_settings import preset_settings

# `tiny` is a little wider than the 20 of the paper.
PRESETS: dict[str, dict[str, int]] = {
    "tiny": {"d_model": 32, "layers": 3, "sentences": 50},
    "small": {"d_model": 100, "layers": 3, "sentences": 50},
}


def preset(name: str, vocabulary: int, **changes: Any) -> spec.MemoryNetwork:
    """A named size; `changes`: d_model, layers (the paper's hops), sentences."""
    s = preset_settings("memory", PRESETS, name, {}, changes)
    return spec.MemoryNetwork(s["d_model"], vocabulary, s["layers"], s["sentences"])
