"""The decoder of GPT-2, GPT-3 and Transformer-XL: pre-norm, and what its presets can change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regard import spec
from regard.families.attention_options import (
    parse_attention,
    parse_compressed_memory,
    self_attention,
)

PRESET_DEFAULTS: dict[str, Any] = {
    "d_ff": None,  # 4 d_model
    "d_k": None,  # d_model / heads
    "dropout": 0.1,
    "attention_dropout": None,  # as `dropout`
    "activation": "gelu_tanh",
    "attention": "softmax",  # see attention_options
    "memory": None,  # positions of the segment memory
    "compressed": None,  # as 64:4, see attention_options
}


def decoder(settings: Mapping[str, Any]) -> spec.Decoder:
    """The decoder of these settings. `attention` is an attention option.

    With a `memory`, the model reads segments of `context` tokens and has relative positions
    (Transformer-XL); `compressed` is an option for what leaves the memory (Rae et al. 2020).
    """
    s = settings
    context = s["context"]
    dropout = s["dropout"]
    softmax = spec.Attention(
        s["heads"], s["d_k"], s["d_k"], mixer=spec.SoftmaxAttention(_attention_dropout(s))
    )
    attention, mask = self_attention(s["attention"], softmax, context, causal=True)
    feedforward = spec.FeedForward(s["d_ff"], s["activation"])
    block = spec.Block(attention, feedforward, residual=spec.PreNorm(), dropout=dropout)
    input_position = None if s["memory"] else spec.LearnedPosition(context)
    relative_position = spec.RelativeSinusoids() if s["memory"] else None
    scheme: spec.Scheme = spec.Plain()
    if s["memory"]:
        compressed = parse_compressed_memory(s["compressed"]) if s["compressed"] else None
        scheme = spec.Segments(s["memory"], compressed)
    stack = spec.Stack.of(
        s["layers"],
        block,
        mask,
        relative_position,
        final=spec.LayerNorm(),
        scheme=scheme,
    )
    tokens = spec.Tokens(
        s["vocabulary"],
        input_position,
        scale=False,
        dropout=dropout,
        segment_tokens=not s["memory"],
    )
    return spec.Decoder(s["d_model"], tokens, stack)


def _attention_dropout(settings: Mapping[str, Any]) -> float:
    """The dropout of attention weights: as of the rest, unless it is set or impossible."""
    if settings["attention_dropout"] is not None:
        return float(settings["attention_dropout"])
    mixer, _ = parse_attention(settings["attention"])
    # Linear attention does not compute attention weights.
    return 0.0 if isinstance(mixer, spec.LinearAttention) else settings["dropout"]
