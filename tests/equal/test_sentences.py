"""Hierarchical attention over sentences: what each position sees, and what padding changes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from regard import spec
from regard.builder import build
from regard.core.context import Context
from regard.core.probe import Probe
from regard.system.errors import ModelError

END = 2
BLOCK = spec.Block(spec.Attention(2, 6, 6), spec.FeedForward(16), dropout=0.0)
WITHIN = replace(BLOCK, pattern=spec.SentenceMask(END))
BETWEEN = replace(BLOCK, pattern=spec.SentenceMask(END, ends=True))
IDS = torch.tensor([[5, 6, END, 7, END, 8, 9, 4]])  # three sentences, the last without its end


def encoder(*blocks: spec.Block) -> Any:
    tokens = spec.Tokens(12, spec.LearnedPosition(16), dropout=0.0)
    return build(spec.Encoder(12, tokens, spec.Stack(blocks))).double().eval()


def states(model: Any, ids: Tensor, probe: Probe | None = None) -> Tensor:
    context = Context() if probe is None else Context(probe=probe)
    padding_mask = ids != 0
    inputs = {"input_ids": ids, "attention_mask": padding_mask}
    with torch.no_grad():
        return model.hidden_states(inputs, context)[padding_mask]


def test_positions_see_their_sentence_and_the_ends_of_all() -> None:
    probe = Probe(["*.weights"])
    states(encoder(WITHIN, BETWEEN), IDS, probe)
    sentence = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2])
    same = sentence[:, None] == sentence
    for layer, expected in ((0, same), (1, same | (IDS[0] == END))):
        weights = probe.weights(f"encoder.{layer}.self")[0]  # [H, T, T]
        assert torch.equal(weights > 0, expected.expand_as(weights))


def test_other_sentences_are_read_through_their_ends_alone() -> None:
    changed = IDS.clone()
    changed[0, 3] = 10  # a word of the second sentence
    for blocks, differ in (
        ((WITHIN, WITHIN), [3, 4]),
        ((WITHIN, BETWEEN), [0, 1, 2, 3, 4, 5, 6, 7]),
        # In one layer an end has read nothing yet: it is seen, but is the same.
        ((BETWEEN,), [3, 4]),
    ):
        model = encoder(*blocks)
        distance = (states(model, IDS) - states(model, changed)).abs().amax(dim=-1)
        assert (distance > 1e-9).nonzero().flatten().tolist() == differ


def test_a_text_is_the_same_alone_and_padded() -> None:
    model = encoder(WITHIN, BETWEEN)
    other = torch.tensor([[5, END, 6, 6, 6, END, 7, 8, 9, 9, END]])
    padded = torch.cat([torch.nn.functional.pad(IDS, (0, 3)), other])
    both = states(model, padded)
    torch.testing.assert_close(both, torch.cat([states(model, IDS), states(model, other)]))


def test_a_decoder_has_no_sentences() -> None:
    pattern = spec.And(spec.SentenceMask(END), spec.CausalMask())
    stack = spec.Stack.of(1, BLOCK, pattern)
    model: Any = build(spec.Decoder(12, spec.Tokens(12, None), stack))
    with pytest.raises(ModelError):
        model(IDS)
