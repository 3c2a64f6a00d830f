"""Mistral, as transformers has it: LLaMA whose tokens see a window. Configs that do not say how wide mean 4096; null, none."""

from __future__ import annotations

from regard.families.llama import Kin
from regard.families.tensor_table import OrNone

MISTRAL = Kin(
    "mistral",
    "MistralForCausalLM",
    {"intermediate_size": 14336, "num_key_value_heads": OrNone(8), "sliding_window": OrNone(4096)},
)
