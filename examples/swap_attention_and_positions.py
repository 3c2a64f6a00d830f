"""One model with other attentions and positions: `dataclasses.replace` swaps parts of a spec.

Run it: python examples/swap_attention_and_positions.py
"""

from __future__ import annotations

from dataclasses import replace

import torch
from own_training_loop import LENGTH, VOCABULARY, train
from transformer_from_parts import transformer

from regard import build, spec

BASE = transformer(VOCABULARY, d_model=32, d_ff=64, heads=4, layers=2, dropout=0.0)
ATTENTION = BASE.encoder.block.attention
# Reformer's LSH attention uses one vector as both query and key.
LSH = replace(ATTENTION, mixer=spec.LshAttention(4, chunk=4, after=1), projection="shared")


def with_positions(
    at_input: spec.InputPosition | None, inside: spec.StackPosition | None
) -> spec.EncoderDecoder:
    """Positions added to the embeddings, or inside the attention of both stacks."""
    tokens = replace(BASE.target_tokens, position=at_input)
    encoder = BASE.encoder.with_blocks(position=inside)
    decoder = BASE.decoder.with_blocks(position=inside)
    return replace(BASE, source=tokens, target=tokens, encoder=encoder, decoder=decoder)


WINDOW = BASE.encoder.with_blocks(pattern=spec.WindowMask(1))  # one token to the left and right
LINEAR = BASE.encoder.with_blocks(attention=replace(ATTENTION, mixer=spec.LinearAttention()))
MODELS = {
    "softmax, sinusoids (2017)": BASE,
    "window attention": replace(BASE, encoder=WINDOW),
    "linear attention": replace(BASE, encoder=LINEAR),
    "LSH attention": replace(BASE, encoder=BASE.encoder.with_blocks(attention=LSH)),
    "learned positions": with_positions(spec.LearnedPosition(LENGTH), None),
    "rotary positions (RoPE)": with_positions(None, spec.Rope()),
    "ALiBi": with_positions(None, spec.Alibi()),
    "T5's relative bias": with_positions(None, spec.T5Bias()),
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    print(f"{'':26}parameters  first loss  last loss")
    for name, description in MODELS.items():
        torch.manual_seed(0)
        model = build(description)
        losses = train(model, steps=40)
        parameters = sum(parameter.numel() for parameter in model.parameters())
        print(f"{name:26}{parameters:10,}  {losses[0]:10.2f}  {losses[-1]:9.2f}")
        assert losses[-1] < 0.9 * losses[0]
