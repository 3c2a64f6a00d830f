"""mBART and mBART-50 in transformers: BART with pre-norm, and a norm after each stack."""

from __future__ import annotations

from dataclasses import replace

from regard import spec
from regard.families.encoder_decoders.bart import BART
from regard.families.encoder_decoders.fairseq_layout import PRESET_DEFAULTS
from regard.families.preset_settings import PresetFamily, size

MBART = replace(BART, model_type="mbart", class_prefix="MBart", residual=spec.PreNorm())

# ------------------------------------------------------------------ presets

# Liu et al. 2020, with sentencepieces of 25 languages.
SIZES = {
    "tiny": size(2, 128, 4),
    "large": size(12, 1024, 16, 610),
}


PRESETS = {
    "mbart": PresetFamily(
        "encoder-decoder", MBART.from_settings(), SIZES, PRESET_DEFAULTS, 250_027, 1024, "large"
    )
}
