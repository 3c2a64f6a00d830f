"""The decoder of GPT-2, GPT-3 and Transformer-XL: pre-norm, and what its presets can change."""

from __future__ import annotations

from typing import Any

from regard import spec

PRESET_DEFAULTS: dict[str, Any] = {
    "d_ff": None,  # 4 d_model
    "d_k": None,  # d_model / heads
    "dropout": 0.1,
    "attention_dropout": None,  # as `dropout`
    "activation": "gelu_tanh",
}


def decoder(settings: Any) -> spec.Decoder:
    """The decoder of these settings."""
    s = settings
    dropout = s["dropout"]
    attention_dropout = s["attention_dropout"]
    if attention_dropout is None:
        attention_dropout = dropout
    mixer = spec.SoftmaxAttention(attention_dropout)
    block = spec.Block(
        spec.Attention(s["heads"], s["d_k"], s["d_k"], mixer=mixer),
        spec.FeedForward(s["d_ff"], s["activation"]),
        residual=spec.PreNorm(),
        dropout=dropout,
    )
    tokens = spec.Tokens(
        s["vocabulary"],
        spec.LearnedPosition(s["context"]),
        scale=False,
        dropout=dropout,
        segment_tokens=True,
    )
    stack = spec.Stack.of(s["layers"], block, spec.CausalMask(), final=spec.LayerNorm())
    return spec.Decoder(s["d_model"], tokens, stack)
