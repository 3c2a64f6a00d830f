"""HuBERT in transformers (Hsu et al. 2021): Wav2Vec2's encoder, taught by cluster numbers."""

from __future__ import annotations

import dataclasses

from regard.families.config_schema import Config
from regard.families.preset_settings import (
    BASE_LAYERS,
    LARGE_LAYERS,
    TINY_LAYERS,
    FromConfig,
    PresetFamily,
    Settings,
    size,
)
from regard.families.speech.wav2vec2 import (
    PRESET_DEFAULTS,
    PRESET_KEYS,
    SCHEMA,
    SpeechEncoderFamily,
    conv_dim,
)

HUBERT = SpeechEncoderFamily(
    "hubert",
    "Hubert",
    dataclasses.replace(
        SCHEMA,
        # A norm on the output of the convolutions.
        defaults={**SCHEMA.defaults, "feat_proj_layer_norm": True},
        # BatchNorm before the positions, in place of weight normalization.
        fixed={**SCHEMA.fixed, "conv_pos_batch_norm": False},
    ),
)

# Table 1 of the paper. `pre_norm`: the larger two have their norms before the sublayers.
SIZES = {
    "tiny": size(*TINY_LAYERS, channels=64, kernel=16),
    "base": size(*BASE_LAYERS, 95, "with the norms and the letters of CTC"),
    "large": size(*LARGE_LAYERS, 317, pre_norm=True),
    "xlarge": size(48, 1280, 16, 964, pre_norm=True),
}


def _computed(settings: Settings) -> Config:
    config = conv_dim(settings)
    if settings["pre_norm"]:
        # Then the convolutions have norms of their channels, too.
        config |= {"do_stable_layer_norm": True, "feat_extract_norm": "layer", "conv_bias": True}
    return config


_make = FromConfig(HUBERT.to_spec, PRESET_KEYS, {"architectures": ["HubertForCTC"]}, _computed)
_DEFAULTS = {**PRESET_DEFAULTS, "pre_norm": False}
PRESETS = {"hubert": PresetFamily("ctc", _make, SIZES, _DEFAULTS, 32, 480_000, "base")}
