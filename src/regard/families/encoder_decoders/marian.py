"""Marian in transformers (MarianMTModel): the post-norm Transformer of 2017."""

from __future__ import annotations

from regard import spec
from regard.families.encoder_decoders.fairseq_layout import PRESET_DEFAULTS, FairseqFamily
from regard.families.preset_settings import PresetFamily, size

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
    "tiny": size(2, 128, 4),
    "base": size(6, 512, 8),
}


_DEFAULTS = {**PRESET_DEFAULTS, "activation": "silu"}
PRESETS = {
    "marian": PresetFamily(
        "encoder-decoder", MARIAN.from_settings(), SIZES, _DEFAULTS, 58_101, 512, "base"
    )
}
