"""The Transformer of "Attention Is All You Need" (Vaswani et al. 2017), written from its parts.

Run it: python examples/transformer_from_parts.py
"""

from __future__ import annotations

import torch

from regard import build, spec
from regard.builder.parameter_count import parameter_count
from regard.families.encoder_decoders.transformer import preset


def transformer(
    vocabulary: int, d_model: int, d_ff: int, heads: int, layers: int, dropout: float
) -> spec.EncoderDecoder:
    """Figure 1: an encoder and a decoder, with one embedding matrix for both and the output."""
    attention = spec.Attention(heads, d_k=d_model // heads, d_v=d_model // heads)  # Section 3.2.2
    feedforward = spec.FeedForward(d_ff, "relu")  # Section 3.3
    tokens = spec.Tokens(vocabulary, spec.Sinusoidal(), dropout=dropout)  # Sections 3.4 and 3.5
    encoder = spec.Block(attention, feedforward, residual=spec.PostNorm(), dropout=dropout)
    decoder = spec.Block(
        attention, feedforward, cross=attention, residual=spec.PostNorm(), dropout=dropout
    )
    return spec.EncoderDecoder(
        d_model,
        source=tokens,
        target=tokens,
        encoder=spec.Stack.of(layers, encoder),
        decoder=spec.Stack.of(layers, decoder, spec.CausalMask()),
        share="all",
    )


def main() -> None:
    # The base model of Table 3 over 37,000 tokens: the preset of the package is the same value.
    base = transformer(37_000, d_model=512, d_ff=2048, heads=8, layers=6, dropout=0.1)
    assert base == preset("base", 37_000, 37_000)
    print(f"base: {parameter_count(base):,} parameters (the paper says 65 million)\n")

    torch.manual_seed(0)
    tiny = transformer(1_000, d_model=64, d_ff=256, heads=4, layers=1, dropout=0.1)
    model = build(tiny)
    print(model)

    source = torch.randint(1_000, (2, 7))  # [B, S]
    target = torch.randint(1_000, (2, 5))  # [B, T]
    hidden, _ = model(source, target)
    logits = model.head(hidden)
    assert logits.shape == (2, 5, 1_000)
    print(f"\nlogits of a batch: {list(logits.shape)}")


if __name__ == "__main__":
    main()
