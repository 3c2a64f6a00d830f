"""GPT (Radford et al. 2018) in transformers (OpenAIGPTLMHeadModel): a post-norm GPT-2."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from regard import spec
from regard.families.config_schema import NOT_ENCODER_DECODER, ConfigSchema
from regard.families.decoders.gpt2 import DEFAULTS, IGNORED, SYNONYMS, GptFamily
from regard.families.heads import DECODER_HEADS, DOUBLE_HEADS, HeadTable
from regard.families.preset_settings import BASE_LAYERS, ConfigPresets, Size

# The tied matrix is stored under its other name.
_DOUBLE_HEADS = replace(DOUBLE_HEADS, prefix="lm_head.", strips="tokens_embed.")
GPT = GptFamily(
    model_type="openai-gpt",
    HEAD_TABLE=HeadTable("OpenAIGPT", {**DECODER_HEADS, "DoubleHeadsModel": _DOUBLE_HEADS}),
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

# ------------------------------------------------------------------ presets

SIZES = {
    "tiny": Size({"layers": 2, "d_model": 128, "heads": 4}),
    "base": Size(BASE_LAYERS, 117),
}


def _config(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "vocab_size": settings["vocabulary"],
        "n_positions": settings["context"],
        "n_embd": settings["d_model"],
        "n_layer": settings["layers"],
        "n_head": settings["heads"],
        "afn": {"gelu_tanh": "gelu"}.get(settings["activation"], settings["activation"]),
        "resid_pdrop": settings["dropout"],
        "embd_pdrop": settings["dropout"],
        "attn_pdrop": settings["attention_dropout"],
    }


_PRESET_DEFAULTS = {"dropout": 0.1, "attention_dropout": 0.1, "activation": "gelu_tanh"}
preset = ConfigPresets("gpt1", SIZES, _PRESET_DEFAULTS, _config, GPT.to_spec)
PRESETS = {"gpt1": preset.family("decoder", 40_478, 512, "base")}
