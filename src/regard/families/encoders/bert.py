"""BERT (Devlin et al. 2019): presets, and the layout of its files in transformers."""

from __future__ import annotations

from typing import Any

from regard.families.config_schema import Config, ConfigSchema
from regard.families.encoders.bert_layout import (
    CLASSIFIERS,
    FIXED,
    HEADS,
    IGNORED,
    SEGMENT_DEFAULTS,
    BertFamily,
    Heads,
    LMHeadNames,
    with_attention,
)
from regard.families.preset_settings import (
    BASE_LAYERS,
    ENCODER_DEFAULTS,
    LARGE_LAYERS,
    NO_POOLER,
    TINY_LAYERS,
    Settings,
    size,
)

BERT = BertFamily(
    model_type="bert",
    CAUSAL_CLASS="BertLMHeadModel",
    class_prefix="Bert",
    PREFIX="bert.",
    schema=ConfigSchema(
        SEGMENT_DEFAULTS,
        FIXED,
        # Google's configs describe a pooler of which only the first layer was ever built.
        IGNORED
        | {
            "directionality",
            "pooler_fc_size",
            "pooler_num_attention_heads",
            "pooler_num_fc_layers",
            "pooler_size_per_head",
            "pooler_type",
        },
    ),
    lm_head=LMHeadNames(
        dense="cls.predictions.transform.dense",
        norm="cls.predictions.transform.LayerNorm",
        bias="cls.predictions.bias",
        decoder="cls.predictions.decoder",
    ),
    heads={
        **HEADS,
        "ForPreTraining": Heads(language_model=True, task="next"),
        "ForNextSentencePrediction": Heads(task="next"),
    },
    classifiers={**CLASSIFIERS, "next": "cls.seq_relationship"},
)

# ------------------------------------------------------------------ presets

# The paper's two sizes, and the small ones of Turc et al. 2019.
SIZES = {
    "tiny": size(*TINY_LAYERS, 4.4),
    "mini": size(4, 256, 4, 11.3, NO_POOLER),
    "small": size(4, 512, 8, 29.1, NO_POOLER),
    "medium": size(8, 512, 8, 41.7, NO_POOLER),
    "base": size(*BASE_LAYERS, 110),
    "large": size(*LARGE_LAYERS, 340, "the paper's number; its released model has 335 M"),
}
DEFAULTS: Settings = {
    **ENCODER_DEFAULTS,
    "d_k": None,  # d_model / heads
    "attention": "softmax",  # see attention_options
    "next_sentence": False,  # with its head
}


def _next_sentence(settings: Any) -> Config:
    kind = "ForPreTraining" if settings["next_sentence"] else "ForMaskedLM"
    return {"architectures": [f"Bert{kind}"]}


preset = with_attention(BERT.presets(SIZES, 30_522, defaults=DEFAULTS, computed=_next_sentence))
PRESETS = {"bert": preset}
