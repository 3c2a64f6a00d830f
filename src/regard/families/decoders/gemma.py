"""Gemma in transformers: LLaMA with scaled embeddings, norm weights around 0, and GeGLU."""

from __future__ import annotations

from regard.families.block_config import ACTIVATIONS
from regard.families.decoders import llama
from regard.families.decoders.llama import LlamaFamily
from regard.families.heads import DECODER_HEADS, HeadTable
from regard.families.preset_settings import size

GEMMA = LlamaFamily(
    model_type="gemma",
    HEAD_TABLE=HeadTable("Gemma", DECODER_HEADS),
    defaults={
        "vocab_size": 256000,
        "hidden_size": 3072,
        "intermediate_size": 24576,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "head_dim": 256,
        "hidden_act": "gelu_pytorch_tanh",
        "tie_word_embeddings": True,
    },
    fixed={
        "attention_bias": False,
        "use_bidirectional_attention": False,
        # For a while this key, not `hidden_act`, named the activation.
        "hidden_activation": "gelu_pytorch_tanh",
    },
    # The first files say `gelu` and mean its approximation by tanh.
    activations={"gelu_pytorch_tanh": "gelu_tanh", **ACTIVATIONS, "gelu": "gelu_tanh"},
    norm_offset=1.0,  # weights are stored minus 1
    scale_embedding=True,  # by √hidden_size
)

# ------------------------------------------------------------------ presets

# Gemma Team 2024, Table 1; the small one has a single key head.
SIZES = {
    "tiny": size(2, 128, 4, groups=1, d_ff=512, d_k=32),
    "2b": size(18, 2048, 8, 2506, groups=1, d_ff=16384, d_k=256),
    "7b": size(28, 3072, 16, 8538, d_ff=24576, d_k=256),
}


DEFAULTS = {**llama.PRESET_DEFAULTS, "activation": "gelu_tanh", "tied": True}
PRESETS = {"gemma": GEMMA.presets(SIZES, DEFAULTS, 256_000, 8192, "2b")}
