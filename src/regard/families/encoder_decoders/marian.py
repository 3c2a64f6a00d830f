"""Marian in transformers (MarianMTModel): the post-norm Transformer of 2017."""

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
    Share,
    encoder_decoder,
    logits_bias_rule,
    preset_config,
    sinusoid_rules,
    stack_keys,
    stack_rules,
)
from regard.families.preset_settings import ConfigPresets, Size
from regard.families.tensor_table import Rename, Rule
from regard.system.errors import ModelError

SPEC_TYPES = (spec.EncoderDecoder, spec.Tokens)
PREFIX = "model."
_SCHEMA = ConfigSchema(
    defaults={
        **DEFAULTS,
        "vocab_size": 58101,
        "decoder_vocab_size": 58101,  # vocab_size, unless the vocabularies are separate
        "share_encoder_decoder_embeddings": True,  # one embedding for both sides
        "tie_word_embeddings": True,  # the output matrix is the target's embedding
    },
    fixed={**FIXED, "normalize_before": False, "add_final_layer_norm": False},
    synonyms=SYNONYMS,
)


# ------------------------------------------------------------------ spec → config.json


def to_config(model: spec.EncoderDecoder, positions: int) -> dict[str, Any]:
    return {
        "model_type": "marian",
        "architectures": ["MarianMTModel"],
        **stack_keys(model),
        "max_position_embeddings": positions,
        "vocab_size": model.source.vocabulary if isinstance(model.source, spec.Tokens) else 0,
        "decoder_vocab_size": model.target.vocabulary,
        "share_encoder_decoder_embeddings": model.share == "all",
        "tie_word_embeddings": model.share != "none",
    }


# ------------------------------------------------------------------ config.json → spec


def to_spec(config: Mapping[str, Any], stored: Collection[str] = ()) -> spec.EncoderDecoder:
    # Joint vocabularies are configured once.
    target_vocabulary = config.get("decoder_vocab_size") or config.get("vocab_size")
    values = _SCHEMA.parse({**config, "decoder_vocab_size": target_vocabulary})
    scale = values["scale_embedding"]
    dropout = values["dropout"]
    return encoder_decoder(
        values,
        spec.Tokens(values["vocab_size"], SINUSOIDS, scale, dropout),
        spec.Tokens(values["decoder_vocab_size"], SINUSOIDS, scale, dropout),
        spec.PostNorm(),
        _share(values["share_encoder_decoder_embeddings"], values["tie_word_embeddings"]),
        bias=values["regard_head_bias"],
    )


def _share(joint: bool, tied: bool) -> Share:
    if joint and not tied:
        raise ModelError(
            "config.json shares the embeddings but not the output matrix, "
            "which transformers 4 and 5 read differently",
            "set share_encoder_decoder_embeddings to false if all three matrices are stored",
        )
    if joint:
        return "all"
    return "target" if tied else "none"


# ------------------------------------------------------------------ tensors


def tensor_table(model: spec.EncoderDecoder, positions: int) -> list[Rule]:
    return [
        *_embedding_rules(model.share),
        *stack_rules(model),
        logits_bias_rule(model),
        *sinusoid_rules(model, positions, written=False),
    ]


def _embedding_rules(share: str) -> list[Rule]:
    if share == "all":
        return [Rename("source.table.weight", "model.shared.weight", aliases=TIED_NAMES)]
    source, target, output = TIED_NAMES
    if share == "target":
        return [
            Rename("source.table.weight", source),
            Rename("target.table.weight", target, aliases=(output,)),
        ]
    return [
        Rename("source.table.weight", source),
        Rename("target.table.weight", target),
        Rename("head.table.weight", output),
    ]


# ------------------------------------------------------------------ presets

# The size of OPUS-MT's models (Tiedemann and Thottingal 2020).
SIZES = {
    "tiny": Size({"layers": 2, "d_model": 128, "heads": 4}),
    "base": Size({"layers": 6, "d_model": 512, "heads": 8}),
}


def _preset_config(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {**preset_config(settings), "scale_embedding": True, "regard_head_bias": False}


preset = ConfigPresets(
    "marian", SIZES, {**PRESET_DEFAULTS, "activation": "silu"}, _preset_config, to_spec
)
PRESETS = {"marian": preset.family("encoder-decoder", 58_101, 512, "base")}
