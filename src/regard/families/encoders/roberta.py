"""RoBERTa in transformers, with CamemBERT and XLM-RoBERTa, which differ in name only.

BERT with positions that count from behind the padding token's id, and a classifier with a dense
layer of its own.
"""

from __future__ import annotations

from dataclasses import replace

from regard.families.config_schema import Config, ConfigSchema
from regard.families.encoders.bert_layout import (
    CLASSIFIER_DROPOUT,
    CLASSIFIERS,
    FIXED,
    IGNORED,
    SEGMENT_DEFAULTS,
    BertFamily,
    ClassifierDense,
    LMHeadNames,
)
from regard.families.preset_settings import (
    BASE_LAYERS,
    LARGE_LAYERS,
    ROUNDED,
    TINY_LAYERS,
    PresetFamily,
    Settings,
    Size,
    size,
)

LM_HEAD = LMHeadNames(
    dense="lm_head.dense",
    norm="lm_head.layer_norm",
    bias="lm_head.bias",
    decoder="lm_head.decoder",
    activation="gelu",  # whatever hidden_act says
)

ROBERTA = BertFamily(
    model_type="roberta",
    CAUSAL_CLASS="RobertaForCausalLM",
    class_prefix="Roberta",
    PREFIX="roberta.",
    schema=ConfigSchema({**SEGMENT_DEFAULTS, "vocab_size": 50265}, FIXED, IGNORED),
    lm_head=LM_HEAD,
    classifiers={**CLASSIFIERS, "classify": "classifier.out_proj"},
    classifier_dropout={**CLASSIFIER_DROPOUT, "choice": "hidden_dropout_prob"},
    classifier_dense=ClassifierDense("classifier.dense", "tanh"),
    position_offset=None,
)
CAMEMBERT = replace(
    ROBERTA,
    model_type="camembert",
    CAUSAL_CLASS="CamembertForCausalLM",
    class_prefix="Camembert",
    schema=ConfigSchema(SEGMENT_DEFAULTS, FIXED, IGNORED),
)
XLM_ROBERTA = replace(
    CAMEMBERT,
    model_type="xlm-roberta",
    CAUSAL_CLASS="XLMRobertaForCausalLM",
    class_prefix="XLMRoberta",
)

# ------------------------------------------------------------------ presets

# Liu et al. 2019; Martin et al. 2020; Conneau et al. 2020. All have the same layers.


PRESET_CONSTANTS: Settings = {"layer_norm_eps": 1e-5, "type_vocab_size": 1, "pad_token_id": 1}


def rows_of_positions(settings: Settings) -> Config:
    """Two rows of the table belong to no position: those up to the padding token's id."""
    return {"max_position_embeddings": settings["context"] + 2}


def _family(family: BertFamily, vocabulary: int, base: Size, large: Size) -> PresetFamily:
    sizes = {"tiny": size(*TINY_LAYERS), "base": base, "large": large}
    return family.presets(sizes, vocabulary, computed=rows_of_positions, **PRESET_CONSTANTS)


def _released(millions: int) -> str:
    return f"the paper's number; its released model has {millions} M"


PRESETS = {
    "roberta": _family(ROBERTA, 50_265, size(*BASE_LAYERS, 125), size(*LARGE_LAYERS, 355)),
    "camembert": _family(
        CAMEMBERT, 32_005, size(*BASE_LAYERS, 110, ROUNDED), size(*LARGE_LAYERS, 335, ROUNDED)
    ),
    "xlm-roberta": _family(
        XLM_ROBERTA,
        250_002,
        size(*BASE_LAYERS, 270, _released(278)),
        size(*LARGE_LAYERS, 550, _released(560)),
    ),
}
