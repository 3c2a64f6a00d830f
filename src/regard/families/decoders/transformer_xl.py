"""Transformer-XL (Dai et al. 2019): presets, in the sizes of its experiments.

A decoder with a segment memory and relative positions, in our own format. The paper's norms follow
the sublayers. Its embeddings for WikiText-103 become narrower for rarer words; here all of them are
as wide as the layers.
"""

from __future__ import annotations

from dataclasses import replace

from regard import spec
from regard.families.decoders.gpt2 import GPT2, PRESET_DEFAULTS
from regard.families.preset_settings import PresetFamily, Settings, size

# `memory` is that of training.
SIZES = {
    "tiny": size(2, 128, 4, memory=32),
    "base": size(16, 410, 10, 151, d_ff=2100, memory=150),
    "large": size(
        18,
        1024,
        16,
        257,
        "the paper's embeddings become narrower for rarer words; here all have d_model",
        memory=384,
    ),
    "enwik8-12": size(12, 512, 8, 41, vocabulary=204, context=512, memory=512),
    "enwik8-24": size(24, 1024, 8, 277, vocabulary=204, context=768, d_ff=3072, memory=768),
}
DEFAULTS = {**PRESET_DEFAULTS, "activation": "relu", "attention_dropout": 0.0}


def _make(settings: Settings) -> spec.Decoder:
    """Positions are distances, so the context is no part of the model."""
    model: spec.Decoder = GPT2.from_settings(settings)
    # Queries, keys and values have no biases but u and v, which all queries share (Section 3.3).
    stack = model.stack.with_blocks(
        attention=replace(model.stack.block.attention, bias=""),
        residual=spec.PostNorm(),
        position=spec.RelativeSinusoids(),
    )
    stack = replace(stack, final=None, scheme=spec.Segments(settings["memory"]))
    tokens = replace(model.tokens, position=None, scale=True, segment_tokens=False)
    return replace(model, tokens=tokens, stack=stack, heads=(spec.LMHead(bias=True),))


PRESETS = {"transformer-xl": PresetFamily("decoder", _make, SIZES, DEFAULTS, 267_735, 150, "base")}
