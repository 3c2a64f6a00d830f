"""mT5 (Xue et al. 2021) in transformers: T5 1.1 with a vocabulary of many languages."""

from __future__ import annotations

from dataclasses import replace

from regard.families.encoder_decoders.t5_layout import KEYS, SCHEMA, T5Family
from regard.families.preset_settings import (
    BASE_LAYERS,
    LARGE_LAYERS,
    ROUNDED,
    FromConfig,
    PresetFamily,
    Size,
)

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
PRESET_KEYS = {
    "vocab_size": "vocabulary",
    "d_kv": "d_k",
    "num_decoder_layers": "decoder_layers",
}
PRESET_DEFAULTS = {
    "d_k": 64,
    "decoder_layers": None,  # as many as the encoder has
    "dropout": 0.1,
}


_make = FromConfig(MT5.to_spec, {**KEYS, **PRESET_KEYS}, {"tie_word_embeddings": False})
PRESETS = {
    "mt5": PresetFamily("encoder-decoder", _make, SIZES, PRESET_DEFAULTS, 250_112, 512, "base")
}
