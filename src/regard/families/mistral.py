"""Mistral in transformers: LLaMA with sliding-window attention."""

from __future__ import annotations

from regard.families.config_schema import SizeOrNull
from regard.families.llama import LlamaFamily

MISTRAL = LlamaFamily(
    model_type="mistral",
    architecture="MistralForCausalLM",
    defaults={
        "intermediate_size": 14336,
        "num_key_value_heads": SizeOrNull(8),
        # Absent means 4096; null, no window.
        "sliding_window": SizeOrNull(4096),
    },
)
