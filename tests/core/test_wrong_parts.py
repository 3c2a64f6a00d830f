"""A wrong part in a spec ends in a typed error."""

from __future__ import annotations

from typing import Any

import pytest

from regard import spec
from regard.builder import build
from regard.system.errors import ModelError

ATTENTION = spec.Attention(heads=2, d_k=8, d_v=8)
FEEDFORWARD = spec.FeedForward(32)
TOKENS = spec.Tokens(50, spec.Sinusoidal())


def decoder(tokens: Any = TOKENS, **parts: Any) -> spec.Decoder:
    block: Any = {"attention": ATTENTION, "feedforward": FEEDFORWARD} | parts
    stack = spec.Stack.of(
        1, spec.Block(block["attention"], block["feedforward"]), spec.CausalMask()
    )
    return spec.Decoder(16, tokens, stack)


@pytest.mark.parametrize(
    ("make", "place", "fits"),
    [
        (lambda: decoder(spec.Tokens(50, spec.Rope())), "Tokens.position cannot be Rope", "Sinus"),  # type: ignore[arg-type]
        (lambda: decoder(attention=FEEDFORWARD), "cannot be FeedForward", "Attention"),
        (lambda: decoder(feedforward="mlp"), "cannot be 'mlp'", "FeedForward"),
        (lambda: decoder(ATTENTION), "cannot be Attention", "Tokens"),
        (lambda: spec.Encoder(16, TOKENS, ATTENTION), "Encoder.stack cannot be", "Stack"),  # type: ignore[arg-type]
        (lambda: ATTENTION, "Attention is not the spec of a model", "Encoder"),
        (lambda: "gpt2", "str is not the spec of a model", "Encoder"),
    ],
)
def test_the_error_names_the_field_and_what_fits(make: Any, place: str, fits: str) -> None:
    with pytest.raises(ModelError) as error:
        build(make())
    assert place in error.value.problem
    assert fits in error.value.repair


def test_what_fits_is_built() -> None:
    assert build(decoder()) is not None
