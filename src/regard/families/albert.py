"""ALBERT, as transformers has it: one layer applied many times, and narrow embeddings that are widened.

Models with several groups of layers, or several layers in a group, are refused. In training transformers drops nothing
after the feed-forward, where here `dropout` acts as after the attention; its configs have no dropout unless they say so.
"""

from __future__ import annotations

from regard.families.bert_layout import FIXED, IGNORED, LABELS, SIZES, TOPS, Head, Kin
from regard.families.common import Layer
from regard.families.tensor_table import ConfigSchema

ALBERT = Kin(
    "albert", "Albert", "albert.",
    keys=ConfigSchema(
        {
            **SIZES, "vocab_size": 30000, "embedding_size": 128, "hidden_size": 4096, "num_attention_heads": 64,
            "intermediate_size": 16384, "hidden_act": "gelu_new", "hidden_dropout_prob": 0.0, "type_vocab_size": 2,
            "attention_probs_dropout_prob": 0.0, "classifier_dropout_prob": 0.1,
        },
        {**FIXED, "num_hidden_groups": 1, "inner_group_num": 1},
        {},
        IGNORED | {"down_scale_factor", "gap_size", "net_structure_type", "num_memory_blocks"},  # never built
    ),
    head=Head("predictions.dense", "predictions.LayerNorm", "predictions.bias", "predictions.decoder"),
    layer=Layer(
        ("attention.query", "attention.key", "attention.value"), "attention.dense", "attention.LayerNorm",
        "ffn", "ffn_output", "full_layer_layer_norm", "encoder.albert_layer_groups.0.albert_layers.0",
    ),
    tops={**TOPS, "ForPreTraining": (True, "next")},
    labels={**LABELS, "next": "sop_classifier.classifier"},
    drops=dict.fromkeys(("classify", "tag", "next"), "classifier_dropout_prob"),
    pooler="pooler",
    project="encoder.embedding_hidden_mapping_in",
    projects=True,
    shared=True,
)  # fmt: skip
