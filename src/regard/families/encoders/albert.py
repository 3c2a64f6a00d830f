"""ALBERT in transformers: a layer for each group of them, narrow embeddings that are projected.

Models with several layers in a group are refused. In training transformers drops nothing after the
feed-forward, where here `dropout` acts as after the attention; its configs have no dropout unless
they say so.
"""

from __future__ import annotations

from regard.families.config_schema import ConfigSchema
from regard.families.encoders.bert_layout import (
    CLASSIFIERS,
    DEFAULTS,
    FIXED,
    HEADS,
    IGNORED,
    BertFamily,
    Heads,
    LMHeadNames,
)
from regard.families.layer_names import LayerNames
from regard.families.preset_settings import (
    BASE_LAYERS,
    LARGE_LAYERS,
    NO_DROPOUT,
    NO_POOLER,
    size,
)

ALBERT = BertFamily(
    model_type="albert",
    class_prefix="Albert",
    PREFIX="albert.",
    schema=ConfigSchema(
        {
            **DEFAULTS,
            "vocab_size": 30000,
            "embedding_size": 128,  # projected to hidden_size
            "hidden_size": 4096,
            "num_attention_heads": 64,
            "intermediate_size": 16384,
            "hidden_act": "gelu_new",
            "hidden_dropout_prob": 0.0,
            "type_vocab_size": 2,
            "attention_probs_dropout_prob": 0.0,
            "classifier_dropout_prob": 0.1,
            "num_hidden_groups": 1,  # of consecutive layers, which share one layer's weights
        },
        {**FIXED, "inner_group_num": 1},
        # Keys of Google's configs that were never built.
        IGNORED | {"down_scale_factor", "gap_size", "net_structure_type", "num_memory_blocks"},
    ),
    lm_head=LMHeadNames(
        dense="predictions.dense",
        norm="predictions.LayerNorm",
        bias="predictions.bias",
        decoder="predictions.decoder",
    ),
    layer=LayerNames(
        qkv=("attention.query", "attention.key", "attention.value"),
        attention_output="attention.dense",
        attention_norm="attention.LayerNorm",
        feedforward_inner=("ffn",),
        feedforward_outer="ffn_output",
        feedforward_norm="full_layer_layer_norm",
        layer="encoder.albert_layer_groups.{i}.albert_layers.0",
    ),
    # ALBERT's pretraining predicts whether two sentences are in their order.
    heads={**HEADS, "ForPreTraining": Heads(language_model=True, task="next")},
    classifiers={**CLASSIFIERS, "next": "sop_classifier.classifier"},
    labelled=("classify", "tag", "next"),
    classifier_dropout=dict.fromkeys(
        ("classify", "tag", "next", "choice"), "classifier_dropout_prob"
    ),
    pooler="pooler",
    embedding_projection="encoder.embedding_hidden_mapping_in",
    always_projects=True,
)

# ------------------------------------------------------------------ presets

# Lan et al. 2020, Table 1. Their last versions dropped nothing.
SIZES = {
    "tiny": size(4, 128, 2, width=64),
    "base": size(*BASE_LAYERS, 12, NO_POOLER),
    "large": size(*LARGE_LAYERS, 18, NO_POOLER),
    "xlarge": size(24, 2048, 16, 60, NO_POOLER),
    "xxlarge": size(
        12, 4096, 64, 235, "without the pooler; with it 223 M, as its released model has"
    ),
}
_DEFAULTS = {**NO_DROPOUT, "activation": "gelu_tanh", "width": 128}  # of the embeddings
_KEYS = {"embedding_size": "width"}
PRESETS = {"albert": ALBERT.presets(SIZES, 30_000, defaults=_DEFAULTS, keys=_KEYS)}
