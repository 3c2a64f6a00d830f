"""GPT (2018), as transformers has it (OpenAIGPTLMHeadModel): a post-norm decoder with learned positions, stored as GPT-2."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch

from regard import spec as kinds
from regard.errors import ModelError, did_you_mean
from regard.interop.gpt2 import blocks
from regard.interop.table import HARMLESS, Constant, Keys, Rule, Same

FORM = (kinds.Decoder, kinds.Tokens)
PREFIX = "transformer."
_ACTIVATIONS: dict[str, kinds.Activation] = {"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"}
_KEYS = Keys(
    read={
        "vocab_size": 40478, "n_positions": 512, "n_embd": 768, "n_layer": 12, "n_head": 12, "afn": "gelu",
        "resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1, "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": True,
    },
    fixed={"is_encoder_decoder": False, "is_decoder": False, "add_cross_attention": False},
    equal={
        "n_ctx": "n_positions", "hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head",
        "max_position_embeddings": "n_positions",
    },
    # The summaries belong to a head for multiple choice, the last two to a tokenizer.
    ignored=HARMLESS
    | {
        "initializer_range", "summary_type", "summary_use_proj", "summary_proj_to_labels", "summary_first_dropout",
        "summary_activation", "n_special", "predict_special_tokens",
    },
)  # fmt: skip


def config(model: kinds.Decoder, positions: int) -> dict[str, Any]:
    block, position = model.stack.block, model.tokens.position
    names = {ours: theirs for theirs, ours in reversed(_ACTIVATIONS.items())}
    return {
        "model_type": "openai-gpt",
        "architectures": ["OpenAIGPTLMHeadModel"],
        "vocab_size": model.tokens.vocabulary,
        "n_positions": position.length if isinstance(position, kinds.Learned) else positions,
        "n_embd": model.d_model,
        "n_layer": model.stack.layers,
        "n_head": block.attention.heads,
        "afn": names.get(block.feedforward.activation, ""),
        "resid_pdrop": block.dropout,
        "embd_pdrop": model.tokens.dropout,
        "attn_pdrop": block.attention.mixer.dropout,
        "layer_norm_epsilon": block.norm.eps,
        "tie_word_embeddings": model.tied,
    }


def spec(config: Mapping[str, Any], stored: Collection[str] = ()) -> kinds.Decoder:
    values = _KEYS(config)
    d_model, heads, activation = values["n_embd"], values["n_head"], values["afn"]
    if d_model % heads:
        raise ModelError(f"config.json: n_embd {d_model} does not divide by {heads} heads", "correct one of them")
    if activation not in _ACTIVATIONS:
        raise ModelError(f"the activation {activation!r} is not supported", did_you_mean(activation, _ACTIVATIONS))
    block = kinds.Block(
        attention=kinds.Attention(heads, d_model // heads, d_model // heads, mixer=kinds.Softmax(values["attn_pdrop"])),
        feedforward=kinds.Plain(4 * d_model, _ACTIVATIONS[activation]),
        norm=kinds.LayerNorm(values["layer_norm_epsilon"]),
        dropout=values["resid_pdrop"],
    )
    position = kinds.Learned(values["n_positions"])
    return kinds.Decoder(
        d_model=d_model,
        tokens=kinds.Tokens(values["vocab_size"], position, scale=False, dropout=values["embd_pdrop"]),
        stack=kinds.Stack(values["n_layer"], block, kinds.Causal()),
        tied=values["tie_word_embeddings"],
    )


def table(model: kinds.Decoder, positions: int) -> list[Rule]:
    position = model.tokens.position
    length = position.length if isinstance(position, kinds.Learned) else positions
    return [
        Same(
            "tokens.table.weight", "transformer.tokens_embed.weight", aliases=("lm_head.weight",) if model.tied else ()
        ),
        *([] if model.tied else [Same("head.table.weight", "lm_head.weight")]),
        Same("tokens.position.table", "transformer.positions_embed.weight"),
        *blocks(model),
        Constant("transformer.position_ids", lambda: torch.arange(length), written=False),
    ]
