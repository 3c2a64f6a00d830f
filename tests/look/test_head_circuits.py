"""QK and OV circuits, composition and induction scores, against their definitions by hand.

The same definitions were compared once with TransformerLens on equal weights (docs/log).
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from regard import spec
from regard.builder import build
from regard.core.context import Context
from regard.core.probe import Probe
from regard.look.head_circuits import (
    composition_scores,
    copying_scores,
    head_circuits,
    head_weights,
    induction_scores,
    previous_token_scores,
)
from regard.system.errors import ModelError

LAYERS = 3
HEADS = 2
WIDTH = 12
D_K = 4


@pytest.fixture
def stack() -> Any:
    attention = spec.Attention(HEADS, D_K, D_K, bias="")
    block = spec.Block(attention, spec.FeedForward(8), residual=spec.NoResidual("pre"), dropout=0.0)
    tokens = spec.Tokens(9, None, dropout=0.0)
    model: Any = build(spec.Decoder(WIDTH, tokens, spec.Stack.of(LAYERS, block, spec.CausalMask())))
    return model.double().stack


def test_scores_and_outputs_of_a_head_are_its_circuits(stack: Any) -> None:
    circuits = head_circuits(stack)
    x = torch.randn(1, 5, WIDTH, dtype=torch.float64)
    for layer, block in enumerate(stack.blocks):
        q, k, v = block.attention.project(x, None)  # [1, H, T, K]
        q_weight, _, _, o_weight = head_weights(block.attention)
        assert q_weight.shape == (HEADS, WIDTH, D_K)
        assert o_weight.shape == (HEADS, D_K, WIDTH)
        for head in range(HEADS):
            scores = x[0] @ circuits.qk[layer, head] @ x[0].T
            torch.testing.assert_close(scores, q[0, head] @ k[0, head].T)
            # What one head adds: all others are silenced before the output projection.
            alone = torch.zeros(5, HEADS * D_K, dtype=torch.float64)
            alone[:, head * D_K : (head + 1) * D_K] = v[0, head]
            added = block.attention.output(alone)
            torch.testing.assert_close(x[0] @ circuits.ov[layer, head], added)


def test_composition_scores_are_ratios_of_frobenius_norms(stack: Any) -> None:
    circuits = head_circuits(stack)
    q = composition_scores(circuits, "Q")
    k = composition_scores(circuits, "K")
    v = composition_scores(circuits, "V")
    for writer in range(LAYERS):
        for reader in range(LAYERS):
            for i in range(HEADS):
                for j in range(HEADS):
                    place = (writer, i, reader, j)
                    if reader <= writer:
                        assert q[place] == k[place] == v[place] == 0
                        continue
                    ov = circuits.ov[writer, i]
                    qk = circuits.qk[reader, j]
                    sizes = ov.norm() * qk.norm()
                    torch.testing.assert_close(q[place], (ov @ qk).norm() / sizes)
                    torch.testing.assert_close(k[place], (ov @ qk.T).norm() / sizes)
                    later = circuits.ov[reader, j]
                    ratio = (ov @ later).norm() / (ov.norm() * later.norm())
                    torch.testing.assert_close(v[place], ratio)


def test_induction_scores_are_attention_to_what_followed(stack: Any) -> None:
    probe = Probe(["1.self"])
    with torch.no_grad():
        x = torch.randn(3, 12, WIDTH, dtype=torch.float64)
        stack(x, context=Context(probe=probe))
    weights = probe.weights("1.self")  # [B, H, T, T]
    found = induction_scores(weights, 6)
    before = previous_token_scores(weights)
    for head in range(HEADS):
        to_follower = [weights[row, head, t, t - 5] for row in range(3) for t in range(5, 12)]
        to_previous = [weights[row, head, t, t - 1] for row in range(3) for t in range(1, 12)]
        torch.testing.assert_close(found[head], torch.stack(to_follower).mean())
        torch.testing.assert_close(before[head], torch.stack(to_previous).mean())


def test_a_perfect_induction_head_scores_one() -> None:
    weights = torch.zeros(1, 2, 8, 8)
    for t in range(3, 8):
        weights[0, 0, t, t - 3] = 1.0
    assert induction_scores(weights, 4).tolist() == [1.0, 0.0]


def test_grouped_heads_share_their_keys_and_values() -> None:
    block = spec.Block(spec.Attention(4, 3, 3, groups=2, bias=""), spec.FeedForward(8))
    tokens = spec.Tokens(9, None)
    model: Any = build(spec.Decoder(12, tokens, spec.Stack.of(1, block, spec.CausalMask())))
    circuits = head_circuits(model.stack)
    x = torch.randn(1, 5, 12)
    q, k, _ = model.stack.blocks[0].attention.project(x, None)
    for head in range(4):
        expected = q[0, head] @ k[0, head // 2].mT
        torch.testing.assert_close(x[0] @ circuits.qk[0, head] @ x[0].mT, expected)


def test_copying_scores_are_eigenvalues_of_the_whole_circuit(stack: Any) -> None:
    circuits = head_circuits(stack)
    embedding = torch.randn(20, WIDTH, dtype=torch.float64)
    unembedding = torch.randn(20, WIDTH, dtype=torch.float64)
    scores = copying_scores(circuits, embedding, unembedding)
    whole = embedding @ circuits.ov[1, 0] @ unembedding.mT  # [V, V]
    values = torch.linalg.eigvals(whole)
    torch.testing.assert_close(scores[1, 0], values.real.sum() / values.abs().sum())


def test_shared_projections_have_no_circuits() -> None:
    block = spec.Block(spec.Attention(4, 3, 3, projection="tied_qk"), spec.FeedForward(8))
    tokens = spec.Tokens(9, None)
    model: Any = build(spec.Decoder(12, tokens, spec.Stack.of(1, block, spec.CausalMask())))
    with pytest.raises(ModelError):
        head_circuits(model.stack)
