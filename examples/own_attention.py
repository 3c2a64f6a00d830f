"""An attention from outside the package: sigmoid attention (Ramapuram et al. 2024).

Run it: python examples/own_attention.py
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from own_training_loop import BOS, copying, greedy, train
from swap_attention_and_positions import ATTENTION, BASE, with_attention
from torch import Tensor
from torch.nn import functional

from regard import build, spec
from regard.core.context import Context
from regard.core.explicit_attention import ExplicitAttention
from regard.core.probe import Probe


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
    torch.set_num_threads(1)
    torch.manual_seed(0)
    sigmoid = replace(ATTENTION, mixer=Sigmoid())
    description = replace(BASE, decoder=with_attention(BASE.decoder, sigmoid))
    model = build(description)
    losses = train(model, steps=100)
    print(f"loss {losses[0]:.2f} → {losses[-1]:.2f}")
    assert losses[-1] < losses[0]
    # Decoding with a KV cache gives what one forward pass over the whole target gives.
    source = copying(rows=20)
    copy = greedy(model.eval(), source)
    probe = Probe(["decoder.1.self"])
    hidden, _ = model(source, functional.pad(copy, (1, -1), value=BOS), None, Context(probe))
    assert (model.head(hidden).argmax(dim=-1) == copy).all()
    # A probe sees the weights, which need not sum to 1; nobody attends to what follows.
    weights = probe.weights("decoder.1.self")[0, 0].detach()  # [T, S]
    assert (weights.triu(1) == 0).all()
    print("weights of one head in the decoder:", weights, sep="\n")
    # The spec is written as any other; whoever reads it says which class that kind is.
    assert spec.from_dict(spec.to_dict(description), kinds=[Sigmoid]) == description
