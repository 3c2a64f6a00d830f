"""Mixtral (Jiang et al. 2024): presets, in our own format.

LLaMA with a sparse mixture of experts in each layer, of which a token asks two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from regard import spec
from regard.families.decoders import llama
from regard.families.preset_settings import ConfigPresets, Size

SIZES = {
    "tiny": Size({"layers": 2, "d_model": 128, "heads": 4, "groups": 2, "d_ff": 256, "experts": 4}),
    "8x7b": Size({"layers": 32, "d_model": 4096, "heads": 32, "groups": 8, "d_ff": 14336}, 46_700),
    "8x22b": Size(
        {"layers": 56, "d_model": 6144, "heads": 48, "groups": 8, "d_ff": 16384},
        141_000,
        vocabulary=32_768,
        context=65_536,
    ),
}
DEFAULTS: dict[str, Any] = {**llama.PRESET_DEFAULTS, "experts": 8, "top": 2, "base": 1e6}


def _to_spec(config: Mapping[str, Any]) -> spec.Decoder:
    """The model of a LLaMA config, with `experts` in place of each feed-forward network."""
    own = ("experts", "top")
    model = llama.LLAMA.to_spec({key: value for key, value in config.items() if key not in own})
    block = model.stack.block
    assert isinstance(block.feedforward, spec.GatedFeedForward)
    mixture = spec.MixtureOfExperts(config["experts"], block.feedforward, config["top"])
    return replace(model, stack=replace(model.stack, block=replace(block, feedforward=mixture)))


def _config(settings: Mapping[str, Any]) -> dict[str, Any]:
    config = llama.preset_config(settings)
    return {**config, "experts": settings["experts"], "top": settings["top"]}


preset = ConfigPresets("mixtral", SIZES, DEFAULTS, _config, _to_spec)
PRESETS = {"mixtral": preset.family("decoder", 32_000, 32_768, "8x7b")}
