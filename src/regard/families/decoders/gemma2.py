"""Gemma 2 in transformers: Gemma with norms on both sides of each sublayer, soft-capped scores and
logits, and a sliding window in every other layer."""

from __future__ import annotations

from regard import spec
from regard.families.config_schema import Config, NumberOrNull, SizeOrNull
from regard.families.decoders import gemma
from regard.families.decoders.llama import LlamaFamily
from regard.families.heads import DECODER_HEADS, HeadTable
from regard.families.preset_settings import size

# Of Gemma 2 and Gemma 3.
DEFAULTS: Config = {
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
    "attention_bias": False,
    "query_pre_attn_scalar": 256,  # scores are divided by its root
    "sliding_window": SizeOrNull(4096),
}
# `hidden_act` is read by no version; the others say how `generate` keeps keys and values.
IGNORED = frozenset({"hidden_act", "cache_implementation", "sliding_window_size"})
GEMMA2 = LlamaFamily(
    model_type="gemma2",
    HEAD_TABLE=HeadTable("Gemma2", DECODER_HEADS),
    defaults={
        **DEFAULTS,
        "vocab_size": 256_000,
        "max_position_embeddings": 8192,
        "attn_logit_softcapping": NumberOrNull(50.0),
        "final_logit_softcapping": NumberOrNull(30.0),
    },
    fixed={"use_bidirectional_attention": False},
    ignored=IGNORED,
    activations=gemma.GEMMA.activations,
    norm_offset=1.0,
    scale_embedding=True,
    activation_key="hidden_activation",
    residual=spec.SandwichNorm(),
    full_every=2,
)

# ------------------------------------------------------------------ presets

# Gemma Team 2024b, Tables 1 and 2.
SIZES = {
    "tiny": size(2, 128, 4, groups=2, d_ff=352, d_k=32, window=32),
    "2b": size(26, 2304, 8, 2614.6, groups=4, d_ff=9216, d_k=256),
    "9b": size(42, 3584, 16, 9242.2, groups=8, d_ff=14336, d_k=256),
    "27b": size(46, 4608, 32, 27_227.7, groups=16, d_ff=36864, d_k=128, query_width=144),
}
PRESET_DEFAULTS = {
    **gemma.DEFAULTS,
    "window": 4096,
    "query_width": None,  # scores are divided by its root; None: that of a head
}
PRESETS = {"gemma2": GEMMA2.presets(SIZES, PRESET_DEFAULTS, 256_000, 8192, "2b")}
