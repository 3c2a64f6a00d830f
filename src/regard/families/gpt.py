"""GPT (Radford et al. 2018) in transformers (OpenAIGPTLMHeadModel): a post-norm GPT-2."""

from __future__ import annotations

from regard import spec
from regard.families.config_schema import NOT_ENCODER_DECODER, ConfigSchema
from regard.families.gpt2 import DEFAULTS, IGNORED, SYNONYMS, GptFamily

GPT = GptFamily(
    model_type="openai-gpt",
    architecture="OpenAIGPTLMHeadModel",
    schema=ConfigSchema(
        {**DEFAULTS, "vocab_size": 40478, "n_positions": 512, "afn": "gelu"},
        NOT_ENCODER_DECODER,
        SYNONYMS,
        IGNORED | {"n_special", "predict_special_tokens"},  # of its tokenizer
    ),
    activation_key="afn",
    embeddings=("tokens_embed", "positions_embed"),
    residual=spec.PostNorm(),
    # What GPT calls gelu is the approximation by tanh.
    activations={"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"},
)
