"""T5 (Raffel et al. 2020): relative positions as a bias of the scores, RMS norms before the sublayers, no biases."""

from __future__ import annotations

from typing import Any

from regard import spec
from regard.families.sizes import chosen

PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {"layers": 2, "d_model": 128, "heads": 4, "d_k": 32},
    "small": {"layers": 6, "d_model": 512, "heads": 8, "d_ff": 2048},
    "base": {"layers": 12, "d_model": 768, "heads": 12, "d_ff": 3072},
    "large": {"layers": 24, "d_model": 1024, "heads": 16, "d_ff": 4096},
    "3b": {"layers": 24, "d_model": 1024, "heads": 32, "d_k": 128, "d_ff": 16384},
    "11b": {"layers": 24, "d_model": 1024, "heads": 128, "d_k": 128, "d_ff": 65536},
}
_DEFAULTS = {"d_ff": None, "d_k": 64, "decoder_layers": None, "dropout": 0.1, "activation": "relu"}


def preset(
    name: str, vocabulary: int = 32128, context: int = 512, **changes: Any
) -> spec.EncoderDecoder:
    """Version 1.0. Positions are distances, so `context` is no part of the model."""
    s = chosen("t5", PRESETS, name, _DEFAULTS, changes)
    norm, d_model, dropout = spec.RMSNorm(), s["d_model"], s["dropout"]
    attention = spec.Attention(
        s["heads"], s["d_k"], s["d_k"], bias="", scale=1.0, mixer=spec.SoftmaxAttention(dropout)
    )
    feedforward = spec.FeedForward(s["d_ff"], s["activation"], dropout, bias=False)
    blocks = [
        spec.Block(attention, feedforward, cross, spec.PreNorm(), norm, dropout)
        for cross in (None, attention)
    ]
    shape: dict[str, Any] = {"position": spec.T5Bias(), "final": norm, "dropout": dropout}
    tokens = spec.Tokens(vocabulary, None, scale=False, dropout=dropout)
    return spec.EncoderDecoder(
        d_model,
        tokens,
        tokens,
        spec.Stack(s["layers"], blocks[0], **shape),
        spec.Stack(s["decoder_layers"] or s["layers"], blocks[1], spec.CausalMask(), **shape),
        spec.LMHead(scale=d_model**-0.5),
    )
