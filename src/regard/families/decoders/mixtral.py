"""Mixtral (Jiang et al. 2024) in transformers: Mistral with a sparse mixture of experts in each
layer, of which a token asks two."""

from __future__ import annotations

from regard.families.config_schema import SizeOrNull
from regard.families.decoders import llama
from regard.families.decoders.llama import LlamaFamily
from regard.families.heads import DECODER_HEADS, HeadTable
from regard.families.preset_settings import Settings, size

MIXTRAL = LlamaFamily(
    model_type="mixtral",
    HEAD_TABLE=HeadTable("Mixtral", DECODER_HEADS),
    defaults={
        "intermediate_size": 14336,
        "num_key_value_heads": SizeOrNull(8),
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 131_072,
        "rope_theta": 1e6,
        "sliding_window": None,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "router_aux_loss_coef": 0.001,
    },
    fixed={"router_jitter_noise": 0.0},
    synonyms={"num_experts": "num_local_experts"},
    ignored=frozenset({"output_router_logits"}),
)

# ------------------------------------------------------------------ presets

SIZES = {
    "tiny": size(2, 128, 4, groups=2, d_ff=256, experts=4),
    "8x7b": size(32, 4096, 32, 46_700, groups=8, d_ff=14336),
    "8x22b": size(56, 6144, 48, 141_000, vocabulary=32_768, context=65_536, groups=8, d_ff=16384),
}
DEFAULTS: Settings = {**llama.PRESET_DEFAULTS, "experts": 8, "top": 2, "base": 1e6}


_BALANCE = {"router_aux_loss_coef": 0.01}  # of Switch Transformer (Fedus et al. 2022)
PRESETS = {"mixtral": MIXTRAL.presets(SIZES, DEFAULTS, 32_000, 32_768, "8x7b", _BALANCE)}
