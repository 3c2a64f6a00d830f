"""ELECTRA, as transformers has it: a generator of masked words (ForMaskedLM) and a discriminator that detects which words
were replaced (ForPreTraining). BERT without a pooler, and with narrow embeddings that are widened."""

from __future__ import annotations

from regard.families.bert_layout import FIXED, IGNORED, LABELS, SEGMENTED, TOPS, Dense, Head, Kin
from regard.families.tensor_table import ConfigSchema

ELECTRA = Kin(
    "electra", "Electra", "electra.",
    keys=ConfigSchema(
        {
            **SEGMENTED, "embedding_size": 128, "hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024,
        },
        FIXED,
        {},
        # Of multiple choice only.
        IGNORED | {"summary_activation", "summary_last_dropout", "summary_type", "summary_use_proj"},
    ),
    head=Head(
        "generator_predictions.dense", "generator_predictions.LayerNorm", "generator_lm_head.bias", "generator_lm_head",
        "gelu",
    ),
    tops={**TOPS, "ForPreTraining": (False, "detect")},
    labels={**LABELS, "classify": "classifier.out_proj", "detect": "discriminator_predictions.dense_prediction"},
    hidden="discriminator_predictions.dense",
    pooler=None,
    dense=Dense("classifier.dense", "gelu"),
    project="embeddings_project",
)  # fmt: skip
