"""mT5 (Xue et al. 2021) in transformers: T5 1.1 with a vocabulary of many languages."""

from __future__ import annotations

from dataclasses import replace

from regard.families.encoder_decoders.t5 import SCHEMA, SIZES_1_1, UNTIED, T5Family, presets
from regard.families.preset_settings import ROUNDED, Size

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

SIZES = {
    "tiny": SIZES_1_1["tiny"],
    "small": Size(SIZES_1_1["small"].settings, 300),
    "base": Size(SIZES_1_1["base"].settings, 580),
    "large": Size(SIZES_1_1["large"].settings, 1200, ROUNDED),
    "xl": Size(SIZES_1_1["xl"].settings, 3700, ROUNDED),
    "xxl": Size(SIZES_1_1["xxl"].settings, 13_000, ROUNDED),
}
PRESETS = {"mt5": presets(MT5, SIZES, 250_112, **UNTIED)}
