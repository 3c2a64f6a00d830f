"""The Transformer of "Attention Is All You Need" (Vaswani et al. 2017), with the sizes of Table 3 and two small ones."""

from __future__ import annotations

from typing import Any, Literal

from regard import spec
from regard.errors import SettingError, did_you_mean

# d_model, d_ff, heads, layers, dropout; `tiny` is the Transformer-tiny of the Multi30k literature.
PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {"d_model": 128, "d_ff": 256, "heads": 4, "layers": 4, "dropout": 0.3},
    "small": {"d_model": 256, "d_ff": 1024, "heads": 4, "layers": 3, "dropout": 0.1},
    "base": {"d_model": 512, "d_ff": 2048, "heads": 8, "layers": 6, "dropout": 0.1},
    "big": {"d_model": 1024, "d_ff": 4096, "heads": 16, "layers": 6, "dropout": 0.3},
}


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
    """The paper's wiring at any size. `details`: d_k, d_v, decoder_layers, attention_dropout, feedforward_dropout,
    activation, position, residual."""
    unknown = set(details) - _DETAILS.keys()
    if unknown:
        name = sorted(unknown)[0]
        raise SettingError(f"the Transformer has no option {name!r}", did_you_mean(name, _DETAILS))
    choice = {**_DETAILS, **details}
    if d_model % heads and not (choice["d_k"] and choice["d_v"]):
        raise SettingError(f"d_model {d_model} does not divide by {heads} heads", "change one, or give d_k and d_v")
    attention = spec.Attention(
        heads=heads,
        d_k=choice["d_k"] or d_model // heads,
        d_v=choice["d_v"] or d_model // heads,
        mixer=spec.Softmax(choice["attention_dropout"]),
    )
    feedforward = spec.Plain(d_ff, choice["activation"], choice["feedforward_dropout"])
    final = spec.LayerNorm() if isinstance(choice["residual"], spec.PreNorm) else None
    encoder = spec.Block(attention, feedforward, residual=choice["residual"], dropout=dropout)
    decoder = spec.Block(attention, feedforward, cross=attention, residual=choice["residual"], dropout=dropout)
    return spec.EncoderDecoder(
        d_model=d_model,
        source=spec.Tokens(source_vocabulary, choice["position"], dropout=dropout),
        target=spec.Tokens(target_vocabulary, choice["position"], dropout=dropout),
        encoder=spec.Stack(layers, encoder, final=final),
        decoder=spec.Stack(choice["decoder_layers"] or layers, decoder, spec.Causal(), final=final),
        share=share,
    )


_DETAILS: dict[str, Any] = {
    "d_k": None,
    "d_v": None,
    "decoder_layers": None,
    "attention_dropout": 0.0,
    "feedforward_dropout": 0.0,
    "activation": "relu",
    "position": spec.Sinusoidal(),
    "residual": spec.PostNorm(),
}


def preset(name: str, source_vocabulary: int, target_vocabulary: int, **changes: Any) -> spec.EncoderDecoder:
    """A named size, with any of its settings changed."""
    if name not in PRESETS:
        raise SettingError(f"there is no preset {name!r}", did_you_mean(name, PRESETS))
    return transformer(source_vocabulary, target_vocabulary, **{**PRESETS[name], **changes})
