"""Fused and explicit attention are one function; the paper's examples come out of it."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.core.masks.attention_mask import AttentionMask
from regard.core.masks.mask import CausalMask, FullMask, PaddingMask
from regard.core.mixers.scaled_dot_product_attention import (
    SoftmaxAttention,
    attention_weights,
    explicit,
    few_query_products,
    fused,
)


@st.composite
def calls(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, AttentionMask]:
    """q, k, v and a sight of every kind, odd sizes and grouped heads included."""
    batch, groups, each = draw(st.integers(1, 3)), draw(st.integers(1, 2)), draw(st.integers(1, 3))
    queries, keys = draw(st.integers(1, 7)), draw(st.integers(1, 9))
    kind = draw(st.sampled_from(["all", "causal", "padding", "both", "not", "either"]))
    if kind in ("causal", "both", "either"):
        queries = keys
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    q = torch.randn(batch, groups * each, queries, 8, generator=generator)
    k = torch.randn(batch, groups, keys, 8, generator=generator)
    v = torch.randn(batch, groups, keys, 5 if draw(st.booleans()) else 8, generator=generator)
    padding_mask = (
        torch.rand(batch, keys, generator=generator) < 0.6
    )  # some rows may be all padding
    pattern = {
        "all": FullMask(),
        "causal": CausalMask(),
        "padding": PaddingMask(padding_mask),
        "both": CausalMask() & PaddingMask(padding_mask),
        "not": ~PaddingMask(padding_mask),
        "either": CausalMask() | PaddingMask(padding_mask),
    }[kind]
    positions = torch.arange(keys)
    return (
        q,
        k,
        v,
        AttentionMask(
            pattern, positions if queries == keys else torch.arange(queries), positions, batch=batch
        ),
    )


@given(calls())
def test_fused_equals_explicit_forward_and_backward(
    call: tuple[torch.Tensor, torch.Tensor, torch.Tensor, AttentionMask],
) -> None:
    q, k, v, attention_mask = call
    results = []
    for kernel in (fused, explicit):
        queries, keys, values = (x.clone().requires_grad_() for x in (q, k, v))
        out = kernel(queries, keys, values, attention_mask, 0.3, 0.0)
        gradients = torch.autograd.grad(out.square().sum(), (queries, keys, values))
        results.append([out, *gradients])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
        assert one.isfinite().all()


@given(calls(), st.integers(0, 3))
def test_two_products_equal_explicit_and_ignore_what_is_behind(
    call: tuple[torch.Tensor, torch.Tensor, torch.Tensor, AttentionMask], room: int
) -> None:
    q, k, v, attention_mask = call
    keys, values = (
        torch.cat([x, x.new_full((*x.shape[:2], room, x.shape[3]), 1e3)], dim=2) for x in (k, v)
    )
    torch.testing.assert_close(
        few_query_products(q, keys, values, attention_mask, 0.3),
        explicit(q, k, v, attention_mask, 0.3, 0.0),
        rtol=1e-5,
        atol=1e-5,
    )


@given(calls())
def test_a_query_that_sees_nothing_gets_zeros(
    call: tuple[torch.Tensor, torch.Tensor, torch.Tensor, AttentionMask],
) -> None:
    q, k, v, attention_mask = call
    fully_masked = ~attention_mask.allowed.any(-1, keepdim=True).expand(
        q.shape[0], q.shape[1], q.shape[2], 1
    )
    for kernel in (fused, explicit):
        out = kernel(q, k, v, attention_mask, 1.0, 0.0)
        assert (out[fully_masked.expand_as(out)] == 0).all()


@given(calls())
def test_weights_sum_to_one_over_what_may_be_seen(
    call: tuple[torch.Tensor, torch.Tensor, torch.Tensor, AttentionMask],
) -> None:
    q, k, _, attention_mask = call
    weights = attention_weights(q, k, attention_mask.allowed, 1.0)
    mask = attention_mask.allowed.expand_as(weights)
    assert (weights[~mask] == 0).all()
    sums = weights.sum(-1)
    torch.testing.assert_close(sums, mask.any(-1).float(), rtol=0, atol=1e-5)


def test_true_means_may_look() -> None:
    padding_mask = torch.tensor([[True, False]])
    q = torch.zeros(1, 1, 1, 2)
    v = torch.tensor([[[[1.0, 0.0], [0.0, 1.0]]]])
    attention_mask = AttentionMask(PaddingMask(padding_mask), torch.arange(1), torch.arange(2))
    torch.testing.assert_close(
        fused(q, torch.zeros(1, 1, 2, 2), v, attention_mask, 1.0, 0.0), v[:, :, :1]
    )


def test_two_tokens_by_hand() -> None:
    """q = (1, 0) against keys (1, 0) and (0, 1), d_k = 2: scores 1/√2 and 0, weights .6698 and .3302."""
    q = torch.tensor([[[[1.0, 0.0]]]])
    k = torch.tensor([[[[1.0, 0.0], [0.0, 1.0]]]])
    v = torch.tensor([[[[10.0, 0.0], [0.0, 10.0]]]])
    attention_mask = AttentionMask(FullMask(), torch.arange(1), torch.arange(2))
    out = fused(q, k, v, attention_mask, 2**-0.5, 0.0)[0, 0, 0]
    torch.testing.assert_close(out, torch.tensor([6.698, 3.302]), rtol=0, atol=1e-3)


def test_the_cat_sat_on_the_mat() -> None:
    """The worked example: "The cat sat on the mat", what `cat` looks at; scores are plain dot products there, scaled by √4."""
    q = torch.tensor([0.9, 0.1, 0.2, 0.3]).view(1, 1, 1, 4)
    keys = [[0, 0, 0, 1], [1, 0, 0.3, 0], [0, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0]]
    values = [
        [0.1, 0, 0, 0.8],
        [0.9, 0, 0.1, 0.7],
        [0, 0.9, 0, 0.3],
        [0, 0, 0.5, 0],
        [0, 0, 0, 0.9],
        [0, 0, 0.9, 0.6],
    ]
    k, v = torch.tensor(keys).view(1, 1, 6, 4), torch.tensor(values).view(1, 1, 6, 4)
    attention_mask = AttentionMask(FullMask(), torch.arange(1), torch.arange(6))
    scores = (q @ k.transpose(-1, -2)).flatten()
    torch.testing.assert_close(
        scores, torch.tensor([0.30, 0.96, 0.10, 0.0, 0.30, 0.20]), rtol=0, atol=0.01
    )
    weights = attention_weights(q, k, attention_mask.allowed, 4**-0.5).flatten()
    torch.testing.assert_close(
        weights, torch.tensor([0.16, 0.23, 0.15, 0.14, 0.16, 0.16]), rtol=0, atol=0.01
    )
    output = fused(q, k, v, attention_mask, 4**-0.5, 0.0).flatten()
    torch.testing.assert_close(output, torch.tensor([0.22, 0.14, 0.24, 0.57]), rtol=0, atol=0.01)


def test_few_queries_drop_weights_while_training_whether_or_not_gradients_are_kept() -> None:
    """The way of decoding, which knows no dropout, is not taken then."""
    mixer = SoftmaxAttention(0.3, 0.5).train()
    q, k, v = (
        torch.randn(8, 4, n, 8, generator=torch.Generator().manual_seed(n)) for n in (1, 5, 5)
    )
    attention_mask = AttentionMask(FullMask(), torch.arange(1), torch.arange(5), 8)
    with torch.no_grad():
        assert not torch.equal(mixer(q, k, v, attention_mask), mixer(q, k, v, attention_mask))
        assert torch.equal(mixer.eval()(q, k, v, attention_mask), mixer(q, k, v, attention_mask))
