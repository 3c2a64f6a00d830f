"""CLIP's text tower in transformers (CLIPTextModel): causal, pooled at the end-of-text token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regard import spec
from regard.families.tensor_table import Rename, Rule, module_rules
from regard.families.vision.clip_tower import ClipTower

# An end-of-text id that was never right; files that have it mean the highest id of each row.
_LEGACY_END = 2


def _encoder(
    values: Mapping[str, Any], block: spec.Block, projection_dim: int | None
) -> spec.Encoder:
    end = values["eos_token_id"]
    end_token = spec.EndToken(None if end == _LEGACY_END else end)
    position = spec.LearnedPosition(values["max_position_embeddings"])
    return spec.Encoder(
        values["hidden_size"],
        spec.Tokens(values["vocab_size"], position, scale=False, dropout=0.0),
        # Causal: the end-of-text token, which is pooled, sees the whole text all the same.
        spec.Stack.of(values["num_hidden_layers"], block, spec.CausalMask(), final=block.norm),
        (spec.Pool(end_token, None, width=projection_dim),),
    )


def position_count(model: spec.Encoder) -> int:
    position = model.tokens.position
    return position.length if isinstance(position, spec.LearnedPosition) else 1


def _input_config(model: spec.Encoder) -> dict[str, Any]:
    pooled = model.pool.which if model.pool else None
    return {
        "vocab_size": model.tokens.vocabulary,
        "max_position_embeddings": position_count(model),
        "eos_token_id": (pooled.token or _LEGACY_END)
        if isinstance(pooled, spec.EndToken)
        else None,
    }


def _input_rules(model: spec.Encoder, prefix: str, hf_prefix: str) -> list[Rule]:
    return [
        Rename(f"{prefix}input.table.weight", f"{hf_prefix}embeddings.token_embedding.weight"),
        *module_rules(f"{prefix}stack.final_norm", f"{hf_prefix}final_layer_norm"),
    ]


TEXT = ClipTower(
    model_type="clip_text_model",
    architecture="CLIPTextModel",
    projection="text_projection",
    PREFIX="text_model.",
    defaults={
        "vocab_size": 49408,
        "hidden_size": 512,
        "intermediate_size": 2048,
        "num_attention_heads": 8,
        "max_position_embeddings": 77,
        "eos_token_id": 49407,
    },
    front_end=spec.Tokens,
    encoder=_encoder,
    input_config=_input_config,
    position_count=position_count,
    input_rules=_input_rules,
)
