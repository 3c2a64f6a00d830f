"""An attention defined outside the package: sigmoid attention (Ramapuram et al. 2024).

Run it: python examples/own_attention.py
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from own_training_loop import BOS, copying, greedy, train
from swap_attention_and_positions import ATTENTION, BASE
from torch import Tensor
from torch.nn import functional

from regard import Model, build, spec
from regard.extend import ExplicitAttention


class SigmoidAttention(ExplicitAttention):
    """weights = sigmoid(q kᵀ · scale + bias − log n) for the n keys that may be attended to."""

    def __init__(self, scale: float, dropout: float) -> None:
        super().__init__(dropout)
        self.scale = scale

    def attention_weights(
        self, q: Tensor, k: Tensor, allowed: Tensor, bias: Tensor | None
    ) -> Tensor:
        scores = self.scale * q @ k.mT  # [B, H, T, S]
        if bias is not None:  # what positions such as ALiBi add
            scores = scores + bias
        return torch.sigmoid(scores - allowed.sum(dim=-1, keepdim=True).clamp_min(1).log())


@dataclass(frozen=True)
class Sigmoid:  # the part of a spec: its options, and how it is built
    dropout: float = 0.0

    def build(self, sizes: spec.AttentionSizes) -> SigmoidAttention:
        return SigmoidAttention(sizes.scale, self.dropout)


if __name__ == "__main__":
    torch.manual_seed(0)
    sigmoid = replace(ATTENTION, mixer=Sigmoid())
    decoder = BASE.decoder.with_blocks(attention=sigmoid)
    model = build(description := replace(BASE, decoder=decoder))
    losses = train(model, steps=100)
    assert losses[-1] < losses[0]
    # Decoding with a KV cache gives the same result as one forward pass over the whole target.
    source = copying(rows=20)
    copy = greedy(model.eval(), source)
    inputs = functional.pad(copy, (1, -1), value=BOS)
    output = Model(model, description)(source, None, inputs, output_attentions=True)
    assert (output.logits.argmax(dim=-1) == copy).all()
    print("weights of a head, which need not sum to 1:", output.decoder_attentions[1][0, 0].data)
    assert all((weights.triu(1) == 0).all() for weights in output.decoder_attentions)  # causal
    # A saved spec contains names, not code: pass the class when you read it.
    assert spec.from_dict(spec.to_dict(description), kinds=[Sigmoid]) == description
