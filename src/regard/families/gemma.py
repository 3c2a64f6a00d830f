"""Gemma in transformers: LLaMA with scaled embeddings, norm weights around 0, and GeGLU."""

from __future__ import annotations

from regard.families.block_config import ACTIVATIONS
from regard.families.llama import LlamaFamily

GEMMA = LlamaFamily(
    model_type="gemma",
    architecture="GemmaForCausalLM",
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
