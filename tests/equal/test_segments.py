"""Texts read in segments: what layers carry on is what one long pass would have seen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from regard import spec
from regard.builder import build, trainable
from regard.builder.parameter_count import parameter_count
from regard.core.caches.kv_cache import DecoderState
from regard.core.context import Context
from regard.system.errors import ModelError

POSITIONS = [spec.RelativeSinusoids(), spec.RelativeKeys(5), spec.T5Bias(8, 20), spec.Alibi(), None]


def model(
    position: Any,
    pattern: spec.MaskPattern | None = None,
    *,
    memory: int | None = 40,
    pre: bool = False,
) -> spec.Decoder:
    block = spec.Block(
        spec.Attention(2, 4, 4),
        spec.FeedForward(12),
        residual=spec.PreNorm() if pre else spec.PostNorm(),
        dropout=0.0,
    )
    scheme = spec.Segments(memory) if memory else spec.Plain()
    stack = spec.Stack.of(2, block, pattern or spec.CausalMask(), position, scheme=scheme)
    return spec.Decoder(8, spec.Tokens(19, None, dropout=0.0), stack)


@pytest.mark.parametrize("pre", [False, True])
@pytest.mark.parametrize("position", POSITIONS, ids=lambda p: type(p).__name__)
def test_segments_are_one_long_pass_within_the_memory(position: Any, pre: bool) -> None:
    torch.manual_seed(0)
    made = build(model(position, pre=pre)).double()
    tokens = torch.randint(0, 19, (3, 33))
    whole, _ = made(tokens)
    states = made.stack.start_segments(3, 8)
    parts = [
        made(part, context=Context(state=DecoderState(states)))[0]
        for part in tokens.split([7, 1, 12, 13], dim=1)
    ]
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-9, atol=1e-9)
    assert trainable(made) == parameter_count(model(position, pre=pre))


def test_a_window_needs_no_more_memory_than_it_sees() -> None:
    """With a window inside the memory, texts of any length are read as one, at a constant size of what is carried."""
    torch.manual_seed(0)
    made = build(model(spec.RelativeSinusoids(), spec.CausalMask(6), memory=5)).double()
    tokens = torch.randint(0, 19, (2, 61))
    states = made.stack.start_segments(2, 8)
    parts = [
        made(part, context=Context(state=DecoderState(states)))[0]
        for part in tokens.split(9, dim=1)
    ]
    torch.testing.assert_close(torch.cat(parts, 1), made(tokens)[0], rtol=1e-9, atol=1e-9)
    assert all(state.self_attention.x.shape == (2, 5, 8) for state in states)  # type: ignore[attr-defined]


def test_decoding_goes_on_at_constant_cost() -> None:
    """Token after token is segments of one place: each sees the memory and itself, and no more is kept."""
    torch.manual_seed(0)
    made = build(model(spec.RelativeSinusoids(), memory=4)).double().eval()
    tokens = torch.randint(0, 19, (2, 30))
    states = made.stack.start_segments(2, 8)
    expected = torch.cat(
        [
            made.head(made(one, context=Context(state=DecoderState(states)))[0])
            for one in tokens.split(1, dim=1)
        ],
        1,
    )
    state = made.start(made.encode(tokens[:, :1]), capacity=100)
    found = torch.cat([made.step(one, state) for one in tokens.split(1, dim=1)], 1)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    assert all(layer.self_attention.k.shape[2] == 4 for layer in state.layers)  # type: ignore[attr-defined]


def test_gradients_stay_inside_the_segment_but_reach_the_keys_of_the_memory() -> None:
    torch.manual_seed(0)
    made = build(model(spec.RelativeSinusoids())).double()
    tokens = torch.randint(0, 19, (1, 12))
    states = made.stack.start_segments(1, 8)
    made(tokens[:, :6], context=Context(state=DecoderState(states)))
    assert not any(state.self_attention.x.requires_grad for state in states)  # type: ignore[attr-defined]
    kept = states[0].self_attention.x.clone()  # type: ignore[attr-defined]
    made(tokens[:, 6:], context=Context(state=DecoderState(states)))[0].square().sum().backward()
    part = made.stack.blocks[0].attention.project.qkv  # type: ignore[union-attr]
    with_memory = part.weight.grad.clone()  # type: ignore[union-attr]
    made.zero_grad()
    states = made.stack.start_segments(1, 8)
    assert kept.abs().sum() > 0
    made(tokens[:, 6:], context=Context(state=DecoderState(states)))[0].square().sum().backward()
    assert not torch.allclose(with_memory, part.weight.grad)  # type: ignore[union-attr, arg-type]


def test_what_cannot_be_carried_is_refused() -> None:
    with pytest.raises(ModelError, match="relative positions"):
        model(spec.Rope())
    with pytest.raises(ModelError, match="start again in each segment"):
        replace(model(None), tokens=spec.Tokens(19))
