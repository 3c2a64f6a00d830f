"""Padding is no token: BatchNorm's statistics, the queues of experts and their load-balancing loss
are the same with it and without it, on both sides of an encoder–decoder."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from regard import spec
from regard.builder import build
from regard.core.context import Context, LayerContext
from regard.core.feedforward import FeedForward
from regard.core.mixture_of_experts import MixtureOfExperts
from regard.core.norm import BatchNorm
from regard.core.probe import Probe
from regard.data.padding import IGNORED
from regard.training.objectives.sequence_to_sequence import target_context

FEED_FORWARD = spec.FeedForward(32)
BLOCKS: dict[str, dict[str, Any]] = {
    "batch norm": {"norm": spec.BatchNorm(), "feedforward": FEED_FORWARD},
    # More slots than tokens, so that nothing is dropped for another number of positions.
    "experts": {"feedforward": spec.MixtureOfExperts(4, FEED_FORWARD, 2, 4.0, 1.0)},
}


def translator(kind: str) -> Any:
    torch.manual_seed(0)
    attention = spec.Attention(2, 12, 12)
    block = spec.Block(attention, dropout=0.0, **BLOCKS[kind])
    options = {"cross": attention, "dropout": 0.0, **BLOCKS[kind]}
    decoder_block = spec.Block(attention, **options)
    tokens = spec.Tokens(19, spec.Sinusoidal(), dropout=0.0)
    model = spec.EncoderDecoder(
        24,
        tokens,
        tokens,
        encoder=spec.Stack.of(2, block, spec.FullMask()),
        decoder=spec.Stack.of(2, decoder_block, spec.CausalMask()),
    )
    return build(model).double().train()


@pytest.mark.parametrize("kind", BLOCKS)
def test_a_padded_batch_trains_as_its_tokens_alone(kind: str) -> None:
    source = torch.randint(0, 19, (3, 6))
    target = torch.randint(0, 19, (3, 5))
    labels = torch.randint(0, 19, (3, 5))
    exact = translator(kind)
    hidden, losses = exact(source, target, None, target_context(exact, labels))

    padded = translator(kind)
    padded_labels = torch.nn.functional.pad(labels, (0, 4), value=IGNORED)
    more, more_losses = padded(
        torch.nn.functional.pad(source, (0, 3), value=7),
        torch.nn.functional.pad(target, (0, 4), value=7),
        torch.nn.functional.pad(torch.ones_like(source, dtype=torch.bool), (0, 3), value=False),
        target_context(padded, padded_labels),
    )
    torch.testing.assert_close(more[:, :5], hidden, rtol=1e-6, atol=1e-6)
    assert losses.keys() == more_losses.keys()
    for name, loss in losses.items():
        torch.testing.assert_close(more_losses[name], loss)
    for ours, theirs in zip(padded.modules(), exact.modules(), strict=True):
        if isinstance(ours, BatchNorm):
            torch.testing.assert_close(ours.running_mean, theirs.running_mean)
            torch.testing.assert_close(ours.running_variance, theirs.running_variance)


def test_a_prompt_without_labels_is_no_padding() -> None:
    labels = torch.tensor([[IGNORED, IGNORED, 4, 5, IGNORED]])
    mask = target_context(translator("experts"), labels).target_padding_mask
    assert mask is not None
    assert mask.tolist() == [[True, True, True, True, False]]
    plain = build(
        spec.EncoderDecoder(
            24,
            spec.Tokens(19),
            spec.Tokens(19),
            encoder=spec.Stack.of(1, spec.Block(spec.Attention(2, 12, 12), FEED_FORWARD), spec.FullMask()),
            decoder=spec.Stack.of(
                1,
                spec.Block(spec.Attention(2, 12, 12), FEED_FORWARD, cross=spec.Attention(2, 12, 12)),
                spec.CausalMask(),
            ),
        )
    )  # fmt: skip
    assert target_context(plain, labels) == Context()  # nothing there reads it


def test_padding_takes_no_place_in_the_queue_of_an_expert() -> None:
    """Padding comes first and would fill the only expert that is asked."""
    torch.manual_seed(0)
    inner = spec.FeedForward(10)
    experts = [FeedForward(inner, 6) for _ in range(2)]
    options = spec.MixtureOfExperts(2, inner, 1, 1.0, 1.0)
    part = MixtureOfExperts(options, 6, experts).double().train()
    with torch.no_grad():
        part.router.weight.zero_()
        part.router.weight[1] = 1.0
    x = torch.rand(1, 8, 6).double() + 0.1
    is_token = torch.arange(8)[None] >= 4
    output = part(x, LayerContext(padding_mask=is_token))
    assert (output[0, :4] == 0).all()
    torch.testing.assert_close(output[0, 4:], part.eval()(x, LayerContext())[0, 4:])
    # Evaluation has room for everything, and computes what stands there as well.
    torch.testing.assert_close(
        part(x, LayerContext(padding_mask=is_token)), part(x, LayerContext())
    )
    part.train()
    nothing = part(x, LayerContext(padding_mask=torch.zeros(1, 8, dtype=torch.bool)))
    assert (nothing == 0).all()
    part.capacity = 0.5  # two slots for four tokens
    probe = Probe(["dropped"])
    part(x, LayerContext(probe, padding_mask=is_token))
    assert probe.tensors["dropped"] == 0.5


def test_recomputed_activations_do_not_count_twice() -> None:
    """The second forward pass of activation checkpointing leaves the running statistics alone."""
    source = torch.randint(0, 19, (3, 6))
    target = torch.randint(0, 19, (3, 5))
    states = []
    gradients = []
    for recompute in (False, True):
        model = translator("batch norm")
        model.encoder.activation_checkpointing = recompute
        model.decoder.activation_checkpointing = recompute
        model.head(model(source, target)[0]).square().mean().backward()
        states.append(model.state_dict())
        gradients.append({name: value.grad for name, value in model.named_parameters()})
    torch.testing.assert_close(states[0], states[1])
    torch.testing.assert_close(gradients[0], gradients[1])
