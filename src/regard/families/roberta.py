"""RoBERTa in transformers, with CamemBERT and XLM-RoBERTa, which differ in name only.

BERT with positions that count from behind the padding token's id, and a classifier with a dense
layer of its own.
"""

from __future__ import annotations

from dataclasses import replace

from regard.families.bert_layout import (
    CLASSIFIERS,
    FIXED,
    IGNORED,
    SEGMENT_DEFAULTS,
    BertFamily,
    ClassifierDense,
    LMHeadNames,
)
from regard.families.config_schema import ConfigSchema

LM_HEAD = LMHeadNames(
    dense="lm_head.dense",
    norm="lm_head.layer_norm",
    bias="lm_head.bias",
    decoder="lm_head.decoder",
    activation="gelu",  # whatever hidden_act says
)

ROBERTA = BertFamily(
    model_type="roberta",
    class_prefix="Roberta",
    PREFIX="roberta.",
    schema=ConfigSchema({**SEGMENT_DEFAULTS, "vocab_size": 50265}, FIXED, {}, IGNORED),
    lm_head=LM_HEAD,
    classifiers={**CLASSIFIERS, "classify": "classifier.out_proj"},
    classifier_dense=ClassifierDense("classifier.dense", "tanh"),
    position_offset=None,
)
CAMEMBERT = replace(
    ROBERTA,
    model_type="camembert",
    class_prefix="Camembert",
    schema=ConfigSchema(SEGMENT_DEFAULTS, FIXED, {}, IGNORED),
)
XLM_ROBERTA = replace(CAMEMBERT, model_type="xlm-roberta", class_prefix="XLMRoberta")
