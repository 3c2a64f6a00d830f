"""PEGASUS, as transformers has it (PegasusForConditionalGeneration): Marian with pre-norm, and a norm after each stack.

One matrix serves both embeddings and the output: untied, transformers 4 and 5 disagree on which stored copy acts where.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from regard import spec as kinds
from regard.families.fairseq_layout import (
    EQUAL,
    FIXED,
    SINES,
    SIZES,
    TIED,
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
    read={**SIZES, "vocab_size": 50265},
    fixed={
        **FIXED,
        "normalize_before": True,
        "add_final_layer_norm": True,
        "tie_word_embeddings": True,
    },
    equal=EQUAL,
)


def config(model: kinds.EncoderDecoder, positions: int) -> dict[str, Any]:
    return {
        "model_type": "pegasus",
        "architectures": ["PegasusForConditionalGeneration"],
        **sizes(model),
        "max_position_embeddings": positions,
        "vocab_size": model.target.vocabulary,
        "tie_word_embeddings": True,
    }


def spec(config: Mapping[str, Any], stored: Collection[str] = ()) -> kinds.EncoderDecoder:
    values = _KEYS(config)
    tokens = kinds.Tokens(values["vocab_size"], SINES, values["scale_embedding"], values["dropout"])
    return assemble(values, tokens, tokens, kinds.PreNorm(), bias=values["regard_head_bias"])


def table(model: kinds.EncoderDecoder, positions: int) -> list[Rule]:
    return [
        Same("source.table.weight", "model.shared.weight", aliases=TIED),
        *stacks(model),
        logits_bias(model),
        *sines(model, positions, written=True),
    ]
