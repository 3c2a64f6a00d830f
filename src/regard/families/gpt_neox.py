"""GPT-NeoX and Pythia, as transformers has them (GPTNeoXForCausalLM): attention and feed-forward side by side, or one after
the other; rotary positions on a share of each head's dimensions; q, k and v stored head by head."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch

from regard import spec as kinds
from regard.families.common import Drops, block, sizes
from regard.families.rope_config import frequencies, rope, rope_words
from regard.families.tensor_table import (
    ALONE,
    ConfigSchema,
    Constant,
    PerHead,
    Rule,
    Unread,
    each,
    module,
    vocabulary,
)

FORM = (kinds.Decoder, kinds.Tokens)
PREFIX = "gpt_neox."
_DROPS = Drops("hidden_dropout", "attention_dropout")
_KEYS = ConfigSchema(
    read={
        "vocab_size": 50432, "hidden_size": 6144, "num_hidden_layers": 44, "num_attention_heads": 64,
        "intermediate_size": 24576, "hidden_act": "gelu", "attention_dropout": 0.0, "hidden_dropout": 0.0,
        "layer_norm_eps": 1e-5, "use_parallel_residual": True, "attention_bias": True, "tie_word_embeddings": False,
        "max_position_embeddings": 2048, "rotary_pct": 0.25, "rotary_emb_base": 10_000.0, "rope_scaling": {},
        "rope_parameters": {},
    },
    # The last two are words of GPT-NeoX-20B's config that never were read.
    fixed={**ALONE, "attention_probs_dropout_prob": 0, "hidden_dropout_prob": 0},
    equal={"partial_rotary_factor": "rotary_pct", "rope_theta": "rotary_emb_base"},
)  # fmt: skip


def config(model: kinds.Decoder, positions: int) -> dict[str, Any]:
    words = rope_words(model, shared=True)
    new = words["rope_parameters"]
    return {
        "model_type": "gpt_neox",
        "architectures": ["GPTNeoXForCausalLM"],
        "vocab_size": model.tokens.vocabulary,
        **sizes(model.d_model, model.stack, _DROPS),
        "use_parallel_residual": isinstance(model.stack.block.residual, kinds.Parallel),
        "attention_bias": model.stack.block.attention.bias == "qkvo",
        "tie_word_embeddings": model.tied,
        "max_position_embeddings": positions,
        "rotary_pct": new["partial_rotary_factor"],
        "rotary_emb_base": new["rope_theta"],
        **words,
    }


def spec(config: Mapping[str, Any], stored: Collection[str] = ()) -> kinds.Decoder:
    values = _KEYS(config)
    residual = kinds.Parallel(2) if values["use_parallel_residual"] else kinds.PreNorm()
    layer = block(values, residual, _DROPS, "qkvo" if values["attention_bias"] else "")
    position = rope({**values, "rope_theta": values["rotary_emb_base"]}, values["rotary_pct"])
    return kinds.Decoder(
        values["hidden_size"],
        tokens=kinds.Tokens(values["vocab_size"], None, scale=False, dropout=layer.dropout),
        stack=kinds.Stack(
            values["num_hidden_layers"], layer, kinds.CausalMask(), position, final=layer.norm
        ),
        tied=values["tie_word_embeddings"],
    )


def table(model: kinds.Decoder, positions: int) -> list[Rule]:
    attention, ours, theirs = model.stack.block.attention, "stack.blocks.{i}", "gpt_neox.layers.{i}"
    bias, parallel = bool(attention.bias), isinstance(model.stack.block.residual, kinds.Parallel)
    first, second = (
        f"{ours}.residual.norms.{j}" if parallel else f"{ours}.residual.each.{j}.norm" for j in "01"
    )
    own, fused, held = (
        f"{ours}.attention.project.qkv",
        f"{theirs}.attention.query_key_value",
        f"{theirs}.attention",
    )
    layer: list[Rule] = [
        *module(first, f"{theirs}.input_layernorm"),
        *(
            PerHead(f"{own}.{kind}", f"{fused}.{kind}", attention.heads)
            for kind in ("weight", "bias")[: 1 + bias]
        ),
        *module(f"{ours}.attention.output", f"{theirs}.attention.dense", bias),
        *module(second, f"{theirs}.post_attention_layernorm"),
        *module(f"{ours}.feedforward.inner", f"{theirs}.mlp.dense_h_to_4h"),
        *module(f"{ours}.feedforward.outer", f"{theirs}.mlp.dense_4h_to_h"),
        # Old files hold what may be seen, and what stood for minus infinity.
        Constant(
            f"{held}.bias", lambda: torch.ones(1, 1, positions, positions).tril(), written=False
        ),
        Unread(f"{held}.masked_bias"),
        frequencies(model, f"{held}.rotary_emb.inv_freq"),
    ]
    return [
        *vocabulary(model.tied, "gpt_neox.embed_in.weight", "embed_out.weight", "lm_head.weight"),
        *each(model.stack.layers, layer),
        *module("stack.final_norm", "gpt_neox.final_layer_norm"),
    ]
