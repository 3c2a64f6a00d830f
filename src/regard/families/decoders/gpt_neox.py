"""GPT-NeoX and Pythia in transformers (GPTNeoXForCausalLM).

Attention and feed-forward in parallel, or one after the other; rotary positions on a share of each
head's dimensions; q, k and v stored head by head.
"""

from __future__ import annotations

from collections.abc import Collection

from regard import spec
from regard.families.block_config import block_from_config, keys_with, stack_config
from regard.families.config_schema import IGNORED_KEYS, NOT_ENCODER_DECODER, Config, ConfigSchema
from regard.families.decoders.rope_config import inv_freq_rule, parse_rope, rope_config
from regard.families.heads import DECODER_HEADS, HeadLayout, HeadTable, token_labels
from regard.families.layer_names import LayerNames
from regard.families.preset_settings import (
    BASE_LAYERS,
    LARGE_LAYERS,
    NO_DROPOUT,
    TEXT_KEYS,
    FromConfig,
    PresetFamily,
    size,
)
from regard.families.tensor_table import InterleavedQkv, Rules, embedding_rules, mask_rules

SPEC_TYPES = (spec.Decoder, spec.Tokens)
PREFIX = "gpt_neox."
HEAD_TABLE = HeadTable(
    "GPTNeoX",
    {
        **DECODER_HEADS,
        "ForTokenClassification": HeadLayout(token_labels, {"labels.output": "classifier"}),
    },
)
_KEYS = keys_with(
    dropout="hidden_dropout",
    attention_dropout="attention_dropout",
    attention_bias="attention_bias",
)
_SCHEMA = ConfigSchema(
    defaults={
        "vocab_size": 50432,
        "hidden_size": 6144,
        "num_hidden_layers": 44,
        "num_attention_heads": 64,
        "intermediate_size": 24576,
        "hidden_act": "gelu",
        "attention_dropout": 0.0,
        "hidden_dropout": 0.0,
        "layer_norm_eps": 1e-5,
        "use_parallel_residual": True,  # attention and feed-forward in parallel
        "attention_bias": True,
        "tie_word_embeddings": False,
        "max_position_embeddings": 2048,
        "rotary_pct": 0.25,  # share of each head's dimensions
        "rotary_emb_base": 10_000.0,  # rope_theta
        "rope_scaling": {},  # transformers 4
        "rope_parameters": {},  # transformers 5
    },
    fixed=NOT_ENCODER_DECODER,
    synonyms={"partial_rotary_factor": "rotary_pct", "rope_theta": "rotary_emb_base"},
    # Keys that transformers never read, though configs have them: GPT-NeoX-20B's, and its tests'.
    ignored=IGNORED_KEYS
    | {"attention_probs_dropout_prob", "hidden_dropout_prob", "type_vocab_size"},
    unsupported=frozenset({"head_dim"}),
)


_LAYER = LayerNames(
    qkv=(),  # head by head
    attention_output="attention.dense",
    attention_norm="input_layernorm",
    feedforward_inner=("mlp.dense_h_to_4h",),
    feedforward_outer="mlp.dense_4h_to_h",
    feedforward_norm="post_attention_layernorm",
    layer="layers.{i}",
    final="final_layer_norm",
)

# ------------------------------------------------------------------ spec → config.json


def to_config(model: spec.Decoder, positions: int) -> Config:
    rope = rope_config(model, partial=True)
    parameters = rope["rope_parameters"]
    return {
        "model_type": "gpt_neox",
        "architectures": ["GPTNeoXForCausalLM"],
        "vocab_size": model.tokens.vocabulary,
        **stack_config(model.d_model, model.stack, _KEYS),
        "use_parallel_residual": isinstance(model.stack.block.residual, spec.Parallel),
        "tie_word_embeddings": model.tied,
        "max_position_embeddings": positions,
        # transformers 5 reads rope_parameters; earlier versions these two.
        "rotary_pct": parameters["partial_rotary_factor"],
        "rotary_emb_base": parameters["rope_theta"],
        **rope,
    }


# ------------------------------------------------------------------ config.json → spec


def to_spec(config: Config, stored: Collection[str] = ()) -> spec.Decoder:
    values = _SCHEMA.parse(config)
    residual = spec.Parallel(2) if values["use_parallel_residual"] else spec.PreNorm()
    block = block_from_config(values, residual, _KEYS)
    rope_values = {**values, "rope_theta": values["rotary_emb_base"]}
    rope = parse_rope(rope_values, partial_factor=values["rotary_pct"])
    tokens = spec.Tokens(values["vocab_size"], None, scale=False, dropout=block.dropout)
    stack = spec.Stack.of(
        values["num_hidden_layers"], block, spec.CausalMask(), rope, final=block.norm
    )
    return spec.Decoder(
        values["hidden_size"], tokens=tokens, stack=stack, tied=values["tie_word_embeddings"]
    )


# ------------------------------------------------------------------ tensors


def tensor_table(model: spec.Decoder, positions: int) -> Rules:
    hf = "gpt_neox.layers.{i}.attention"
    attention = model.stack.block.attention
    more = [
        *mask_rules(hf, positions),
        inv_freq_rule(model, f"{hf}.rotary_emb.inv_freq"),
        *(
            InterleavedQkv(
                f"stack.blocks.{{i}}.attention.project.qkv.{kind}",
                f"{hf}.query_key_value.{kind}",
                attention.heads,
            )
            for kind in (("weight", "bias") if attention.bias else ("weight",))
        ),
    ]
    return [
        *embedding_rules(model, "gpt_neox.embed_in.weight", "embed_out.weight", "lm_head.weight"),
        *_LAYER.stack_rules(model.stack, hf=PREFIX, more=more),
    ]


# ------------------------------------------------------------------ presets

# GPT-NeoX-20B (Black et al. 2022), and the sizes of Pythia (Biderman et al. 2023, Table 1).
SIZES = {
    "tiny": size(2, 128, 4),
    "20b": size(44, 6144, 64, 20_555),
}
PYTHIA = {
    "tiny": SIZES["tiny"],
    "70m": size(6, 512, 8, 70.4),
    "160m": size(*BASE_LAYERS, 162.3),
    "410m": size(*LARGE_LAYERS, 405.3),
    "1b": size(16, 2048, 8, 1011.8),
    "1.4b": size(24, 2048, 16, 1414.6),
    "2.8b": size(32, 2560, 32, 2775.2),
    "6.9b": size(32, 4096, 32, 6857.3, vocabulary=50_432),
    "12b": size(36, 5120, 40, 11_846.1, vocabulary=50_688),
}
_make = FromConfig(to_spec, {**_KEYS, **TEXT_KEYS})
PRESETS = {
    "gpt-neox": PresetFamily("decoder", _make, SIZES, NO_DROPOUT, 50_432, 2048, "20b"),
    "pythia": PresetFamily("decoder", _make, PYTHIA, NO_DROPOUT, 50_304, 2048, "160m"),
}
