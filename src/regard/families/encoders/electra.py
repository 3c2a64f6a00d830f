"""ELECTRA (Clark et al. 2020): presets, and the layout of its files in transformers.

A small generator fills in masked tokens (ForMaskedLM); the discriminator detects which tokens it
replaced (ForPreTraining). BERT without a pooler, and with narrow embeddings that are projected.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from regard import spec
from regard.families.config_schema import ConfigSchema
from regard.families.encoders.bert import DEFAULTS
from regard.families.encoders.bert_layout import (
    CLASSIFIER_DROPOUT,
    CLASSIFIERS,
    FIXED,
    HEADS,
    IGNORED,
    SEGMENT_DEFAULTS,
    BertFamily,
    ClassifierDense,
    Heads,
    LMHeadNames,
    with_attention,
)
from regard.families.preset_settings import BASE_LAYERS, LARGE_LAYERS, ROUNDED, size

ELECTRA = BertFamily(
    model_type="electra",
    CAUSAL_CLASS="ElectraForCausalLM",
    class_prefix="Electra",
    PREFIX="electra.",
    schema=ConfigSchema(
        {
            **SEGMENT_DEFAULTS,
            "embedding_size": 128,  # narrower than hidden_size: projected
            "hidden_size": 256,
            "num_attention_heads": 4,
            "intermediate_size": 1024,
            "summary_last_dropout": 0.1,  # before the scores of choices
        },
        # What is scored of each choice is the first token, through a dense layer.
        {
            **FIXED,
            "summary_activation": "gelu",
            "summary_type": "first",
            "summary_use_proj": True,
        },
        IGNORED,
        unsupported=frozenset({"summary_first_dropout", "summary_proj_to_labels"}),
    ),
    lm_head=LMHeadNames(
        dense="generator_predictions.dense",
        norm="generator_predictions.LayerNorm",
        bias="generator_lm_head.bias",
        decoder="generator_lm_head",
        activation="gelu",
    ),
    heads={**HEADS, "ForPreTraining": Heads(task="detect")},
    classifiers={
        **CLASSIFIERS,
        "classify": "classifier.out_proj",
        "detect": "discriminator_predictions.dense_prediction",
    },
    detection_dense="discriminator_predictions.dense",
    pooler=None,
    classifier_dropout={**CLASSIFIER_DROPOUT, "choice": "summary_last_dropout"},
    classifier_dense=ClassifierDense("classifier.dense", "gelu"),
    choice_dense=ClassifierDense("sequence_summary.summary", "gelu", input_dropout=False),
    embedding_projection="embeddings_project",
)

# ------------------------------------------------------------------ presets

# `width` is that of the embeddings; `generator` the generator's size relative to the
# discriminator's (Table 6).
SIZES = {
    "tiny": size(2, 128, 4, width=64, generator=0.5),
    "small": size(12, 256, 4, 14, ROUNDED, width=128, generator=0.25),
    "base": size(*BASE_LAYERS, 110, width=768, generator=1 / 3),
    "large": size(*LARGE_LAYERS, 335, width=1024, generator=0.25),
}
_DEFAULTS = {key: value for key, value in DEFAULTS.items() if key != "next_sentence"}
_family = partial(
    ELECTRA.presets, SIZES, 30_522, defaults=_DEFAULTS, keys={"embedding_size": "width"}
)
_discriminator = with_attention(_family(architectures=["ElectraForPreTraining"]))
_generator = with_attention(_family(architectures=["ElectraForMaskedLM"]))


def _both(settings: Any) -> tuple[spec.Encoder, spec.Encoder]:
    """The discriminator and the generator, whose embeddings have one width, to be shared."""
    small = dict(settings)
    for key in ("heads", "d_ff"):
        small[key] = max(1, round(settings[key] * settings["generator"]))
    # Heads keep their size, so that d_model follows from their number.
    small["d_model"] = small["heads"] * settings["d_k"]
    return _discriminator.make(settings), _generator.make(small)


preset = replace(_discriminator, make=_both)
# The discriminator is the one of the two models that fine-tuning keeps.
PRESETS = {"electra": _discriminator}
