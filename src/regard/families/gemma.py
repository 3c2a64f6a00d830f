"""Gemma, as transformers has it: LLaMA with scaled embeddings, norms whose weights count from 1, and a gate of GELU. The first
files say `gelu` and mean its approximation; `hidden_activation` was for a while the word that counted."""

from __future__ import annotations

from regard.families.common import ACTIVATIONS
from regard.families.llama import Kin

GEMMA = Kin(
    "gemma", "GemmaForCausalLM",
    {
        "vocab_size": 256000, "hidden_size": 3072, "intermediate_size": 24576, "num_hidden_layers": 28,
        "num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 256, "hidden_act": "gelu_pytorch_tanh",
        "tie_word_embeddings": True,
    },
    fixed={"attention_bias": False, "use_bidirectional_attention": False, "hidden_activation": "gelu_pytorch_tanh"},
    activations={"gelu_pytorch_tanh": "gelu_tanh", **ACTIVATIONS, "gelu": "gelu_tanh"},
    offset=1.0, scale=True,
)  # fmt: skip
