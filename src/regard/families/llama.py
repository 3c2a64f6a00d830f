"""LLaMA, as transformers has it: pre-norm with RMS norms, rotary positions in halves, grouped keys, a gated feed-forward.

Mistral, Qwen2 and Gemma are the same machine with other constants: each is a `Kin`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from regard import spec as kinds
from regard.errors import ModelError
from regard.families.common import ACTIVATIONS, activation, word
from regard.families.rope_config import frequencies, rope, rope_words
from regard.families.tensor_table import (
    ALONE,
    HARMLESS,
    ConfigSchema,
    Rule,
    each,
    module,
    modules,
    vocabulary,
)

_READ: dict[str, Any] = {
    "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": None, "head_dim": None, "hidden_act": "silu", "rms_norm_eps": 1e-6,
    "attention_dropout": 0.0, "tie_word_embeddings": False, "max_position_embeddings": 2048, "rope_theta": 10_000.0,
    "rope_scaling": {}, "rope_parameters": {}, "layer_types": [],
}  # fmt: skip


@dataclass(frozen=True)
class Kin:
    """One of these families: what its config assumes, and where it departs from LLaMA."""

    name: str
    architecture: str
    read: dict[str, Any]
    fixed: dict[str, Any] = field(default_factory=dict)
    ignored: frozenset[str] = frozenset()
    activations: Mapping[str, kinds.Activation] = field(default_factory=lambda: ACTIVATIONS)
    bias: str = ""  # of the attention, unless config.json says more
    offset: float = 0.0  # of the norms' weights
    scale: bool = False  # embeddings times √d_model
    PREFIX: str = "model."
    FORM: ClassVar = (kinds.Decoder, kinds.Tokens)

    @property
    def keys(self) -> ConfigSchema:
        # `pretraining_tp` says in how many parts a product was computed once.
        ignored = HARMLESS | self.ignored | {"pretraining_tp"}
        return ConfigSchema({**_READ, **self.read}, {**ALONE, **self.fixed}, {}, ignored)

    def config(self, model: kinds.Decoder, positions: int) -> dict[str, Any]:
        block, pattern, words = model.stack.block, model.stack.pattern, rope_words(model)
        attention, feedforward = block.attention, block.feedforward
        some = {  # not all of the families have these words
            "sliding_window": pattern.window if isinstance(pattern, kinds.CausalMask) else None,
            "attention_bias": attention.bias == "qkvo",
            "mlp_bias": feedforward.bias,
        }
        return {
            "model_type": self.name,
            "architectures": [self.architecture],
            "vocab_size": model.tokens.vocabulary,
            "hidden_size": model.d_model,
            "intermediate_size": feedforward.d_ff,
            "num_hidden_layers": model.stack.layers,
            "num_attention_heads": attention.heads,
            "num_key_value_heads": attention.key_heads,
            "head_dim": attention.d_k,
            "hidden_act": word(feedforward.activation, self.activations),
            "rms_norm_eps": block.norm.eps,
            "attention_dropout": attention.mixer.dropout,
            "tie_word_embeddings": model.tied,
            "max_position_embeddings": positions,
            "rope_theta": words["rope_parameters"]["rope_theta"],
            **words,
            **{key: value for key, value in some.items() if key in self.read},
        }

    def spec(self, config: Mapping[str, Any], stored: Collection[str] = ()) -> kinds.Decoder:
        values = self.keys(config)
        if other := [kind for kind in values["layer_types"] if kind != "full_attention"]:
            raise ModelError(
                f"layers of the kind {other[0]!r} are not understood", "known: full_attention"
            )
        heads, d_model, groups = (
            values["num_attention_heads"],
            values["hidden_size"],
            values["num_key_value_heads"],
        )
        d_k = values["head_dim"] or d_model // heads
        norm = kinds.RMSNorm(values["rms_norm_eps"], self.offset)
        attention = kinds.Attention(
            heads, d_k, d_k,
            groups=None if groups == heads else groups,
            bias="qkvo" if values.get("attention_bias") else self.bias,
            mixer=kinds.SoftmaxAttention(values["attention_dropout"]),
        )  # fmt: skip
        act, bias = (
            activation(values["hidden_act"], self.activations),
            values.get("mlp_bias", False),
        )
        feedforward = kinds.GatedFeedForward(values["intermediate_size"], act, bias=bias)
        block = kinds.Block(
            attention, feedforward, residual=kinds.PreNorm(), norm=norm, dropout=0.0
        )
        pattern = kinds.CausalMask(values.get("sliding_window"))
        return kinds.Decoder(
            d_model,
            tokens=kinds.Tokens(values["vocab_size"], None, scale=self.scale, dropout=0.0),
            stack=kinds.Stack(
                values["num_hidden_layers"], block, pattern, rope(values), final=norm
            ),
            tied=values["tie_word_embeddings"],
        )

    def table(self, model: kinds.Decoder, positions: int) -> list[Rule]:
        attention, feedforward = model.stack.block.attention, model.stack.block.feedforward
        d_k, keys, d_ff, bias = (
            attention.d_k,
            attention.key_heads,
            feedforward.d_ff,
            feedforward.bias,
        )
        ours, theirs = "stack.blocks.{i}", "model.layers.{i}"
        names = [f"{theirs}.self_attn.{letter}_proj" for letter in "qkv"]
        pair = [f"{theirs}.mlp.gate_proj", f"{theirs}.mlp.up_proj"]
        rows = (attention.heads * d_k, keys * d_k, keys * d_k)
        layer: list[Rule] = [
            *modules(f"{ours}.attention.project.qkv", names, rows, "q" in attention.bias),
            *module(
                f"{ours}.attention.output", f"{theirs}.self_attn.o_proj", "o" in attention.bias
            ),
            *module(f"{ours}.residual.each.0.norm", f"{theirs}.input_layernorm", bias=False),
            *modules(f"{ours}.feedforward.inner", pair, (d_ff, d_ff), bias),
            *module(f"{ours}.feedforward.outer", f"{theirs}.mlp.down_proj", bias),
            *module(
                f"{ours}.residual.each.1.norm", f"{theirs}.post_attention_layernorm", bias=False
            ),
            frequencies(model, f"{theirs}.self_attn.rotary_emb.inv_freq"),
        ]
        return [
            *vocabulary(model.tied, "model.embed_tokens.weight", "lm_head.weight"),
            *each(model.stack.layers, layer),
            *module("stack.final_norm", "model.norm", bias=False),
        ]


LLAMA = Kin("llama", "LlamaForCausalLM", {"attention_bias": False, "mlp_bias": False})
