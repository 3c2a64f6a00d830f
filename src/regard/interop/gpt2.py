"""GPT-2, as transformers has it (GPT2LMHeadModel): pre-norm, learned positions, weights stored inputs × outputs.

GPT's blocks are stored in the same way, so what has no underscore here serves both.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch

from regard import spec as kinds
from regard.errors import ModelError
from regard.interop.table import Constant, Keys, Moved, Rule, Same, Transposed, each, module

FORM = (kinds.Decoder, kinds.Tokens)
PREFIX = "transformer."
_ACTIVATIONS: dict[str, kinds.Activation] = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu": "gelu",
    "relu": "relu",
}
_KEYS = Keys(
    read={
        "vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12, "n_inner": None,
        "activation_function": "gelu_new", "resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1,
        "layer_norm_epsilon": 1e-5, "tie_word_embeddings": True, "initializer_range": 0.02, "summary_type": "cls_index",
        "summary_use_proj": True, "summary_proj_to_labels": True, "summary_first_dropout": 0.1,
    },
    fixed={
        "scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "reorder_and_upcast_attn": False,
        "add_cross_attention": False, "is_encoder_decoder": False, "is_decoder": False, "summary_activation": None,
    },
    equal={
        "n_ctx": "n_positions", "hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head",
        "max_position_embeddings": "n_positions",
    },
)  # fmt: skip


def config(model: kinds.Decoder, positions: int) -> dict[str, Any]:
    block, position = model.stack.block, model.tokens.position
    names = {ours: theirs for theirs, ours in reversed(_ACTIVATIONS.items())}
    return {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": model.tokens.vocabulary,
        "n_positions": position.length if isinstance(position, kinds.Learned) else 1,
        "n_embd": model.d_model,
        "n_layer": model.stack.layers,
        "n_head": block.attention.heads,
        "n_inner": block.feedforward.d_ff,
        "activation_function": names.get(block.feedforward.activation, ""),
        "resid_pdrop": block.dropout,
        "embd_pdrop": model.tokens.dropout,
        "attn_pdrop": block.attention.mixer.dropout,
        "layer_norm_epsilon": block.norm.eps,
        "tie_word_embeddings": model.tied,
    }


def spec(config: Mapping[str, Any], stored: Collection[str] = ()) -> kinds.Decoder:
    values = _KEYS(config)
    d_model, heads = values["n_embd"], values["n_head"]
    if d_model % heads:
        raise ModelError(f"config.json: n_embd {d_model} does not divide by {heads} heads", "correct one of them")
    if values["activation_function"] not in _ACTIVATIONS:
        raise ModelError(
            f"the activation {values['activation_function']!r} is not supported", f"known: {[*_ACTIVATIONS]}"
        )
    norm = kinds.LayerNorm(values["layer_norm_epsilon"])
    block = kinds.Block(
        attention=kinds.Attention(heads, d_model // heads, d_model // heads, mixer=kinds.Softmax(values["attn_pdrop"])),
        feedforward=kinds.Plain(values["n_inner"] or 4 * d_model, _ACTIVATIONS[values["activation_function"]]),
        residual=kinds.PreNorm(),
        norm=norm,
        dropout=values["resid_pdrop"],
    )
    return kinds.Decoder(
        d_model=d_model,
        tokens=kinds.Tokens(values["vocab_size"], kinds.Learned(values["n_positions"]), False, values["embd_pdrop"]),
        stack=kinds.Stack(values["n_layer"], block, kinds.Causal(), final=norm),
        tied=values["tie_word_embeddings"],
    )


def table(model: kinds.Decoder, positions: int) -> list[Rule]:
    return [
        Same("tokens.table.weight", "transformer.wte.weight", aliases=("lm_head.weight",) if model.tied else ()),
        *([] if model.tied else [Same("head.table.weight", "lm_head.weight")]),
        Same("tokens.position.table", "transformer.wpe.weight"),
        *blocks(model),
        *module("stack.final_norm", "transformer.ln_f"),
    ]


def blocks(model: kinds.Decoder) -> list[Rule]:
    """The layers, and the masks that old files hold in each."""
    ours, theirs = "stack.blocks.{i}", "transformer.h.{i}"
    rules = [
        *module(f"{ours}.residual.each.0.norm", f"{theirs}.ln_1"),
        *_turned(f"{ours}.attention.project.qkv", f"{theirs}.attn.c_attn"),
        *_turned(f"{ours}.attention.output", f"{theirs}.attn.c_proj"),
        *module(f"{ours}.residual.each.1.norm", f"{theirs}.ln_2"),
        *_turned(f"{ours}.feedforward.inner", f"{theirs}.mlp.c_fc"),
        *_turned(f"{ours}.feedforward.outer", f"{theirs}.mlp.c_proj"),
    ]
    return [
        *each(model.stack.layers, rules),
        *(rule for i in range(model.stack.layers) for rule in _masks(model, f"transformer.h.{i}.attn")),
    ]


def _masks(model: kinds.Decoder, theirs: str) -> list[Rule]:
    """Old files hold what a causal model may see, and the number that stood for minus infinity, in every layer."""
    position = model.tokens.position
    length = position.length if isinstance(position, kinds.Learned) else 1
    return [
        Constant(f"{theirs}.bias", lambda: torch.ones(1, 1, length, length).tril(), written=False),
        Constant(f"{theirs}.masked_bias", lambda: torch.tensor(-1e4), written=False),
    ]


def _turned(ours: str, theirs: str) -> list[Moved]:
    return [Transposed(f"{ours}.weight", f"{theirs}.weight"), Same(f"{ours}.bias", f"{theirs}.bias")]
