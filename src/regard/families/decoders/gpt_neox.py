"""GPT-NeoX and Pythia in transformers (GPTNeoXForCausalLM).

Attention and feed-forward in parallel, or one after the other; rotary positions on a share of each
head's dimensions; q, k and v stored head by head.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from regard import spec
from regard.families.block_config import block_from_config, keys_with, stack_config
from regard.families.config_schema import IGNORED_KEYS, NOT_ENCODER_DECODER, ConfigSchema
from regard.families.decoders.rope_config import inv_freq_rule, parse_rope, rope_config
from regard.families.heads import DECODER_HEADS, HeadLayout, HeadTable, token_labels
from regard.families.preset_settings import (
    BASE_LAYERS,
    LARGE_LAYERS,
    NO_DROPOUT,
    TEXT_KEYS,
    FromConfig,
    PresetFamily,
    Size,
)
from regard.families.tensor_table import (
    InterleavedQkv,
    Rule,
    embedding_rules,
    mask_rules,
    module_rules,
    per_layer,
)

SPEC_TYPES = (spec.Decoder, spec.Tokens)
PREFIX = "gpt_neox."
HEAD_TABLE = HeadTable(
    "GPTNeoX",
    {
        **DECODER_HEADS,
        "ForTokenClassification": HeadLayout(token_labels, {"labels.output": "classifier"}),
    },
)
_KEYS = keys_with(dropout="hidden_dropout", attention_dropout="attention_dropout")
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


# ------------------------------------------------------------------ spec → config.json


def to_config(model: spec.Decoder, positions: int) -> dict[str, Any]:
    rope = rope_config(model, partial=True)
    parameters = rope["rope_parameters"]
    return {
        "model_type": "gpt_neox",
        "architectures": ["GPTNeoXForCausalLM"],
        "vocab_size": model.tokens.vocabulary,
        **stack_config(model.d_model, model.stack, _KEYS),
        "use_parallel_residual": isinstance(model.stack.block.residual, spec.Parallel),
        "attention_bias": model.stack.block.attention.bias == "qkvo",
        "tie_word_embeddings": model.tied,
        "max_position_embeddings": positions,
        # transformers 5 reads rope_parameters; earlier versions these two.
        "rotary_pct": parameters["partial_rotary_factor"],
        "rotary_emb_base": parameters["rope_theta"],
        **rope,
    }


# ------------------------------------------------------------------ config.json → spec


def to_spec(config: Mapping[str, Any], stored: Collection[str] = ()) -> spec.Decoder:
    values = _SCHEMA.parse(config)
    residual = spec.Parallel(2) if values["use_parallel_residual"] else spec.PreNorm()
    bias = "qkvo" if values["attention_bias"] else ""
    block = block_from_config(values, residual, _KEYS, bias)
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


def tensor_table(model: spec.Decoder, positions: int) -> list[Rule]:
    return [
        *embedding_rules(model, "gpt_neox.embed_in.weight", "embed_out.weight", "lm_head.weight"),
        *per_layer(model.stack.layers, _block_rules(model, positions)),
        *module_rules("stack.final_norm", "gpt_neox.final_layer_norm"),
    ]


def _block_rules(model: spec.Decoder, positions: int) -> list[Rule]:
    name = "stack.blocks.{i}"
    hf = "gpt_neox.layers.{i}"
    block = model.stack.block
    heads = block.attention.heads
    has_bias = bool(block.attention.bias)
    if isinstance(block.residual, spec.Parallel):
        norms = [f"{name}.residual.norms.{j}" for j in (0, 1)]
    else:
        norms = [f"{name}.residual.each.{j}.norm" for j in (0, 1)]
    qkv = f"{name}.attention.project.qkv"
    hf_qkv = f"{hf}.attention.query_key_value"
    qkv_rules = [InterleavedQkv(f"{qkv}.weight", f"{hf_qkv}.weight", heads)]
    if has_bias:
        qkv_rules.append(InterleavedQkv(f"{qkv}.bias", f"{hf_qkv}.bias", heads))

    return [
        *module_rules(norms[0], f"{hf}.input_layernorm"),
        *qkv_rules,
        *module_rules(f"{name}.attention.output", f"{hf}.attention.dense", has_bias),
        *module_rules(norms[1], f"{hf}.post_attention_layernorm"),
        *module_rules(f"{name}.feedforward.inner", f"{hf}.mlp.dense_h_to_4h"),
        *module_rules(f"{name}.feedforward.outer", f"{hf}.mlp.dense_4h_to_h"),
        *mask_rules(f"{hf}.attention", positions),
        inv_freq_rule(model, f"{hf}.attention.rotary_emb.inv_freq"),
    ]


# ------------------------------------------------------------------ presets

# GPT-NeoX-20B (Black et al. 2022), and the sizes of Pythia (Biderman et al. 2023, Table 1).
SIZES = {
    "tiny": Size({"layers": 2, "d_model": 128, "heads": 4}),
    "20b": Size({"layers": 44, "d_model": 6144, "heads": 64}, 20_555),
}
PYTHIA = {
    "tiny": SIZES["tiny"],
    "70m": Size({"layers": 6, "d_model": 512, "heads": 8}, 70.4),
    "160m": Size(BASE_LAYERS, 162.3),
    "410m": Size(LARGE_LAYERS, 405.3),
    "1b": Size({"layers": 16, "d_model": 2048, "heads": 8}, 1011.8),
    "1.4b": Size({"layers": 24, "d_model": 2048, "heads": 16}, 1414.6),
    "2.8b": Size({"layers": 32, "d_model": 2560, "heads": 32}, 2775.2),
    "6.9b": Size({"layers": 32, "d_model": 4096, "heads": 32}, 6857.3, vocabulary=50_432),
    "12b": Size({"layers": 36, "d_model": 5120, "heads": 40}, 11_846.1, vocabulary=50_688),
}
_make = FromConfig(to_spec, {**_KEYS, **TEXT_KEYS})
PRESETS = {
    "gpt-neox": PresetFamily("decoder", _make, SIZES, NO_DROPOUT, 50_432, 2048, "20b"),
    "pythia": PresetFamily("decoder", _make, PYTHIA, NO_DROPOUT, 50_304, 2048, "160m"),
}
