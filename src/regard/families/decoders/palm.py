"""PaLM (Chowdhery et al. 2022, Table 1): presets.

Attention and feed-forward in parallel, one key head, SwiGLU, RoPE, no biases. transformers has no
such model, so its files are in our own format.
"""

from __future__ import annotations

from typing import Any

from regard import spec
from regard.families.preset_settings import PresetFamily, size

SIZES = {
    "tiny": size(4, 128, 4, d_k=32),
    "8b": size(32, 4096, 16, 8630),
    "62b": size(64, 8192, 32, 62_500),
    "540b": size(118, 18432, 48, 540_350),
}
DEFAULTS = {"d_ff": None, "d_k": 256, "dropout": 0.0, "attention_dropout": 0.0}


def _make(settings: Any) -> spec.Decoder:
    """Positions are rotations, so the context is no part of the model.

    The embeddings are shared with the output, whose logits are scaled by d_model^-½ (Section 2).
    """
    s = settings
    norm = spec.LayerNorm(bias=False)
    attention = spec.Attention(
        s["heads"],
        s["d_k"],
        s["d_k"],
        groups=1,  # multi-query attention
        bias="",
        mixer=spec.SoftmaxAttention(s["attention_dropout"]),
    )
    block = spec.Block(
        attention,
        spec.GatedFeedForward(s["d_ff"]),
        residual=spec.Parallel(1),
        norm=norm,
        dropout=s["dropout"],
    )
    return spec.Decoder(
        s["d_model"],
        spec.Tokens(s["vocabulary"], None, scale=False, dropout=s["dropout"]),
        spec.Stack.of(s["layers"], block, spec.CausalMask(), spec.Rope(), norm),
        (spec.LMHead(scale=s["d_model"] ** -0.5),),
    )


PRESETS = {"palm": PresetFamily("decoder", _make, SIZES, DEFAULTS, 256_000, 2048, "8b")}
