"""DistilBERT, as transformers has it: BERT without segments and pooler, in words of its own.

In training it drops nothing after the attention, where here `dropout` acts as after the feed-forward.
"""

from __future__ import annotations

from typing import Any

from regard.families.bert_layout import FIXED, IGNORED, SIZES, Dense, Head, Kin
from regard.families.common import Layer
from regard.families.tensor_table import ConfigSchema

_WORDS = {
    "hidden_size": "dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads",
    "intermediate_size": "hidden_dim", "hidden_act": "activation", "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "attention_dropout",
}  # fmt: skip
_READ: dict[str, Any] = {
    _WORDS.get(key, key): value for key, value in SIZES.items() if key != "layer_norm_eps"
}

DISTILBERT = Kin(
    "distilbert", "DistilBert", "distilbert.",
    keys=ConfigSchema(
        {**_READ, "n_layers": 6, "qa_dropout": 0.1, "seq_classif_dropout": 0.2},
        {**FIXED, "sinusoidal_pos_embds": False, "tie_weights_": True, "layer_norm_eps": 1e-12},
        {"hidden_size": "dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads"},
        IGNORED,
    ),
    head=Head("vocab_transform", "vocab_layer_norm", "vocab_projector.bias", "vocab_projector"),
    layer=Layer(
        ("attention.q_lin", "attention.k_lin", "attention.v_lin"), "attention.out_lin", "sa_layer_norm",
        "ffn.lin1", "ffn.lin2", "output_layer_norm", "transformer.layer.{i}",
    ),
    drops={"classify": "seq_classif_dropout", "tag": "dropout", "answer": "qa_dropout"},
    words=_WORDS,
    pooler=None,
    dense=Dense("pre_classifier", "relu", dropped=False),
)  # fmt: skip
