"""GPT (Radford et al. 2018) in transformers (OpenAIGPTLMHeadModel): a post-norm GPT-2."""

from __future__ import annotations

from dataclasses import replace

from regard import spec
from regard.families.config_schema import NOT_ENCODER_DECODER, ConfigSchema
from regard.families.decoders.gpt2 import DEFAULTS, IGNORED, KEYS, SYNONYMS, GptFamily
from regard.families.heads import DECODER_HEADS, DOUBLE_HEADS, HeadTable
from regard.families.preset_settings import BASE_LAYERS, PresetFamily, size

# The tied matrix is stored under its other name.
_DOUBLE_HEADS = replace(DOUBLE_HEADS, prefix="lm_head.", strips="tokens_embed.")
GPT = GptFamily(
    model_type="openai-gpt",
    HEAD_TABLE=HeadTable("OpenAIGPT", {**DECODER_HEADS, "DoubleHeadsModel": _DOUBLE_HEADS}),
    schema=ConfigSchema(
        {**DEFAULTS, "vocab_size": 40478, "n_positions": 512, "afn": "gelu"},
        NOT_ENCODER_DECODER,
        IGNORED | {"n_special", "predict_special_tokens"},  # of its tokenizer
        SYNONYMS,
        frozenset({"summary_last_dropout"}),
    ),
    keys={**KEYS, "afn": "activation"},
    embeddings=("tokens_embed", "positions_embed"),
    residual=spec.PostNorm(),
    # What GPT calls gelu is the approximation by tanh.
    activations={"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"},
)

# ------------------------------------------------------------------ presets

SIZES = {
    "tiny": size(2, 128, 4),
    "base": size(*BASE_LAYERS, 117),
}


_DEFAULTS = {"dropout": 0.1, "attention_dropout": 0.1, "activation": "gelu_tanh"}
PRESETS = {
    "gpt1": PresetFamily("decoder", GPT.from_settings, SIZES, _DEFAULTS, 40_478, 512, "base")
}
