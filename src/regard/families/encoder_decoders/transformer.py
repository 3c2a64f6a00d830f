"""The Transformer of "Attention Is All You Need" (Vaswani et al. 2017): presets.

Its files are Marian's where the norms follow the sublayers, and PEGASUS's where they precede them.
"""

from __future__ import annotations

from typing import Any, Literal

from regard import spec
from regard.families.attention_options import self_attention
from regard.families.preset_settings import Settings, size, translation_family
from regard.system.errors import SettingError, did_you_mean

# The sizes of Table 3, and two small ones; `tiny` is that of the Multi30k literature.
SIZES = {
    "tiny": size(4, 128, 4, d_ff=256, dropout=0.3),
    "small": size(3, 256, 4, d_ff=1024, dropout=0.1),
    "base": size(
        6,
        512,
        8,
        65,
        "37,000 shared tokens; the paper's 65 M take about 41,000",
        d_ff=2048,
        dropout=0.1,
    ),
    "big": size(
        6,
        1024,
        16,
        213,
        "37,000 shared tokens; the paper's 213 M take about 35,800",
        d_ff=4096,
        dropout=0.3,
    ),
}
# What the paper settles, and a recipe may change.
_DETAILS: Settings = {
    "d_k": None,  # d_model / heads
    "d_v": None,  # d_model / heads
    "decoder_layers": None,  # as many as the encoder has
    "attention_dropout": 0.0,  # the paper drops on sublayer outputs only
    "feedforward_dropout": 0.0,
    "activation": "relu",
    "position": spec.Sinusoidal(),
    "relative": None,  # positions inside attention: Shaw's, T5's, RoPE, ALiBi
    "residual": spec.PostNorm(),
    "attention": "softmax",  # see attention_options
    "decoder_attention": None,  # as `attention`
    "max_length": 512,  # of Linformer's projections
}


def preset(
    name: str, source_vocabulary: int, target_vocabulary: int, **changes: Any
) -> spec.EncoderDecoder:
    """A named size, any of whose settings can be changed."""
    if name not in SIZES:
        raise SettingError(f"there is no preset {name!r}", did_you_mean(name, SIZES))
    return transformer(source_vocabulary, target_vocabulary, **{**SIZES[name].settings, **changes})


def transformer(
    source_vocabulary: int,
    target_vocabulary: int,
    *,
    d_model: int = 512,
    d_ff: int = 2048,
    heads: int = 8,
    layers: int = 6,
    dropout: float = 0.1,
    share: Literal["all", "target", "none"] = "all",
    **details: Any,
) -> spec.EncoderDecoder:
    """The paper's encoder–decoder at any size.

    `details` are those of `_DETAILS`: `position` is that at the input and `relative` that inside
    attention; `attention` and `decoder_attention` are attention options (`attention_options`);
    `max_length` is the longest input, where that matters.
    """
    unknown = sorted(set(details) - _DETAILS.keys())
    if unknown:
        name = unknown[0]
        raise SettingError(f"the Transformer has no option {name!r}", did_you_mean(name, _DETAILS))
    s = {**_DETAILS, **details}
    if d_model % heads and not (s["d_k"] and s["d_v"]):
        raise SettingError(
            f"d_model {d_model} is not divisible by {heads} heads", "change one of them"
        )
    softmax = spec.Attention(
        heads=heads,
        d_k=s["d_k"] or d_model // heads,
        d_v=s["d_v"] or d_model // heads,
        mixer=spec.SoftmaxAttention(s["attention_dropout"]),
    )
    encoder_attention, encoder_mask = self_attention(
        s["attention"], softmax, s["max_length"], causal=False
    )
    decoder_attention, decoder_mask = self_attention(
        s["decoder_attention"] or s["attention"], softmax, s["max_length"], causal=True
    )
    feedforward = spec.FeedForward(d_ff, s["activation"], s["feedforward_dropout"])
    residual = s["residual"]
    encoder_block = spec.Block(encoder_attention, feedforward, residual=residual, dropout=dropout)
    decoder_block = spec.Block(
        decoder_attention, feedforward, cross=softmax, residual=residual, dropout=dropout
    )
    # Pre-norm leaves the residual stream unnormalized, so each stack ends with a norm.
    final = spec.LayerNorm() if isinstance(residual, spec.PreNorm) else None
    decoder_layers = s["decoder_layers"] or layers
    return spec.EncoderDecoder(
        d_model=d_model,
        source=spec.Tokens(source_vocabulary, s["position"], dropout=dropout),
        target=spec.Tokens(target_vocabulary, s["position"], dropout=dropout),
        encoder=spec.Stack.of(layers, encoder_block, encoder_mask, s["relative"], final=final),
        decoder=spec.Stack.of(
            decoder_layers, decoder_block, decoder_mask, s["relative"], final=final
        ),
        share=share,
    )


# What the list of presets can change, beside the settings of the sizes; the rest is changed in the
# spec itself.
DEFAULTS = {
    key: value
    for key, value in _DETAILS.items()
    if key not in ("position", "relative", "residual", "max_length")
}
PRESETS = {"transformer": translation_family(transformer, SIZES, DEFAULTS)}
