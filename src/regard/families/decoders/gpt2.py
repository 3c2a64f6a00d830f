"""GPT-2 (Radford et al. 2019): presets, and its files in transformers.

Pre-norm, learned positions, weights stored as inputs × outputs. GPT is another `GptFamily`, with
the norms after the sublayers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from regard import spec
from regard.families.block_config import (
    ACTIVATIONS,
    activation_name,
    block_from_config,
    stack_config,
)
from regard.families.config_schema import IGNORED_KEYS, NOT_ENCODER_DECODER, Config, ConfigSchema
from regard.families.heads import DECODER_HEADS, DOUBLE_HEADS, HeadLayout, HeadTable, token_labels
from regard.families.layer_names import LayerNames
from regard.families.preset_settings import (
    BASE_LAYERS,
    LARGE_LAYERS,
    FromConfig,
    PresetFamily,
    Settings,
    size,
)
from regard.families.tensor_table import (
    Rename,
    Rules,
    embedding_rules,
    mask_rules,
    position_ids,
)

DEFAULTS: Config = {
    "n_positions": 1024,  # learned positions
    "n_embd": 768,  # d_model
    "n_layer": 12,
    "n_head": 12,
    "resid_pdrop": 0.1,  # dropout on a sublayer's output
    "embd_pdrop": 0.1,  # dropout on the embeddings
    "attn_pdrop": 0.1,  # dropout on the attention weights
    "layer_norm_epsilon": 1e-5,
    "tie_word_embeddings": True,
}
KEYS = {
    "n_embd": "d_model",
    "n_layer": "layers",
    "n_head": "heads",
    "resid_pdrop": "dropout",
    "attn_pdrop": "attention_dropout",
    "layer_norm_epsilon": "eps",
}
SYNONYMS = {
    "n_ctx": "n_positions",  # of old files
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
}
# The summaries belong to a head for multiple choice.
IGNORED = IGNORED_KEYS | {
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
}


LAYER = LayerNames(
    qkv=("attn.c_attn",),
    attention_output="attn.c_proj",
    attention_norm="ln_1",
    feedforward_inner=("mlp.c_fc",),
    feedforward_outer="mlp.c_proj",
    feedforward_norm="ln_2",
    layer="h.{i}",
    final="ln_f",
    transposed=True,
)


@dataclass(frozen=True)
class GptFamily:
    """GPT or GPT-2: its config schema, its tensor names, and where its norms stand."""

    model_type: str
    HEAD_TABLE: HeadTable
    schema: ConfigSchema
    keys: Mapping[str, str]  # of its stack
    embeddings: tuple[str, str]  # the modules of tokens and positions
    residual: spec.PreNorm | spec.PostNorm
    activations: Mapping[str, spec.Activation] = field(default_factory=lambda: ACTIVATIONS)
    PREFIX: str = "transformer."
    SPEC_TYPES: ClassVar = (spec.Decoder, spec.Tokens)

    @property
    def from_settings(self) -> FromConfig:
        """The spec of a preset."""
        keys = {"vocab_size": "vocabulary", "n_positions": "context", "embd_pdrop": "dropout"}
        names = {"gelu_tanh": activation_name("gelu_tanh", self.activations)}
        return FromConfig(self.to_spec, {**self.keys, **keys}, activations=names)

    def to_config(self, model: spec.Decoder, positions: int) -> Config:
        return {
            "model_type": self.model_type,
            "architectures": [f"{self.HEAD_TABLE.class_prefix}LMHeadModel"],
            "vocab_size": model.tokens.vocabulary,
            "n_positions": _position_count(model),
            **stack_config(model.d_model, model.stack, self.keys, self.activations),
            "embd_pdrop": model.tokens.dropout,
            "tie_word_embeddings": model.tied,
        }

    def to_spec(self, config: Config, stored: Collection[str] = ()) -> spec.Decoder:
        values = self.schema.parse(config)
        block = block_from_config(values, self.residual, self.keys, activations=self.activations)
        tokens = spec.Tokens(
            values["vocab_size"],
            spec.LearnedPosition(values["n_positions"]),
            scale=False,
            dropout=values["embd_pdrop"],
            segment_tokens=True,
        )
        final = block.norm if isinstance(self.residual, spec.PreNorm) else None
        stack = spec.Stack.of(values["n_layer"], block, spec.CausalMask(), final=final)
        return spec.Decoder(values["n_embd"], tokens, stack, tied=values["tie_word_embeddings"])

    def tensor_table(self, model: spec.Decoder, positions: int) -> Rules:
        length = _position_count(model)
        token_module, position_module = self.embeddings
        masks = mask_rules("transformer.h.{i}.attn", length)
        return [
            *embedding_rules(model, f"transformer.{token_module}.weight", "lm_head.weight"),
            Rename("tokens.position.table", f"transformer.{position_module}.weight"),
            *LAYER.stack_rules(model.stack, hf="transformer.", more=masks),
            position_ids("transformer.position_ids", length),
        ]


def _position_count(model: spec.Decoder) -> int:
    position = model.tokens.position
    return position.length if isinstance(position, spec.LearnedPosition) else 1


GPT2 = GptFamily(
    model_type="gpt2",
    HEAD_TABLE=HeadTable(
        "GPT2",
        {
            **DECODER_HEADS,
            "DoubleHeadsModel": DOUBLE_HEADS,
            "ForTokenClassification": HeadLayout(token_labels, {"labels.output": "classifier"}),
        },
    ),
    schema=ConfigSchema(
        {**DEFAULTS, "vocab_size": 50257, "n_inner": None, "activation_function": "gelu_new"},
        {
            **NOT_ENCODER_DECODER,
            "scale_attn_by_inverse_layer_idx": False,  # of Mistral's GPT-2
            "reorder_and_upcast_attn": False,  # the same
            "scale_attn_weights": True,
        },
        IGNORED,
        SYNONYMS,
        frozenset({"hidden_dropout", "summary_last_dropout"}),
    ),
    keys={**KEYS, "n_inner": "d_ff", "activation_function": "activation"},
    embeddings=("wte", "wpe"),
    residual=spec.PreNorm(),
)

# ------------------------------------------------------------------ presets


def _corrected(millions: int) -> str:
    return f"Table 2 of the paper miscounts; the authors' release says {millions:,} M"


# The four sizes of Table 2.
SIZES = {
    "tiny": size(4, 128, 4),
    "small": size(*BASE_LAYERS, 117, _corrected(124)),
    "medium": size(*LARGE_LAYERS, 345, _corrected(355)),
    "large": size(36, 1280, 20, 762, _corrected(774)),
    "xl": size(48, 1600, 25, 1542, _corrected(1558)),
}
PRESET_DEFAULTS: Settings = {
    "d_ff": None,  # 4 d_model
    "d_k": None,  # d_model / heads
    "dropout": 0.1,
    "attention_dropout": None,  # as `dropout`
    "activation": "gelu_tanh",
}
preset = PresetFamily("decoder", GPT2.from_settings, SIZES, PRESET_DEFAULTS, 50_257, 1024, "small")
PRESETS = {"gpt2": preset}
