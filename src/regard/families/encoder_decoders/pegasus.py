"""PEGASUS in transformers (PegasusForConditionalGeneration): a pre-norm Marian."""

from __future__ import annotations

from regard import spec
from regard.families.encoder_decoders.fairseq_layout import PRESET_DEFAULTS, FairseqFamily
from regard.families.preset_settings import BASE_LAYERS, PresetFamily, size

PEGASUS = FairseqFamily("pegasus", "Pegasus", spec.PreNorm(), 50_265)

# ------------------------------------------------------------------ presets

# Zhang et al. 2020, Section 6.
SIZES = {
    "tiny": size(2, 128, 4),
    "base": size(*BASE_LAYERS, 223, vocabulary=32_000),
    "large": size(16, 1024, 16, 568),
}


_DEFAULTS = {**PRESET_DEFAULTS, "activation": "relu"}
PRESETS = {
    "pegasus": PresetFamily(
        "encoder-decoder", PEGASUS.from_settings(), SIZES, _DEFAULTS, 96_103, 512, "base"
    )
}
