"""Decoder layers that look at the encoder's layer of their own height."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest
import torch

from regard import spec
from regard.builder import build
from regard.system.errors import ModelError


def described(
    layers: int, looks: Literal["last", "matching"], *, pre: bool = False
) -> spec.EncoderDecoder:
    attention, norm = spec.Attention(2, 4, 4), spec.PreNorm() if pre else spec.PostNorm()
    blocks = [
        spec.Block(attention, spec.FeedForward(12), cross, norm, dropout=0.0)
        for cross in (None, attention)
    ]
    final = spec.LayerNorm() if pre else None
    encoder = spec.Stack.of(layers, blocks[0], spec.FullMask(), final=final)
    decoder = spec.Stack.of(layers, blocks[1], spec.CausalMask(), final=final)
    tokens = spec.Tokens(19, dropout=0.0)
    return spec.EncoderDecoder(8, tokens, tokens, encoder, decoder, looks=looks)


SOURCE, TARGET = torch.arange(14).view(2, 7) % 19, torch.arange(10).view(2, 5) % 19
REAL = torch.arange(7) < torch.tensor([7, 4])[:, None]


@pytest.mark.parametrize("pre", [False, True])
def test_each_layer_sees_the_one_of_its_height(pre: bool) -> None:
    model = build(described(3, "matching", pre=pre)).double()
    plain = build(described(3, "last", pre=pre)).double()
    plain.load_state_dict(model.state_dict())
    found = model(SOURCE, TARGET, REAL)[0]
    assert not torch.allclose(found, plain(SOURCE, TARGET, REAL)[0])
    # The encoder cut after each layer gives what the decoder's layer of that height is to see.
    memories = []
    for height in (1, 2, 3):
        plain.encoder.layers = height
        memories.append(plain.encode(SOURCE, REAL).hidden)
    expected = model.decode(TARGET, model.encode(SOURCE, REAL)._replace(layers=tuple(memories)))
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(model.encode(SOURCE, REAL).hidden, memories[-1])


def test_decoded_as_read_and_one_layer_is_as_always() -> None:
    model = build(described(2, "matching")).double().eval()
    whole = model.head(model(SOURCE, TARGET, REAL)[0])
    state = model.start(model.encode(SOURCE, REAL), capacity=5)
    pieces = [model.step(piece, state) for piece in TARGET.split([1, 3, 1], dim=1)]
    torch.testing.assert_close(torch.cat(pieces, 1), whole)
    one, plain = build(described(1, "matching")).double(), build(described(1, "last")).double()
    plain.load_state_dict(one.state_dict())
    torch.testing.assert_close(one(SOURCE, TARGET, REAL)[0], plain(SOURCE, TARGET, REAL)[0])


def test_unlike_heights_are_refused() -> None:
    model = described(2, "matching")
    with pytest.raises(ModelError, match="as many encoder as decoder layers"):
        replace(model, encoder=spec.Stack.of(3, model.encoder.block))
    assert spec.from_dict(spec.to_dict(model)) == model
