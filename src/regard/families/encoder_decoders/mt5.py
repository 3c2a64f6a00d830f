"""mT5 (Xue et al. 2021) in transformers: T5 1.1 with a vocabulary of many languages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from regard.families.encoder_decoders.t5_layout import SCHEMA, T5Family
from regard.families.preset_settings import BASE_LAYERS, LARGE_LAYERS, ROUNDED, ConfigPresets, Size

# What transformers assumes for absent keys, where it differs from T5.
_DEFAULTS = {
    "vocab_size": 250112,
    "d_ff": 1024,
    "num_layers": 8,
    "num_heads": 6,
    "feed_forward_proj": "gated-gelu",
}
MT5 = T5Family(
    "mt5",
    "MT5",
    replace(SCHEMA, defaults={**SCHEMA.defaults, **_DEFAULTS}),
    can_scale=False,
)

# ------------------------------------------------------------------ presets

# Xue et al. 2021; the proportions are those of T5 1.1.
SIZES = {
    "tiny": Size({"layers": 2, "d_model": 128, "heads": 4, "d_k": 32, "d_ff": 256}),
    "small": Size({"layers": 8, "d_model": 512, "heads": 6, "d_ff": 1024}, 300),
    "base": Size({**BASE_LAYERS, "d_ff": 2048}, 580),
    "large": Size({**LARGE_LAYERS, "d_ff": 2816}, 1200, ROUNDED),
    "xl": Size({"layers": 24, "d_model": 2048, "heads": 32, "d_ff": 5120}, 3700, ROUNDED),
    "xxl": Size({"layers": 24, "d_model": 4096, "heads": 64, "d_ff": 10240}, 13_000, ROUNDED),
}
PRESET_DEFAULTS = {
    "d_k": 64,
    "decoder_layers": None,  # as many as the encoder has
    "dropout": 0.1,
}


def preset_config(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The config of a preset; T5 1.1 has the same keys."""
    return {
        "vocab_size": settings["vocabulary"],
        "d_model": settings["d_model"],
        "d_kv": settings["d_k"],
        "d_ff": settings["d_ff"],
        "num_layers": settings["layers"],
        "num_decoder_layers": settings["decoder_layers"],
        "num_heads": settings["heads"],
        "dropout_rate": settings["dropout"],
        "tie_word_embeddings": False,
    }


preset = ConfigPresets("mt5", SIZES, PRESET_DEFAULTS, preset_config, MT5.to_spec)
PRESETS = {"mt5": preset.family("encoder-decoder", 250_112, 512, "base")}
