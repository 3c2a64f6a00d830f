"""A reversible stack: gradients made backwards from the end are the ordinary ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from regard import spec
from regard.builder import build, trainable
from regard.builder.parameter_count import parameter_count
from regard.core.context import Context
from regard.core.probe import NO_PROBE, NullProbe, Probe
from regard.lab.bench.attention import peak as most
from regard.system.errors import ModelError


def stack(
    pattern: spec.MaskPattern, layers: int, dropout: float, cross: bool = False, **more: Any
) -> spec.Stack:
    attention = spec.Attention(2, 4, 4, mixer=spec.SoftmaxAttention(dropout))
    block = spec.Block(
        attention,
        spec.FeedForward(12),
        attention if cross else None,
        spec.PreNorm(),
        dropout=dropout,
    )
    options = {"final": spec.LayerNorm(), "scheme": spec.Reversible(), **more}
    return spec.Stack.of(layers, block, pattern, **options)


def decoder(layers: int = 3, dropout: float = 0.0, **more: Any) -> spec.Decoder:
    return spec.Decoder(
        8, spec.Tokens(19, dropout=0.0), stack(spec.CausalMask(), layers, dropout, **more)
    )


TOKENS = torch.arange(2 * 9).view(2, 9) % 19


def gradients(model: torch.nn.Module, out: torch.Tensor) -> list[torch.Tensor]:
    return list(torch.autograd.grad(out.sin().sum(), list(model.parameters())))


@pytest.mark.parametrize("position", [None, spec.RelativeKeys(4), spec.Rope()])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_gradients_are_the_ordinary_ones(dropout: float, position: Any) -> None:
    """What is traced is computed the ordinary way."""
    torch.manual_seed(0)
    description = decoder(dropout=dropout, position=position)
    model = build(description).double().train()
    assert trainable(model) == parameter_count(description)
    found = []
    for probe in (NO_PROBE, Probe()):
        torch.manual_seed(1)
        out, _ = model(TOKENS, context=Context(probe=probe))
        after = torch.rand(1)
        found.append((out, after, gradients(model, out)))
    (one, chance, grads), (other, same, expected) = found
    torch.testing.assert_close(one, other)
    assert torch.equal(chance, same)
    for got, wanted in zip(grads, expected, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-8, atol=1e-9)


def test_gradients_reach_the_encoder() -> None:
    torch.manual_seed(0)
    sides = (stack(spec.FullMask(), 2, 0.0), stack(spec.CausalMask(), 2, 0.0, cross=True))
    tokens = spec.Tokens(19, dropout=0.0)
    model = build(spec.EncoderDecoder(8, tokens, tokens, *sides)).double().train()
    padding_mask = torch.arange(9) < torch.tensor([9, 4])[:, None]
    grads, expected = (
        gradients(model, model(TOKENS, TOKENS[:, :5], padding_mask, Context(probe=probe))[0])
        for probe in (NO_PROBE, Probe())
    )
    for got, wanted in zip(grads, expected, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-8, atol=1e-9)


def test_decoded_as_read() -> None:
    model = build(decoder()).double().eval()
    whole = model.head(model(TOKENS)[0])
    torch.testing.assert_close(model.head(model.train()(TOKENS)[0]), whole)
    state = model.eval().start(model.encode(TOKENS[:, :1]), capacity=9)
    pieces = [model.step(piece, state) for piece in TOKENS.split([1, 5, 3], dim=1)]
    torch.testing.assert_close(torch.cat(pieces, 1), whole, rtol=1e-9, atol=1e-9)


def test_memory_does_not_grow_with_layers() -> None:
    tokens = torch.zeros(1, 2000, dtype=torch.long)

    def peak(layers: int, probe: NullProbe) -> int:
        model = build(decoder(layers)).train()
        first: Any = model.stack.blocks[0]  # type: ignore[index]
        model.stack.blocks = torch.nn.ModuleList([first])  # of all layers

        def once() -> None:
            model(tokens, context=Context(probe=probe))[0].sum().backward()
            model.zero_grad()

        once()
        return most(once, torch.device("cpu"))

    assert peak(12, NO_PROBE) < 1.05 * peak(3, NO_PROBE)
    assert peak(12, Probe()) > 2 * peak(3, Probe())


def test_what_cannot_be_made_again_is_refused() -> None:
    with pytest.raises(ModelError, match="reversible"):
        decoder(position=spec.T5Bias())
    assert spec.from_dict(spec.to_dict(decoder())) == decoder()
