"""T5 (Raffel et al. 2020): presets, and the layout of its files in transformers."""

from __future__ import annotations

from typing import Any

from regard import spec
from regard.families.encoder_decoders import mt5
from regard.families.encoder_decoders.t5_layout import KEYS, SCHEMA, T5Family, both_stacks
from regard.families.preset_settings import (
    BASE_LAYERS,
    LARGE_LAYERS,
    ROUNDED,
    FromConfig,
    PresetFamily,
    Size,
)

# ------------------------------------------------------------------ presets

SIZES = {
    "tiny": Size({"layers": 2, "d_model": 128, "heads": 4, "d_k": 32}),
    "small": Size({"layers": 6, "d_model": 512, "heads": 8, "d_ff": 2048}, 60, ROUNDED),
    "base": Size({**BASE_LAYERS, "d_ff": 3072}, 220, ROUNDED),
    "large": Size(
        {**LARGE_LAYERS, "d_ff": 4096},
        770,
        "the paper's number; its released model has 737.7 M",
    ),
    "3b": Size(
        {"layers": 24, "d_model": 1024, "heads": 32, "d_k": 128, "d_ff": 16384}, 2800, ROUNDED
    ),
    "11b": Size(
        {"layers": 24, "d_model": 1024, "heads": 128, "d_k": 128, "d_ff": 65536}, 11_000, ROUNDED
    ),
}
PRESET_DEFAULTS = {
    "d_ff": None,  # 4 d_model
    "d_k": 64,
    "decoder_layers": None,  # as many as the encoder has
    "dropout": 0.1,
    "activation": "relu",
}


def _make(settings: Any) -> spec.EncoderDecoder:
    """Version 1.0. Positions are distances, so the context is no part of it."""
    s = settings
    d_model = s["d_model"]
    dropout = s["dropout"]
    norm = spec.RMSNorm()
    # T5 does not divide the scores by √d_k; its initialization accounts for that.
    attention = spec.Attention(
        s["heads"], s["d_k"], s["d_k"], bias="", scale=1.0, mixer=spec.SoftmaxAttention(dropout)
    )
    feedforward = spec.FeedForward(s["d_ff"], s["activation"], dropout, bias=False)
    block = spec.Block(attention, feedforward, None, spec.PreNorm(), norm, dropout)
    encoder, decoder = both_stacks(block, spec.T5Bias(), s["layers"], s["decoder_layers"])
    tokens = spec.Tokens(s["vocabulary"], None, scale=False, dropout=dropout)
    lm_head = spec.LMHead(scale=d_model**-0.5)
    return spec.EncoderDecoder(d_model, tokens, tokens, encoder, decoder, (lm_head,))


# ------------------------------------------------------------------ files

T5 = T5Family("t5", "T5", SCHEMA, can_scale=True)


# ------------------------------------------------------------------ version 1.1


# The sizes of mT5, which followed it: gated, and with an output matrix of its own. The counts are
# those of Chung et al. 2022 (Flan-T5), who trained it further.
SIZES_1_1 = {
    "tiny": mt5.SIZES["tiny"],
    "small": Size(mt5.SIZES["small"].settings, 80, ROUNDED),
    "base": Size(mt5.SIZES["base"].settings, 250, ROUNDED),
    "large": Size(mt5.SIZES["large"].settings, 780),
    "xl": Size(mt5.SIZES["xl"].settings, 3000, ROUNDED),
    "xxl": Size(mt5.SIZES["xxl"].settings, 11_000, ROUNDED),
}
_make_1_1 = FromConfig(
    T5.to_spec,
    {**KEYS, **mt5.PRESET_KEYS},
    {"tie_word_embeddings": False, "feed_forward_proj": "gated-gelu"},
)
PRESETS = {
    "t5": PresetFamily("encoder-decoder", _make, SIZES, PRESET_DEFAULTS, 32_128, 512, "base"),
    "t5-v1.1": PresetFamily(
        "encoder-decoder", _make_1_1, SIZES_1_1, mt5.PRESET_DEFAULTS, 32_128, 512, "base"
    ),
}
