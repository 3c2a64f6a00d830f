"""DistilBERT in transformers: BERT without segments and pooler, under config keys of its own.

In training it drops nothing after the attention, where here `dropout` acts as after the
feed-forward.
"""

from __future__ import annotations

from regard.families.block_config import BERT_KEYS
from regard.families.config_schema import Config, ConfigSchema
from regard.families.encoders.bert_layout import (
    DEFAULTS,
    FIXED,
    IGNORED,
    BertFamily,
    ClassifierDense,
    LMHeadNames,
)
from regard.families.layer_names import LayerNames
from regard.families.preset_settings import (
    TINY_LAYERS,
    size,
)

_KEYS = {
    "dim": "d_model",
    "n_layers": "layers",
    "n_heads": "heads",
    "hidden_dim": "d_ff",
    "activation": "activation",
    "dropout": "dropout",
    "attention_dropout": "attention_dropout",
    "layer_norm_eps": "eps",
}
_NAMES = {old: new for new, name in _KEYS.items() for old in BERT_KEYS if BERT_KEYS[old] == name}
# The epsilon of the norms is a constant in transformers.
_DEFAULTS: Config = {
    _NAMES.get(key, key): value for key, value in DEFAULTS.items() if key != "layer_norm_eps"
}
_DENSE = ClassifierDense("pre_classifier", "relu", input_dropout=False)

DISTILBERT = BertFamily(
    model_type="distilbert",
    class_prefix="DistilBert",
    PREFIX="distilbert.",
    schema=ConfigSchema(
        {**_DEFAULTS, "n_layers": 6, "qa_dropout": 0.1, "seq_classif_dropout": 0.2},
        {**FIXED, "sinusoidal_pos_embds": False, "tie_weights_": True, "layer_norm_eps": 1e-12},
        IGNORED,
        {"hidden_size": "dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads"},
    ),
    lm_head=LMHeadNames(
        dense="vocab_transform",
        norm="vocab_layer_norm",
        bias="vocab_projector.bias",
        decoder="vocab_projector",
    ),
    layer=LayerNames(
        qkv=("attention.q_lin", "attention.k_lin", "attention.v_lin"),
        attention_output="attention.out_lin",
        attention_norm="sa_layer_norm",
        feedforward_inner=("ffn.lin1",),
        feedforward_outer="ffn.lin2",
        feedforward_norm="output_layer_norm",
        layer="transformer.layer.{i}",
    ),
    classifier_dropout={
        "classify": "seq_classif_dropout",
        "tag": "dropout",
        "answer": "qa_dropout",
        "choice": "seq_classif_dropout",
    },
    keys=_KEYS,
    pooler=None,  # the classifier reads the first token itself
    classifier_dense=_DENSE,
    choice_dense=_DENSE,
)

# ------------------------------------------------------------------ presets

# Sanh et al. 2019: every second layer of BERT.
SIZES = {
    "tiny": size(*TINY_LAYERS),
    "base": size(6, 768, 12, 66, "with the masked-language-model head, of 0.6 M"),
}
PRESETS = {"distilbert": DISTILBERT.presets(SIZES, 30_522)}
