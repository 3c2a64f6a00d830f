"""BART (Lewis et al. 2020): the Transformer with learned positions, GELU, and a norm after the embeddings."""

from __future__ import annotations

from typing import Any

from regard import spec
from regard.families.sizes import chosen

PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {"layers": 2, "d_model": 128, "heads": 4},
    "base": {"layers": 6, "d_model": 768, "heads": 12},
    "large": {"layers": 12, "d_model": 1024, "heads": 16},
}
_DEFAULTS = {
    "d_ff": None, "d_k": None, "decoder_layers": None, "dropout": 0.1, "attention_dropout": 0.0,
    "feedforward_dropout": 0.0, "activation": "gelu",
}  # fmt: skip
_OFFSET = 2  # rows of the position table that belong to no position


def preset(
    name: str, vocabulary: int = 50265, context: int = 1024, **changes: Any
) -> spec.EncoderDecoder:
    s = chosen("bart", PRESETS, name, _DEFAULTS, changes)
    attention = spec.Attention(
        s["heads"], s["d_k"], s["d_k"], mixer=spec.SoftmaxAttention(s["attention_dropout"])
    )
    feedforward = spec.FeedForward(s["d_ff"], s["activation"], s["feedforward_dropout"])
    place = spec.LearnedPosition(context, _OFFSET)
    tokens = spec.Tokens(vocabulary, place, False, s["dropout"], norm=spec.LayerNorm())
    blocks = [
        spec.Block(attention, feedforward, cross, dropout=s["dropout"])
        for cross in (None, attention)
    ]
    return spec.EncoderDecoder(
        s["d_model"],
        tokens,
        tokens,
        spec.Stack(s["layers"], blocks[0]),
        spec.Stack(s["decoder_layers"] or s["layers"], blocks[1], spec.CausalMask()),
    )
