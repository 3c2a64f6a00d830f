"""Mistral in transformers: LLaMA with sliding-window attention."""

from __future__ import annotations

from regard.families.config_schema import SizeOrNull
from regard.families.decoders import llama
from regard.families.decoders.llama import LlamaFamily
from regard.families.heads import DECODER_HEADS, HeadTable
from regard.families.preset_settings import size

MISTRAL = LlamaFamily(
    model_type="mistral",
    HEAD_TABLE=HeadTable("Mistral", DECODER_HEADS),
    defaults={
        "intermediate_size": 14336,
        "num_key_value_heads": SizeOrNull(8),
        # Absent means 4096; null, no window.
        "sliding_window": SizeOrNull(4096),
    },
)

# ------------------------------------------------------------------ presets

# Jiang et al. 2023, Table 1; a window of 4,096.
SIZES = {
    "tiny": size(2, 128, 4, groups=2, d_ff=352, window=32),
    "7b": size(32, 4096, 32, 7242, groups=8, d_ff=14336),
}


DEFAULTS = {**llama.PRESET_DEFAULTS, "eps": 1e-5, "window": 4096}
PRESETS = {"mistral": MISTRAL.presets(SIZES, DEFAULTS, 32_000, 8192, "7b")}
