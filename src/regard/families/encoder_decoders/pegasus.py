"""PEGASUS in transformers (PegasusForConditionalGeneration): a pre-norm Marian.

One matrix serves both embeddings and the output: untied, transformers 4 and 5 disagree on which
stored copy acts where.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from regard import spec
from regard.families.config_schema import ConfigSchema
from regard.families.encoder_decoders.fairseq_layout import (
    DEFAULTS,
    FIXED,
    PRESET_DEFAULTS,
    SINUSOIDS,
    SYNONYMS,
    TIED_NAMES,
    encoder_decoder,
    logits_bias_rule,
    preset_config,
    sinusoid_rules,
    stack_keys,
    stack_rules,
)
from regard.families.preset_settings import BASE_LAYERS, ConfigPresets, Size
from regard.families.tensor_table import Rename, Rule

SPEC_TYPES = (spec.EncoderDecoder, spec.Tokens)
PREFIX = "model."
_SCHEMA = ConfigSchema(
    defaults={**DEFAULTS, "vocab_size": 50265},
    fixed={
        **FIXED,
        "normalize_before": True,
        "add_final_layer_norm": True,
        "tie_word_embeddings": True,
    },
    synonyms=SYNONYMS,
)


# ------------------------------------------------------------------ spec → config.json


def to_config(model: spec.EncoderDecoder, positions: int) -> dict[str, Any]:
    return {
        "model_type": "pegasus",
        "architectures": ["PegasusForConditionalGeneration"],
        **stack_keys(model),
        "max_position_embeddings": positions,
        "vocab_size": model.target.vocabulary,
        "tie_word_embeddings": True,
    }


# ------------------------------------------------------------------ config.json → spec


def to_spec(config: Mapping[str, Any], stored: Collection[str] = ()) -> spec.EncoderDecoder:
    values = _SCHEMA.parse(config)
    tokens = spec.Tokens(
        values["vocab_size"], SINUSOIDS, values["scale_embedding"], values["dropout"]
    )
    bias = values["regard_head_bias"]
    return encoder_decoder(values, tokens, tokens, spec.PreNorm(), bias=bias)


# ------------------------------------------------------------------ tensors


def tensor_table(model: spec.EncoderDecoder, positions: int) -> list[Rule]:
    return [
        Rename("source.table.weight", "model.shared.weight", aliases=TIED_NAMES),
        *stack_rules(model),
        logits_bias_rule(model),
        *sinusoid_rules(model, positions, written=True),
    ]


# ------------------------------------------------------------------ presets

# Zhang et al. 2020, Section 6.
SIZES = {
    "tiny": Size({"layers": 2, "d_model": 128, "heads": 4}),
    "base": Size(BASE_LAYERS, 223, vocabulary=32_000),
    "large": Size({"layers": 16, "d_model": 1024, "heads": 16}, 568),
}


def _preset_config(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {**preset_config(settings), "scale_embedding": True, "regard_head_bias": False}


preset = ConfigPresets(
    "pegasus", SIZES, {**PRESET_DEFAULTS, "activation": "relu"}, _preset_config, to_spec
)
PRESETS = {"pegasus": preset.family("encoder-decoder", 96_103, 512, "base")}
