"""Presets: named sizes of a family, any of whose settings can be changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regard.errors import SettingError, did_you_mean

Presets = Mapping[str, Mapping[str, Any]]


def preset_settings(
    family: str,
    presets: Presets,
    name: str,
    defaults: Mapping[str, Any],
    changes: Mapping[str, Any],
) -> dict[str, Any]:
    """The settings of a preset: defaults, the preset's values over them, `changes` over both."""
    if name not in presets:
        raise SettingError(f"{family} has no preset {name!r}", did_you_mean(name, presets))
    options = {**defaults, **presets[name]}
    for key in changes:
        if key not in options:
            raise SettingError(f"{family} has no option {key!r}", did_you_mean(key, options))
    return {**options, **changes}


def transformer_settings(
    family: str,
    presets: Presets,
    name: str,
    defaults: Mapping[str, Any],
    changes: Mapping[str, Any],
) -> Any:
    """`preset_settings` of a Transformer, where d_k and d_ff follow from d_model unless set."""
    settings = preset_settings(family, presets, name, defaults, changes)
    d_model = settings["d_model"]
    heads = settings["heads"]
    if settings["d_k"] is None and d_model % heads:
        raise SettingError(
            f"d_model {d_model} does not divide by {heads} heads", "change one of them"
        )
    # The usual proportions: heads share out d_model, the feed-forward is four times as wide.
    settings["d_k"] = settings["d_k"] or d_model // heads
    settings["d_ff"] = settings["d_ff"] or 4 * d_model
    return settings
