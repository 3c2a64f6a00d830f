"""BERT, as transformers has it: the encoder from which its kin depart."""

from __future__ import annotations

from regard.families.bert_layout import FIXED, IGNORED, LABELS, SEGMENTED, TOPS, Head, Kin
from regard.families.tensor_table import ConfigSchema

BERT = Kin(
    "bert", "Bert", "bert.",
    # Google's configs describe a pooler of which only the first line was ever built.
    keys=ConfigSchema(SEGMENTED, FIXED, {}, IGNORED | {
        "directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers",
        "pooler_size_per_head", "pooler_type",
    }),
    head=Head(
        "cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm",
        "cls.predictions.bias", "cls.predictions.decoder",
    ),
    tops={**TOPS, "ForPreTraining": (True, "next"), "ForNextSentencePrediction": (False, "next")},
    labels={**LABELS, "next": "cls.seq_relationship"},
)  # fmt: skip
