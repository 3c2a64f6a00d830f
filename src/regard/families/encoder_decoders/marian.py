"""Marian in transformers (MarianMTModel): the post-norm Transformer of 2017."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regard import spec
from regard.families.encoder_decoders.fairseq_layout import (
    PRESET_DEFAULTS,
    FairseqFamily,
    preset_config,
)
from regard.families.preset_settings import ConfigPresets, Size

MARIAN = FairseqFamily(
    "marian",
    "Marian",
    spec.PostNorm(),
    58_101,
    "MTModel",
    writes_sinusoids=False,
    separates=True,
)

# ------------------------------------------------------------------ presets

# The size of OPUS-MT's models (Tiedemann and Thottingal 2020).
SIZES = {
    "tiny": Size({"layers": 2, "d_model": 128, "heads": 4}),
    "base": Size({"layers": 6, "d_model": 512, "heads": 8}),
}


def _preset_config(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {**preset_config(settings), "scale_embedding": True, "regard_head_bias": False}


preset = ConfigPresets(
    "marian", SIZES, {**PRESET_DEFAULTS, "activation": "silu"}, _preset_config, MARIAN.to_spec
)
PRESETS = {"marian": preset.family("encoder-decoder", 58_101, 512, "base")}
