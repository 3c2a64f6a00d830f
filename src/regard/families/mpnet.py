"""MPNet, as transformers has it: RoBERTa without segments, and with T5's buckets of distance in every layer's scores."""

from __future__ import annotations

from regard import spec as kinds
from regard.families.bert_layout import FIXED, IGNORED, LABELS, SIZES, Dense, Kin
from regard.families.common import Layer
from regard.families.roberta import LM_HEAD
from regard.families.tensor_table import ConfigSchema

MPNET = Kin(
    "mpnet", "MPNet", "mpnet.",
    # Transformers lays distances into 32 buckets whatever the config says, and counts from token 1.
    keys=ConfigSchema({**SIZES, "vocab_size": 30527}, {**FIXED, "relative_attention_num_buckets": 32}, {}, IGNORED),
    head=LM_HEAD,
    layer=Layer(
        ("attention.attn.q", "attention.attn.k", "attention.attn.v"), "attention.attn.o", "attention.LayerNorm",
    ),
    labels={**LABELS, "classify": "classifier.out_proj"},
    drops={"classify": "hidden_dropout_prob", "tag": "hidden_dropout_prob"},
    dense=Dense("classifier.dense", "tanh"),
    offset=2,
    buckets=kinds.T5Bias(32, 128),
)  # fmt: skip
