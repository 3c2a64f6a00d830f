"""Qwen2 and Qwen2.5 in transformers: LLaMA with a bias of queries, keys and values."""

from __future__ import annotations

from regard.families.config_schema import SizeOrNull
from regard.families.decoders import llama
from regard.families.decoders.llama import LlamaFamily
from regard.families.heads import DECODER_HEADS, HeadTable
from regard.families.preset_settings import size

QWEN2 = LlamaFamily(
    model_type="qwen2",
    HEAD_TABLE=HeadTable("Qwen2", {**DECODER_HEADS, "ForQuestionAnswering": llama.OLD_SPANS}),
    defaults={
        "vocab_size": 151936,
        "intermediate_size": 22016,
        "num_key_value_heads": SizeOrNull(32),
    },
    fixed={"use_sliding_window": False, "use_mrope": False},
    # Released configs give a window, and the layers it would apply to, without using it.
    ignored=frozenset({"max_window_layers", "sliding_window"}),
    attention_bias="qkv",  # none for the output
)

# ------------------------------------------------------------------ presets

# Yang et al. 2024, Table 1. The small ones are tied.
SIZES = {
    "tiny": size(2, 128, 4, groups=2, d_ff=352, tied=True),
    "0.5b": size(24, 896, 14, 494, groups=2, d_ff=4864, tied=True),
    "1.5b": size(28, 1536, 12, 1544, groups=2, d_ff=8960, tied=True),
    "7b": size(28, 3584, 28, 7616, vocabulary=152_064, groups=4, d_ff=18944),
    "72b": size(80, 8192, 64, 72_706, vocabulary=152_064, groups=8, d_ff=29568),
}
DEFAULTS = {**llama.PRESET_DEFAULTS, "base": 1e6}
PRESETS = {"qwen2": QWEN2.presets(SIZES, DEFAULTS, 151_936, 32_768, "0.5b")}
