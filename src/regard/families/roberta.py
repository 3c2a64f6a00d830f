"""RoBERTa, as transformers has it: BERT with positions that count from behind the padding token, and a classifier with a
dense layer of its own. CamemBERT and XLM-RoBERTa are the same under other names."""

from __future__ import annotations

from dataclasses import replace

from regard.families.bert_layout import FIXED, IGNORED, LABELS, SEGMENTED, Dense, Head, Kin
from regard.families.tensor_table import ConfigSchema

LM_HEAD = Head("lm_head.dense", "lm_head.layer_norm", "lm_head.bias", "lm_head.decoder", "gelu")

ROBERTA = Kin(
    "roberta",
    "Roberta",
    "roberta.",
    keys=ConfigSchema({**SEGMENTED, "vocab_size": 50265}, FIXED, {}, IGNORED),
    head=LM_HEAD,
    labels={**LABELS, "classify": "classifier.out_proj"},
    dense=Dense("classifier.dense", "tanh"),
    offset=None,
)
CAMEMBERT = replace(
    ROBERTA, name="camembert", stem="Camembert", keys=ConfigSchema(SEGMENTED, FIXED, {}, IGNORED)
)
XLM_ROBERTA = replace(CAMEMBERT, name="xlm-roberta", stem="XLMRoberta")
