"""MPNet, as transformers has it: RoBERTa without segments, and with T5's buckets of distance in every layer's scores."""

from __future__ import annotations

from regard import spec as kinds
from regard.interop.encoder import FIXED, IGNORED, LABELS, SIZES, Dense, Kin
from regard.interop.parts import Layer
from regard.interop.roberta import LM_HEAD
from regard.interop.table import Keys

MPNET = Kin(
    "mpnet", "MPNet", "mpnet.",
    # Transformers lays distances into 32 buckets whatever the config says, and counts from token 1.
    keys=Keys({**SIZES, "vocab_size": 30527}, {**FIXED, "relative_attention_num_buckets": 32}, {}, IGNORED),
    head=LM_HEAD,
    layer=Layer(
        ("attention.attn.q", "attention.attn.k", "attention.attn.v"), "attention.attn.o", "attention.LayerNorm",
    ),
    labels={**LABELS, "classify": "classifier.out_proj"},
    drops={"classify": "hidden_dropout_prob", "tag": "hidden_dropout_prob"},
    dense=Dense("classifier.dense", "tanh"),
    offset=2,
    buckets=kinds.Buckets(32, 128),
)  # fmt: skip
