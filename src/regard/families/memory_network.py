"""The end-to-end memory network (Sukhbaatar et al. 2015); `tiny` has a few more numbers than theirs of 20."""

from __future__ import annotations

from typing import Any

from regard import spec
from regard.errors import SettingError, did_you_mean

PRESETS: dict[str, dict[str, int]] = {
    "tiny": {"d_model": 32, "layers": 3, "sentences": 50},
    "small": {"d_model": 100, "layers": 3, "sentences": 50},
}


def preset(name: str, vocabulary: int, **changes: Any) -> spec.MemoryNetwork:
    """`changes`: d_model, layers (which are hops), sentences."""
    if name not in PRESETS:
        raise SettingError(f"memory has no preset {name!r}", did_you_mean(name, PRESETS))
    settings = PRESETS[name]
    for key in changes:
        if key not in settings:
            raise SettingError(f"memory has no option {key!r}", did_you_mean(key, settings))
    s = {**settings, **changes}
    return spec.MemoryNetwork(s["d_model"], vocabulary, s["layers"], s["sentences"])
