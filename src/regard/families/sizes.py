"""Named sizes: a table of settings, one row chosen, some of it changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regard.errors import SettingError, did_you_mean

Sizes = Mapping[str, Mapping[str, Any]]


def chosen(
    family: str, presets: Sizes, name: str, defaults: Mapping[str, Any], changes: Mapping[str, Any]
) -> Any:
    """Defaults, what the preset says over them, what is asked for over both. Unset widths follow from d_model."""
    if name not in presets:
        raise SettingError(f"{family} has no preset {name!r}", did_you_mean(name, presets))
    settings = {**defaults, **presets[name], **changes}
    known = {*defaults, *presets[name]}
    for key in changes:
        if key not in known:
            raise SettingError(f"{family} has no option {key!r}", did_you_mean(key, known))
    d_model, heads = settings["d_model"], settings["heads"]
    if settings["d_k"] is None and d_model % heads:
        raise SettingError(
            f"d_model {d_model} does not divide by {heads} heads", "change one of them"
        )
    settings["d_k"] = settings["d_k"] or d_model // heads
    settings["d_ff"] = settings["d_ff"] or 4 * d_model
    return settings
