"""GPT (2018), as transformers has it (OpenAIGPTLMHeadModel): GPT-2 with the norms after the sublayers."""

from __future__ import annotations

from regard import spec as kinds
from regard.families.gpt2 import EQUAL, IGNORED, READ, Kin
from regard.families.tensor_table import ALONE, ConfigSchema

GPT = Kin(
    "openai-gpt", "OpenAIGPTLMHeadModel",
    ConfigSchema(
        {**READ, "vocab_size": 40478, "n_positions": 512, "afn": "gelu"}, ALONE, EQUAL,
        IGNORED | {"n_special", "predict_special_tokens"},  # of a tokenizer
    ),
    "afn", ("tokens_embed", "positions_embed"), kinds.PostNorm(),
    {"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"},
)  # fmt: skip
