"""The loss against its definition and against PyTorch's."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import Categorical, kl_divergence
from torch.nn import functional

from regard.core.frontends.embedding import Table
from regard.core.heads.head import LMHead
from regard.data.padding import IGNORED
from regard.training.objectives.losses import (
    cross_entropy,
    linear_cross_entropy,
    r_drop,
)


@given(st.integers(2, 9), st.integers(1, 6), st.floats(0, 0.5), st.integers(0, 2**31))
def test_smoothing_is_the_definition_and_its_gradient(
    classes: int, rows: int, epsilon: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, classes, generator=generator, requires_grad=True)
    labels = torch.randint(0, classes, (rows,), generator=generator)
    labels[torch.rand(rows, generator=generator) < 0.3] = IGNORED
    loss, nll = cross_entropy(logits, labels, epsilon)
    wanted = logits.new_zeros(())
    for row, label in enumerate(labels.tolist()):
        for k, log_p in enumerate(logits[row].log_softmax(-1)):
            share = 1 - epsilon if k == label else epsilon / (classes - 1)
            wanted = wanted - (share * log_p if label != IGNORED else 0 * log_p)
    torch.testing.assert_close(loss, wanted, rtol=1e-5, atol=1e-5)
    unsmoothed = functional.cross_entropy(logits, labels, reduction="sum", ignore_index=IGNORED)
    torch.testing.assert_close(nll, unsmoothed.detach(), rtol=1e-5, atol=1e-5)
    ours, theirs = (torch.autograd.grad(3.0 * x, logits)[0] for x in (loss, wanted))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_no_smoothing_is_plain_cross_entropy() -> None:
    logits, labels = torch.randn(2, 3, 5), torch.randint(0, 5, (2, 3))
    loss, nll = cross_entropy(logits, labels)
    assert loss.item() == pytest.approx(nll.item())
    assert loss.item() == pytest.approx(
        functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum").item()
    )


def test_a_certain_model_has_the_entropy_of_the_smoothed_label() -> None:
    """The smallest smoothed loss is the entropy of q itself, not 0: why perplexity is reported unsmoothed."""
    epsilon, classes = 0.1, 5
    q = torch.full((classes,), epsilon / (classes - 1))
    q[2] = 1 - epsilon
    loss, nll = cross_entropy(q.log()[None], torch.tensor([2]), epsilon)
    assert loss.item() == pytest.approx(-(q * q.log()).sum().item(), rel=1e-5)
    assert nll.item() == pytest.approx(-math.log(1 - epsilon), rel=1e-5)


def test_disagreement_is_the_symmetric_divergence_of_the_real_tokens() -> None:
    one, other = torch.randn(2, 3, 7), torch.randn(2, 3, 7)
    labels = torch.tensor([[1, 2, IGNORED], [0, IGNORED, IGNORED]])
    p, q = Categorical(logits=one), Categorical(logits=other)
    wanted = ((kl_divergence(p, q) + kl_divergence(q, p)) / 2)[labels >= 0].sum()
    torch.testing.assert_close(r_drop(one, other, labels), wanted)
    assert r_drop(one, one, labels).item() == 0.0


def test_agreement_is_the_mean_loss_and_the_r_drop() -> None:
    hidden, labels = torch.randn(6, 4), torch.tensor([1, 2, IGNORED])
    head = LMHead(Table(9, 4), bias=True, scale=0.5)
    twice = torch.cat([labels, labels])
    loss, nll = linear_cross_entropy(head, hidden, twice, 0.1, 0.5)
    logits = head(hidden)
    each = [cross_entropy(half, labels, 0.1) for half in logits.chunk(2)]
    first, second = logits.chunk(2)
    apart = r_drop(first, second, labels)
    torch.testing.assert_close(loss, (each[0][0] + each[1][0]) / 2 + 0.5 * apart)
    torch.testing.assert_close(nll, (each[0][1] + each[1][1]) / 2)


@pytest.mark.parametrize("agreement", [0.0, 0.5])
def test_no_scores_are_made_for_padding(agreement: float) -> None:
    """The same loss and gradients as over all places, of which the head sees the real ones only."""
    seen: list[int] = []

    class Head(LMHead):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(len(x))
            return super().forward(x)

    torch.manual_seed(0)
    head = Head(Table(11, 6), bias=True)
    hidden = torch.randn(4, 5, 6, requires_grad=True)
    labels = torch.randint(0, 11, (2, 5)).repeat(2, 1)
    labels[[0, 2], 3:] = labels[[1, 3], 1:2] = IGNORED
    given = hidden, *head.parameters()
    loss, nll = linear_cross_entropy(head, hidden, labels, 0.1, agreement)
    found = torch.autograd.grad(loss, given)
    assert seen == [14]
    logits = head(hidden.flatten(0, 1))
    wanted, surprised = cross_entropy(logits, labels, 0.1)
    if agreement:
        wanted, surprised = wanted / 2, surprised / 2
        first, second = logits.chunk(2)
        wanted = wanted + agreement * r_drop(first, second, labels.flatten().chunk(2)[0])
    torch.testing.assert_close((loss, nll), (wanted, surprised))
    torch.testing.assert_close(found, torch.autograd.grad(wanted, given))
    empty, _ = linear_cross_entropy(head, hidden, torch.full_like(labels, IGNORED), 0.1, agreement)
    assert empty.item() == 0.0
