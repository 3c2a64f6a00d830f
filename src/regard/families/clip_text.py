"""CLIP's tower of texts, as transformers has it (CLIPTextModel): causal, its vector that of the token which ends a text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regard import spec as kinds
from regard.families.clip_tower import Tower
from regard.families.tensor_table import Rule, Same, module

_LEGACY = 2  # an end id that was never right; files that have it mean the highest id of the row


def _assemble(values: Mapping[str, Any], block: kinds.Block, width: int | None) -> kinds.Encoder:
    position, end = kinds.LearnedPosition(values["max_position_embeddings"]), values["eos_token_id"]
    return kinds.Encoder(
        values["hidden_size"],
        kinds.Tokens(values["vocab_size"], position, scale=False, dropout=0.0),
        kinds.Stack(values["num_hidden_layers"], block, kinds.CausalMask(), final=block.norm),
        kinds.Pool(kinds.EndToken(None if end == _LEGACY else end), None, width=width),
    )


def _length(model: kinds.Encoder) -> int:
    return (
        model.tokens.position.length
        if isinstance(model.tokens.position, kinds.LearnedPosition)
        else 1
    )


def _sizes(model: kinds.Encoder) -> dict[str, Any]:
    end = model.pool.which if model.pool else None
    return {
        "vocab_size": model.tokens.vocabulary,
        "max_position_embeddings": _length(model),
        "eos_token_id": (end.token or _LEGACY) if isinstance(end, kinds.EndToken) else None,
    }


def _ends(model: kinds.Encoder, ours: str, theirs: str) -> list[Rule]:
    return [
        Same(f"{ours}input.table.weight", f"{theirs}embeddings.token_embedding.weight"),
        *module(f"{ours}stack.final_norm", f"{theirs}final_layer_norm"),
    ]


TEXT = Tower(
    "clip_text_model", "CLIPTextModel", "text_projection", "text_model.",
    {
        "vocab_size": 49408, "hidden_size": 512, "intermediate_size": 2048, "num_attention_heads": 8,
        "max_position_embeddings": 77, "eos_token_id": 49407,
    },
    kinds.Tokens, _assemble, _sizes, _length, _ends,
)  # fmt: skip
