"""BERT (Devlin et al. 2019): presets, and the layout of its files in transformers."""

from __future__ import annotations

from typing import Any

from regard import spec
from regard.families.attention_options import self_attention
from regard.families.config_schema import ConfigSchema
from regard.families.encoders.bert_layout import (
    CLASSIFIERS,
    FIXED,
    HEADS,
    IGNORED,
    SEGMENT_DEFAULTS,
    BertFamily,
    Heads,
    LMHeadNames,
)
from regard.families.preset_settings import (
    BASE_LAYERS,
    ENCODER_DEFAULTS,
    LARGE_LAYERS,
    NO_POOLER,
    TINY_LAYERS,
    PresetFamily,
    size,
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
DEFAULTS: dict[str, Any] = {
    **ENCODER_DEFAULTS,
    "d_k": None,  # d_model / heads
    "attention": "softmax",  # see attention_options
    "next_sentence": False,  # with its head
}
NORM = spec.LayerNorm(1e-12)


def _masked_language_model(settings: Any) -> spec.Encoder:
    transform = spec.HeadTransform(settings["d_model"], settings["activation"], NORM)
    head = spec.LMHead(True, transform=transform)
    if not settings["next_sentence"]:
        return encoder(settings, head)
    return encoder(settings, spec.Pool(), head, spec.ClassifierHead(2, "next"))


preset = PresetFamily("encoder", _masked_language_model, SIZES, DEFAULTS, 30_522, 512, "base")
PRESETS = {"bert": preset}


def encoder(settings: Any, *heads: spec.Head, embedding_size: int | None = None) -> spec.Encoder:
    """The encoder of these settings, with the given heads.

    Embeddings narrower than d_model are projected to it, as in ELECTRA.
    """
    s = settings
    softmax = spec.Attention(
        s["heads"], s["d_k"], s["d_k"], mixer=spec.SoftmaxAttention(s["attention_dropout"])
    )
    attention, mask = self_attention(s["attention"], softmax, s["context"], causal=False)
    feedforward = spec.FeedForward(s["d_ff"], s["activation"])
    block = spec.Block(attention, feedforward, norm=NORM, dropout=s["dropout"])
    tokens = spec.Tokens(
        s["vocabulary"],
        spec.LearnedPosition(s["context"]),
        scale=False,
        dropout=s["dropout"],
        segments=2,
        norm=NORM,
        width=None if embedding_size == s["d_model"] else embedding_size,
    )
    return spec.Encoder(s["d_model"], tokens, spec.Stack.of(s["layers"], block, mask), heads)


# ------------------------------------------------------------------ files

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
