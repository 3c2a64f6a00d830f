"""GPT-3 (Brown et al. 2020): presets, the eight sizes of Table 2.1.

GPT-2 with more positions. Every second layer of the paper's attends to a band only, whose width it
does not print; here all layers attend to everything, which changes no parameter.
"""

from __future__ import annotations

from typing import Any

from regard import spec
from regard.families.decoders import gpt2
from regard.families.decoders.gpt_decoder import PRESET_DEFAULTS, decoder
from regard.families.preset_settings import transformer_settings

# The paper prints 24 heads for the fourth and a width of 5140 for the seventh; its own parameter
# counts are those of the numbers here.
PRESETS: dict[str, dict[str, Any]] = {
    **gpt2.PRESETS,
    "large": {"layers": 24, "d_model": 1536, "heads": 16},
    "xl": {"layers": 24, "d_model": 2048, "heads": 16},
}


def preset(name: str, vocabulary: int = 50257, context: int = 2048, **changes: Any) -> spec.Decoder:
    """A named size, whose settings are those of GPT-2."""
    s = transformer_settings("gpt3", PRESETS, name, PRESET_DEFAULTS, changes)
    return decoder(s, vocabulary, context)
