"""PEGASUS in transformers (PegasusForConditionalGeneration): a pre-norm Marian."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regard import spec
from regard.families.encoder_decoders.fairseq_layout import (
    PRESET_DEFAULTS,
    FairseqFamily,
    preset_config,
)
from regard.families.preset_settings import BASE_LAYERS, ConfigPresets, Size

PEGASUS = FairseqFamily("pegasus", "Pegasus", spec.PreNorm(), 50_265)

# ------------------------------------------------------------------ presets

# Zhang et al. 2020, Section 6.
SIZES = {
    "tiny": Size({"layers": 2, "d_model": 128, "heads": 4}),
    "base": Size(BASE_LAYERS, 223, vocabulary=32_000),
    "large": Size({"layers": 16, "d_model": 1024, "heads": 16}, 568),
}


def _preset_config(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {**preset_config(settings), "scale_embedding": True, "regard_head_bias": False}


preset = ConfigPresets(
    "pegasus", SIZES, {**PRESET_DEFAULTS, "activation": "relu"}, _preset_config, PEGASUS.to_spec
)
PRESETS = {"pegasus": preset.family("encoder-decoder", 96_103, 512, "base")}
