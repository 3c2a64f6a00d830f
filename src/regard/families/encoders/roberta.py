"""RoBERTa in transformers, with CamemBERT and XLM-RoBERTa, which differ in name only.

BERT with positions that count from behind the padding token's id, and a classifier with a dense
layer of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from regard.families.config_schema import ConfigSchema
from regard.families.encoders.bert_layout import (
    CLASSIFIERS,
    FIXED,
    IGNORED,
    SEGMENT_DEFAULTS,
    BertFamily,
    ClassifierDense,
    LMHeadNames,
)
from regard.families.preset_settings import ENCODER_DEFAULTS, ConfigPresets, encoder_config

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

# ------------------------------------------------------------------ presets

# Liu et al. 2019; Martin et al. 2020; Conneau et al. 2020. All have the same layers.
PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {"layers": 2, "d_model": 128, "heads": 2},
    "base": {"layers": 12, "d_model": 768, "heads": 12},
    "large": {"layers": 24, "d_model": 1024, "heads": 16},
}


def _presets(family: BertFamily) -> ConfigPresets:
    def config(settings: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "architectures": [f"{family.class_prefix}ForMaskedLM"],
            **encoder_config(settings),
            "vocab_size": settings["vocabulary"],
            "layer_norm_eps": 1e-5,
            "type_vocab_size": 1,
            # Two rows of the table belong to no position: those up to the padding token's id.
            "pad_token_id": 1,
            "max_position_embeddings": settings["context"] + 2,
        }

    return ConfigPresets(family.model_type, PRESETS, ENCODER_DEFAULTS, config, family.to_spec)


preset = _presets(ROBERTA)
camembert_preset = _presets(CAMEMBERT)
xlm_roberta_preset = _presets(XLM_ROBERTA)
