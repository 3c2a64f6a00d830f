"""Qwen2 and Qwen2.5 in transformers: LLaMA with a bias of queries, keys and values."""

from __future__ import annotations

from regard.families.config_schema import SizeOrNull
from regard.families.llama import LlamaFamily

QWEN2 = LlamaFamily(
    model_type="qwen2",
    architecture="Qwen2ForCausalLM",
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
