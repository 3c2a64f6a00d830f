"""GPT-2, as transformers has it (GPT2LMHeadModel): pre-norm, learned positions, weights stored inputs × outputs.

GPT is another `Kin`, with the norms after the sublayers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from regard import spec as kinds
from regard.families.common import ACTIVATIONS, activation, attention, word
from regard.families.tensor_table import (
    ALONE,
    HARMLESS,
    ConfigSchema,
    Constant,
    Rule,
    Same,
    Unread,
    each,
    module,
    vocabulary,
)

READ: dict[str, Any] = {
    "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12, "resid_pdrop": 0.1, "embd_pdrop": 0.1,
    "attn_pdrop": 0.1, "layer_norm_epsilon": 1e-5, "tie_word_embeddings": True,
}  # fmt: skip
EQUAL = {
    "n_ctx": "n_positions", "hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
}  # fmt: skip
# The summaries belong to a head for multiple choice.
IGNORED = HARMLESS | {
    "summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj",
}  # fmt: skip


@dataclass(frozen=True)
class Kin:
    """One of these families: its keys, the one that names its activation, its embeddings, and where its norms stand."""

    name: str
    architecture: str
    keys: ConfigSchema
    act: str
    tables: tuple[str, str]
    residual: kinds.PreNorm | kinds.PostNorm
    activations: Mapping[str, kinds.Activation] = field(default_factory=lambda: ACTIVATIONS)
    PREFIX: str = "transformer."
    FORM: ClassVar = (kinds.Decoder, kinds.Tokens)

    def config(self, model: kinds.Decoder, positions: int) -> dict[str, Any]:
        block, inner = model.stack.block, model.stack.block.feedforward
        return {
            "model_type": self.name,
            "architectures": [self.architecture],
            "vocab_size": model.tokens.vocabulary,
            "n_positions": _length(model),
            "n_embd": model.d_model,
            "n_layer": model.stack.layers,
            "n_head": block.attention.heads,
            **({"n_inner": inner.d_ff} if "n_inner" in self.keys.read else {}),
            self.act: word(inner.activation, self.activations),
            "resid_pdrop": block.dropout,
            "embd_pdrop": model.tokens.dropout,
            "attn_pdrop": block.attention.mixer.dropout,
            "layer_norm_epsilon": block.norm.eps,
            "tie_word_embeddings": model.tied,
        }

    def spec(self, config: Mapping[str, Any], stored: Collection[str] = ()) -> kinds.Decoder:
        values = self.keys(config)
        d_model, norm = values["n_embd"], kinds.LayerNorm(values["layer_norm_epsilon"])
        block = kinds.Block(
            attention(d_model, values["n_head"], values["attn_pdrop"]),
            kinds.FeedForward(
                values.get("n_inner") or 4 * d_model, activation(values[self.act], self.activations)
            ),
            residual=self.residual,
            norm=norm,
            dropout=values["resid_pdrop"],
        )
        places, final = (
            kinds.LearnedPosition(values["n_positions"]),
            isinstance(self.residual, kinds.PreNorm),
        )
        return kinds.Decoder(
            d_model,
            tokens=kinds.Tokens(
                values["vocab_size"], places, scale=False, dropout=values["embd_pdrop"]
            ),
            stack=kinds.Stack(
                values["n_layer"], block, kinds.CausalMask(), final=norm if final else None
            ),
            tied=values["tie_word_embeddings"],
        )

    def table(self, model: kinds.Decoder, positions: int) -> list[Rule]:
        ours, theirs, length = "stack.blocks.{i}", "transformer.h.{i}", _length(model)
        words, places = (f"transformer.{name}" for name in self.tables)
        layer: list[Rule] = [
            *module(f"{ours}.residual.each.0.norm", f"{theirs}.ln_1"),
            *module(f"{ours}.attention.project.qkv", f"{theirs}.attn.c_attn", turned=True),
            *module(f"{ours}.attention.output", f"{theirs}.attn.c_proj", turned=True),
            *module(f"{ours}.residual.each.1.norm", f"{theirs}.ln_2"),
            *module(f"{ours}.feedforward.inner", f"{theirs}.mlp.c_fc", turned=True),
            *module(f"{ours}.feedforward.outer", f"{theirs}.mlp.c_proj", turned=True),
            # Old files hold what a causal model may see, and the number that stood for minus infinity, in every layer.
            Constant(
                f"{theirs}.attn.bias",
                lambda: torch.ones(1, 1, length, length).tril(),
                written=False,
            ),
            Unread(f"{theirs}.attn.masked_bias"),
        ]
        return [
            *vocabulary(model.tied, f"{words}.weight", "lm_head.weight"),
            Same("tokens.position.table", f"{places}.weight"),
            *each(model.stack.layers, layer),
            *(module("stack.final_norm", "transformer.ln_f") if model.stack.final else []),
            Constant("transformer.position_ids", lambda: torch.arange(length), written=False),
        ]


def _length(model: kinds.Decoder) -> int:
    return (
        model.tokens.position.length
        if isinstance(model.tokens.position, kinds.LearnedPosition)
        else 1
    )


GPT2 = Kin(
    "gpt2", "GPT2LMHeadModel",
    ConfigSchema(
        {**READ, "vocab_size": 50257, "n_inner": None, "activation_function": "gelu_new"},
        {**ALONE, **dict.fromkeys(("scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn"), False),
         "scale_attn_weights": True}, EQUAL, IGNORED,
    ),
    "activation_function", ("wte", "wpe"), kinds.PreNorm(),
)  # fmt: skip
