"""mT5 (Xue et al. 2021) in transformers: T5 1.1 with a vocabulary of many languages."""

from __future__ import annotations

from dataclasses import replace

from regard.families.t5_layout import SCHEMA, T5Family

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
    "MT5ForConditionalGeneration",
    replace(SCHEMA, defaults={**SCHEMA.defaults, **_DEFAULTS}),
    can_scale=False,
)
