"""MPNet in transformers: RoBERTa without segments, with T5's relative position bias."""

from __future__ import annotations

from regard import spec
from regard.families.bert_layout import (
    CLASSIFIERS,
    DEFAULTS,
    FIXED,
    IGNORED,
    BertFamily,
    ClassifierDense,
)
from regard.families.config_schema import ConfigSchema
from regard.families.encoder_layer import LayerNames
from regard.families.roberta import LM_HEAD

MPNET = BertFamily(
    model_type="mpnet",
    class_prefix="MPNet",
    PREFIX="mpnet.",
    schema=ConfigSchema(
        {**DEFAULTS, "vocab_size": 30527},
        # transformers uses 32 buckets whatever the config says.
        {**FIXED, "relative_attention_num_buckets": 32},
        {},
        IGNORED,
    ),
    lm_head=LM_HEAD,
    layer=LayerNames(
        qkv=("attention.attn.q", "attention.attn.k", "attention.attn.v"),
        attention_output="attention.attn.o",
        attention_norm="attention.LayerNorm",
    ),
    classifiers={**CLASSIFIERS, "classify": "classifier.out_proj"},
    classifier_dropout={"classify": "hidden_dropout_prob", "tag": "hidden_dropout_prob"},
    classifier_dense=ClassifierDense("classifier.dense", "tanh"),
    position_offset=2,  # transformers fixes the padding token's id at 1
    relative_bias=spec.T5Bias(32, 128),
)
