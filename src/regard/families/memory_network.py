"""The end-to-end memory network (Sukhbaatar et al. 2015): presets."""

from __future__ import annotations

from typing import Any

from regard import spec
from regard.families.preset_settings import PresetFamily, Size

# `tiny` is a little wider than the 20 of the paper.
SIZES = {
    "tiny": Size({"d_model": 32, "layers": 3, "sentences": 50}),
    "small": Size({"d_model": 100, "layers": 3, "sentences": 50}),
}


def _make(settings: Any) -> spec.MemoryNetwork:
    """The layers are the paper's hops; there is no context."""
    s = settings
    return spec.MemoryNetwork(s["d_model"], s["vocabulary"], s["layers"], s["sentences"])


PRESETS = {"memory": PresetFamily("memory network", _make, SIZES, {}, 200, 50, "tiny")}
