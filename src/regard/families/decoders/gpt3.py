"""GPT-3 (Brown et al. 2020): presets, the eight sizes of Table 2.1.

GPT-2 with more positions. Every second layer of the paper's attends to a band only, whose width it
does not print; here all layers attend to everything, which changes no parameter.
"""

from __future__ import annotations

from regard.families.decoders.gpt2 import GPT2, PRESET_DEFAULTS
from regard.families.preset_settings import BASE_LAYERS, LARGE_LAYERS, PresetFamily, size


def _rounded(millions: int) -> str:
    return f"Table 2.1 rounds; Table D.1 of the paper prints {millions:,} M"


# The paper prints 24 heads for the fourth and a width of 5140 for the seventh; its own parameter
# counts are those of the numbers here.
SIZES = {
    "tiny": size(4, 128, 4),
    "small": size(*BASE_LAYERS, 125),
    "medium": size(*LARGE_LAYERS, 350, _rounded(356)),
    "large": size(24, 1536, 16, 760),
    "xl": size(24, 2048, 16, 1300, _rounded(1320)),
    "2.7b": size(32, 2560, 32, 2700, _rounded(2650)),
    "6.7b": size(32, 4096, 32, 6700, _rounded(6660)),
    "13b": size(40, 5120, 40, 13_000, _rounded(12_850)),
    "175b": size(96, 12288, 96, 175_000),
}
PRESETS = {
    "gpt3": PresetFamily(
        "decoder", GPT2.from_settings, SIZES, PRESET_DEFAULTS, 50_257, 2048, "small"
    )
}
