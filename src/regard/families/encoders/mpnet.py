"""MPNet in transformers: RoBERTa without segments, with T5's relative position bias."""

from __future__ import annotations

from regard import spec
from regard.families.config_schema import ConfigSchema
from regard.families.encoders.bert_layout import (
    CLASSIFIERS,
    DEFAULTS,
    FIXED,
    IGNORED,
    BertFamily,
    ClassifierDense,
)
from regard.families.encoders.roberta import LM_HEAD, rows_of_positions
from regard.families.layer_names import LayerNames
from regard.families.preset_settings import (
    BASE_LAYERS,
    TINY_LAYERS,
    size,
)

MPNET = BertFamily(
    model_type="mpnet",
    class_prefix="MPNet",
    PREFIX="mpnet.",
    schema=ConfigSchema(
        {**DEFAULTS, "vocab_size": 30527},
        # transformers uses 32 buckets whatever the config says.
        {**FIXED, "relative_attention_num_buckets": 32},
        IGNORED,
    ),
    lm_head=LM_HEAD,
    layer=LayerNames(
        qkv=("attention.attn.q", "attention.attn.k", "attention.attn.v"),
        attention_output="attention.attn.o",
        attention_norm="attention.LayerNorm",
    ),
    classifiers={**CLASSIFIERS, "classify": "classifier.out_proj"},
    classifier_dropout=dict.fromkeys(("classify", "tag", "choice"), "hidden_dropout_prob"),
    classifier_dense=ClassifierDense("classifier.dense", "tanh"),
    position_offset=2,  # transformers fixes the padding token's id at 1
    relative_bias=spec.T5Bias(32, 128),
)

# ------------------------------------------------------------------ presets

# Song et al. 2020, in the size of BERT's base.
SIZES = {
    "tiny": size(*TINY_LAYERS),
    "base": size(*BASE_LAYERS, 110),
}
PRESETS = {"mpnet": MPNET.presets(SIZES, 30_527, computed=rows_of_positions, layer_norm_eps=1e-5)}
