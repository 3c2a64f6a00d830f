"""mBART and mBART-50 in transformers: BART with pre-norm, and a norm after each stack."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from regard import spec
from regard.families.encoder_decoders.bart import BART
from regard.families.encoder_decoders.fairseq_layout import PRESET_DEFAULTS, preset_config
from regard.families.preset_settings import ConfigPresets, Size

MBART = replace(BART, model_type="mbart", class_prefix="MBart", residual=spec.PreNorm())

# ------------------------------------------------------------------ presets

# Liu et al. 2020, with sentencepieces of 25 languages.
SIZES = {
    "tiny": Size({"layers": 2, "d_model": 128, "heads": 4}),
    "large": Size({"layers": 12, "d_model": 1024, "heads": 16}, 610),
}


def _config(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **preset_config(settings),
        "max_position_embeddings": settings["context"],
        "scale_embedding": True,
        "regard_head_bias": False,
    }


preset = ConfigPresets("mbart", SIZES, PRESET_DEFAULTS, _config, MBART.to_spec)
PRESETS = {"mbart": preset.family("encoder-decoder", 250_027, 1024, "large")}
