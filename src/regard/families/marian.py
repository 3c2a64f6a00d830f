"""Marian, as transformers has it (MarianMTModel): the Transformer of 2017, post-norm, all sines before all cosines."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from regard import spec as kinds
from regard.errors import ModelError
from regard.families.fairseq_layout import (
    EQUAL,
    FIXED,
    SINES,
    SIZES,
    TIED,
    Share,
    assemble,
    logits_bias,
    sines,
    sizes,
    stacks,
)
from regard.families.tensor_table import ConfigSchema, Rule, Same

FORM = (kinds.EncoderDecoder, kinds.Tokens)
PREFIX = "model."
_KEYS = ConfigSchema(
    read={
        **SIZES, "vocab_size": 58101, "decoder_vocab_size": 58101,
        "share_encoder_decoder_embeddings": True, "tie_word_embeddings": True,
    },
    fixed={**FIXED, "normalize_before": False, "add_final_layer_norm": False},
    equal=EQUAL,
)  # fmt: skip


def config(model: kinds.EncoderDecoder, positions: int) -> dict[str, Any]:
    return {
        "model_type": "marian",
        "architectures": ["MarianMTModel"],
        **sizes(model),
        "max_position_embeddings": positions,
        "vocab_size": model.source.vocabulary if isinstance(model.source, kinds.Tokens) else 0,
        "decoder_vocab_size": model.target.vocabulary,
        "share_encoder_decoder_embeddings": model.share == "all",
        "tie_word_embeddings": model.share != "none",
    }


def spec(config: Mapping[str, Any], stored: Collection[str] = ()) -> kinds.EncoderDecoder:
    target = config.get("decoder_vocab_size") or config.get("vocab_size")
    values = _KEYS({**config, "decoder_vocab_size": target})
    joint, tied = values["share_encoder_decoder_embeddings"], values["tie_word_embeddings"]
    if joint and not tied:
        raise ModelError(
            "config.json shares the embeddings but not the output matrix, which transformers 4 and 5 read differently",
            "set share_encoder_decoder_embeddings to false if all three matrices are stored",
        )
    share: Share = "all" if joint else "target" if tied else "none"
    scale, dropout = values["scale_embedding"], values["dropout"]
    source, target = (
        kinds.Tokens(values[key], SINES, scale, dropout)
        for key in ("vocab_size", "decoder_vocab_size")
    )
    return assemble(
        values, source, target, kinds.PostNorm(), share, bias=values["regard_head_bias"]
    )


def table(model: kinds.EncoderDecoder, positions: int) -> list[Rule]:
    return [
        *_embeddings(model.share),
        *stacks(model),
        logits_bias(model),
        *sines(model, positions, written=False),
    ]


def _embeddings(share: str) -> list[Rule]:
    if share == "all":
        return [Same("source.table.weight", "model.shared.weight", aliases=TIED)]
    source, target, output = TIED
    tied = share == "target"
    rules: list[Rule] = [
        Same("source.table.weight", source),
        Same("target.table.weight", target, aliases=(output,) if tied else ()),
    ]
    return rules if tied else [*rules, Same("head.table.weight", output)]
