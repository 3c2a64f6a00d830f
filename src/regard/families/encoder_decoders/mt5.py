"""mT5 (Xue et al. 2021) in transformers: T5 1.1 with a vocabulary of many languages."""

from __future__ import annotations

from dataclasses import replace

from regard.families.encoder_decoders.t5 import SCHEMA, SIZES_1_1, UNTIED, T5Family, presets
from regard.families.preset_settings import ROUNDED

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
    name: replace(SIZES_1_1[name], published=published, reason=reason)
    for name, published, reason in (
        ("tiny", None, ""),
        ("small", 300, ""),
        ("base", 580, ""),
        ("large", 1200, ROUNDED),
        ("xl", 3700, ROUNDED),
        ("xxl", 13_000, ROUNDED),
    )
}
PRESETS = {"mt5": presets(MT5, SIZES, 250_112, **UNTIED)}
