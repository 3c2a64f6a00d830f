"""BART (Lewis et al. 2020): presets, and the layout of its files in transformers.

The Transformer with learned positions, GELU, and a norm after the embeddings. A classifier of texts
reads the text on both sides, and scores the labels from the decoder's state at the last end token.
"""

from __future__ import annotations

from regard import spec
from regard.families.encoder_decoders.fairseq_layout import (
    HEADS,
    PRESET_DEFAULTS,
    FairseqFamily,
)
from regard.families.heads import END_TOKEN_MODULES, SPANS, HeadLayout, end_token_labels
from regard.families.preset_settings import ROUNDED, PresetFamily, size

_END = 2  # eos_token_id where config.json does not say it

BART_HEADS = {
    **HEADS,
    "ForSequenceClassification": HeadLayout(end_token_labels(_END), END_TOKEN_MODULES),
    "ForQuestionAnswering": SPANS,
}
BART = FairseqFamily(
    "bart", "Bart", spec.PostNorm(), 50_265, learned_positions=True, heads=BART_HEADS
)

# ------------------------------------------------------------------ presets

SIZES = {
    "tiny": size(2, 128, 4),
    "base": size(6, 768, 12, 140),
    "large": size(12, 1024, 16, 400, ROUNDED),
}
_DEFAULTS = {**PRESET_DEFAULTS, "d_k": None}  # d_model / heads
PRESETS = {
    "bart": PresetFamily(
        "encoder-decoder", BART.from_settings(False), SIZES, _DEFAULTS, 50_265, 1024, "base"
    )
}
