"""Your own training loop around a model from `regard.build`: it learns to copy, then decodes.

Run it: python examples/own_training_loop.py
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional
from transformer_from_parts import transformer

from regard import build
from regard.wirings.encoder_decoder import EncoderDecoder

BOS = 0
VOCABULARY = 20
LENGTH = 8


def copying(rows: int) -> Tensor:
    """Random sources [B, T], each of which is its own target."""
    return torch.randint(1, VOCABULARY, (rows, LENGTH))


def train(model: EncoderDecoder, steps: int) -> list[float]:
    """The loss of each step, with teacher forcing: the decoder is given the labels before t."""
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, betas=(0.9, 0.98), eps=1e-9)
    losses = []
    for _ in range(steps):
        labels = copying(32)  # [B, T]
        inputs = functional.pad(labels, (1, -1), value=BOS)  # shifted right
        hidden, _ = model(labels, inputs)  # [B, T, D]
        loss = functional.cross_entropy(model.head(hidden).mT, labels, label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    return losses


@torch.no_grad()
def greedy(model: EncoderDecoder, source: Tensor) -> Tensor:
    """Greedy decoding with a KV cache: [B, LENGTH]."""
    state = model.start(model.encode(source), capacity=LENGTH)
    tokens = [torch.full((len(source), 1), BOS)]
    for _ in range(LENGTH):
        tokens.append(model.step(tokens[-1], state).argmax(dim=-1))
    return torch.cat(tokens[1:], dim=1)


if __name__ == "__main__":
    torch.set_num_threads(1)  # more threads would slow so small a model down
    torch.manual_seed(0)
    model = build(transformer(VOCABULARY, d_model=64, d_ff=128, heads=4, layers=2, dropout=0.0))
    losses = train(model, steps=200)
    source = copying(rows=100)
    copy = greedy(model.eval(), source)
    print(f"loss {losses[0]:.2f} → {losses[-1]:.2f}; {source[0].tolist()} → {copy[0].tolist()}")
    assert (copy == source).float().mean() > 0.95
