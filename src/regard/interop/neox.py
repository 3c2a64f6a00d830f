"""GPT-NeoX and Pythia, as transformers has them (GPTNeoXForCausalLM): attention and feed-forward side by side, or one after
the other; rotary positions on a share of each head's dimensions; q, k and v stored head by head."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from regard import spec as kinds
from regard.core.position import rope_frequencies
from regard.errors import ModelError, did_you_mean
from regard.interop.llama import rope, scaling_of
from regard.interop.table import HARMLESS, Constant, Keys, PerHead, Rule, Same, each, module

FORM = (kinds.Decoder, kinds.Tokens)
PREFIX = "gpt_neox."
_ACTIVATIONS: dict[str, kinds.Activation] = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_fast": "gelu_tanh"}
_KEYS = Keys(
    read={
        "vocab_size": 50432, "hidden_size": 6144, "num_hidden_layers": 44, "num_attention_heads": 64,
        "intermediate_size": 24576, "hidden_act": "gelu", "attention_dropout": 0.0, "hidden_dropout": 0.0,
        "layer_norm_eps": 1e-5, "use_parallel_residual": True, "attention_bias": True, "tie_word_embeddings": False,
        "max_position_embeddings": 2048, "rotary_pct": 0.25, "rotary_emb_base": 10_000.0, "rope_scaling": {},
        "rope_parameters": {},
    },
    fixed={"is_encoder_decoder": False, "is_decoder": False, "add_cross_attention": False},
    equal={"partial_rotary_factor": "rotary_pct", "rope_theta": "rotary_emb_base"},
    ignored=HARMLESS | {"initializer_range"},
)  # fmt: skip


def config(model: kinds.Decoder, positions: int) -> dict[str, Any]:
    block, place = model.stack.block, model.stack.position
    turned = place if isinstance(place, kinds.Rope) else kinds.Rope()
    scaling = scaling_of(turned.scaling)
    names = {ours: theirs for theirs, ours in reversed(_ACTIVATIONS.items())}
    share = {"rope_theta": turned.base, "partial_rotary_factor": turned.share}
    return {
        "model_type": "gpt_neox",
        "architectures": ["GPTNeoXForCausalLM"],
        "vocab_size": model.tokens.vocabulary,
        "hidden_size": model.d_model,
        "num_hidden_layers": model.stack.layers,
        "num_attention_heads": block.attention.heads,
        "intermediate_size": block.feedforward.d_ff,
        "hidden_act": names.get(block.feedforward.activation, ""),
        "attention_dropout": block.attention.mixer.dropout,
        "hidden_dropout": block.dropout,
        "layer_norm_eps": block.norm.eps,
        "use_parallel_residual": isinstance(block.residual, kinds.Parallel),
        "attention_bias": block.attention.bias == "qkvo",
        "tie_word_embeddings": model.tied,
        "max_position_embeddings": positions,
        "rotary_pct": turned.share,
        "rotary_emb_base": turned.base,
        "rope_parameters": {"rope_type": "default", **scaling, **share},
        **({"rope_scaling": scaling} if scaling else {}),
    }


def spec(config: Mapping[str, Any], stored: Collection[str] = ()) -> kinds.Decoder:
    values = _KEYS(config)
    d_model, heads, activation = values["hidden_size"], values["num_attention_heads"], values["hidden_act"]
    if d_model % heads:
        raise ModelError(f"config.json: hidden_size {d_model} does not divide by {heads} heads", "correct one of them")
    if activation not in _ACTIVATIONS:
        raise ModelError(f"the activation {activation!r} is not supported", did_you_mean(activation, _ACTIVATIONS))
    norm, d_k = kinds.LayerNorm(values["layer_norm_eps"]), d_model // heads
    block = kinds.Block(
        attention=kinds.Attention(
            heads, d_k, d_k, bias="qkvo" if values["attention_bias"] else "",
            mixer=kinds.Softmax(values["attention_dropout"]),
        ),
        feedforward=kinds.Plain(values["intermediate_size"], _ACTIVATIONS[activation]),
        residual=kinds.Parallel(2) if values["use_parallel_residual"] else kinds.PreNorm(),
        norm=norm,
        dropout=values["hidden_dropout"],
    )  # fmt: skip
    turned = {**values["rope_scaling"], **values["rope_parameters"]}
    share = turned.pop("partial_rotary_factor", values["rotary_pct"])
    said = {"rope_theta": values["rotary_emb_base"], "rope_scaling": {}, "rope_parameters": turned}
    position = replace(rope(said), share=float(share))
    return kinds.Decoder(
        d_model=d_model,
        tokens=kinds.Tokens(values["vocab_size"], None, scale=False, dropout=values["hidden_dropout"]),
        stack=kinds.Stack(values["num_hidden_layers"], block, kinds.Causal(), position, final=norm),
        tied=values["tie_word_embeddings"],
    )


def table(model: kinds.Decoder, positions: int) -> list[Rule]:
    block, output = model.stack.block, ("embed_out.weight", "lm_head.weight")
    parallel, bias, heads = (
        isinstance(block.residual, kinds.Parallel),
        bool(block.attention.bias),
        block.attention.heads,
    )
    ours, theirs = "stack.blocks.{i}", "gpt_neox.layers.{i}"
    norms = [f"{ours}.residual." + ("norms.{j}" if parallel else "each.{j}.norm").replace("{j}", j) for j in "01"]
    own, fused = f"{ours}.attention.project.qkv", f"{theirs}.attention.query_key_value"
    rules = [
        *module(norms[0], f"{theirs}.input_layernorm"),
        *(PerHead(f"{own}.{kind}", f"{fused}.{kind}", heads) for kind in ("weight", "bias")[: 1 + bias]),
        *module(f"{ours}.attention.output", f"{theirs}.attention.dense", bias),
        *module(norms[1], f"{theirs}.post_attention_layernorm"),
        *module(f"{ours}.feedforward.inner", f"{theirs}.mlp.dense_h_to_4h"),
        *module(f"{ours}.feedforward.outer", f"{theirs}.mlp.dense_4h_to_h"),
    ]
    return [
        Same("tokens.table.weight", "gpt_neox.embed_in.weight", aliases=output if model.tied else ()),
        *([] if model.tied else [Same("head.table.weight", output[0], aliases=output[1:])]),
        *each(model.stack.layers, rules),
        *module("stack.final_norm", "gpt_neox.final_layer_norm"),
        *(
            rule
            for i in range(model.stack.layers)
            for rule in _held(model, f"gpt_neox.layers.{i}.attention", positions)
        ),
    ]


def _held(model: kinds.Decoder, theirs: str, positions: int) -> list[Rule]:
    """Old files hold, in every layer, what may be seen, what stood for minus infinity, and the rotation's frequencies."""
    place, d_k = model.stack.position, model.stack.block.attention.d_k
    turned = place if isinstance(place, kinds.Rope) else kinds.Rope()
    made = partial(rope_frequencies, int(d_k * turned.share), turned.base)
    return [
        Constant(f"{theirs}.bias", lambda: torch.ones(1, 1, positions, positions).tril(), written=False),
        Constant(f"{theirs}.masked_bias", lambda: torch.tensor(-1e9), written=False),
        Constant(f"{theirs}.rotary_emb.inv_freq", made, tolerance=1e-6, written=False),
    ]
