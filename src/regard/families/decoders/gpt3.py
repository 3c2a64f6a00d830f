"""GPT-3 (Brown et al. 2020): presets, the eight sizes of Table 2.1.

GPT-2 with more positions. Every second layer of the paper's attends to a band only, whose width it
does not print; here all layers attend to everything, which changes no parameter.
"""

from __future__ import annotations

from regard.families.decoders.gpt2 import PRESET_DEFAULTS, decoder
from regard.families.preset_settings import (
    BASE_LAYERS,
    LARGE_LAYERS,
    PresetFamily,
    Size,
)


def _rounded(millions: int) -> str:
    return f"Table 2.1 rounds; Table D.1 of the paper prints {millions:,} M"


# The paper prints 24 heads for the fourth and a width of 5140 for the seventh; its own parameter
# counts are those of the numbers here.
SIZES = {
    "tiny": Size({"layers": 4, "d_model": 128, "heads": 4}),
    "small": Size(BASE_LAYERS, 125),
    "medium": Size(LARGE_LAYERS, 350, _rounded(356)),
    "large": Size({"layers": 24, "d_model": 1536, "heads": 16}, 760),
    "xl": Size({"layers": 24, "d_model": 2048, "heads": 16}, 1300, _rounded(1320)),
    "2.7b": Size({"layers": 32, "d_model": 2560, "heads": 32}, 2700, _rounded(2650)),
    "6.7b": Size({"layers": 32, "d_model": 4096, "heads": 32}, 6700, _rounded(6660)),
    "13b": Size({"layers": 40, "d_model": 5120, "heads": 40}, 13_000, _rounded(12_850)),
    "175b": Size({"layers": 96, "d_model": 12288, "heads": 96}, 175_000),
}


PRESETS = {"gpt3": PresetFamily("decoder", decoder, SIZES, PRESET_DEFAULTS, 50_257, 2048, "small")}
