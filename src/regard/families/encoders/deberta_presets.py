"""DeBERTa v2 and v3 (He et al. 2021): presets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regard.families.encoders import deberta
from regard.families.preset_settings import ENCODER_DEFAULTS, ConfigPresets, encoder_config

# `conv` is the width of the convolution next to the first layer, which version 3 does not have.
PRESETS_V2: dict[str, dict[str, Any]] = {
    "tiny": {"layers": 2, "d_model": 128, "heads": 2, "conv": 3},
    "xlarge": {"layers": 24, "d_model": 1536, "heads": 24, "conv": 3},
    "xxlarge": {"layers": 48, "d_model": 1536, "heads": 24, "conv": 3},
}
PRESETS_V3: dict[str, dict[str, Any]] = {
    "tiny": {"layers": 2, "d_model": 128, "heads": 2},
    "xsmall": {"layers": 12, "d_model": 384, "heads": 6},
    "small": {"layers": 6, "d_model": 768, "heads": 12},
    "base": {"layers": 12, "d_model": 768, "heads": 12},
    "large": {"layers": 24, "d_model": 1024, "heads": 16},
}
_DEFAULTS: dict[str, Any] = {**ENCODER_DEFAULTS, "conv": None}


def _config(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "architectures": ["DebertaV2ForMaskedLM"],
        **encoder_config(settings),
        "vocab_size": settings["vocabulary"],
        "max_position_embeddings": settings["context"],
        "position_biased_input": False,
        "relative_attention": True,
        "share_att_key": True,
        "pos_att_type": ["p2c", "c2p"],
        "position_buckets": 256,
        "norm_rel_ebd": "layer_norm",
        "conv_kernel_size": settings["conv"],
        "conv_act": "gelu",
    }


preset_v2 = ConfigPresets("deberta-v2", PRESETS_V2, _DEFAULTS, _config, deberta.to_spec)
preset_v3 = ConfigPresets("deberta-v3", PRESETS_V3, _DEFAULTS, _config, deberta.to_spec)
