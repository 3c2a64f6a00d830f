"""Qwen2 and 2.5, as transformers has them: LLaMA with a bias for queries, keys and values."""

from __future__ import annotations

from regard.families.llama import Kin
from regard.families.tensor_table import OrNone

QWEN2 = Kin(
    "qwen2",
    "Qwen2ForCausalLM",
    {"vocab_size": 151936, "intermediate_size": 22016, "num_key_value_heads": OrNone(32)},
    # The window, and the layers that would have one, are said of models that have none.
    fixed={"use_sliding_window": False, "use_mrope": False},
    ignored=frozenset({"max_window_layers", "sliding_window"}),
    bias="qkv",
)
