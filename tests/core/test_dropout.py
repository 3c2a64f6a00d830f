"""Dropout by its definition: independent zeros at the rate, the rest scaled, the same mask
backward.
"""

from __future__ import annotations

import pytest
import torch

from regard.core.dropout import Dropout


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.5, 0.97])
def test_zeros_come_at_the_rate_in_every_place(rate: float) -> None:
    """Each of the four decisions made from one draw, and each pair of them, must be right on its
    own.
    """
    out = Dropout(rate).train()(torch.ones(1_000_000))
    zero = (out == 0).view(-1, 4)
    assert zero.float().mean(0).tolist() == pytest.approx([rate] * 4, abs=0.004)
    for i, j in ((0, 1), (1, 2), (2, 3), (0, 3)):
        assert (zero[:, i] & zero[:, j]).float().mean().item() == pytest.approx(
            rate * rate, abs=0.004
        )
    assert (zero[1:, 0] & zero[:-1, 3]).float().mean().item() == pytest.approx(
        rate * rate, abs=0.004
    )
    assert out[out != 0].unique().item() == pytest.approx(1 / (1 - rate), rel=1e-3)


def test_the_gradient_goes_where_the_value_went() -> None:
    x = torch.randn(7, 5, 3, requires_grad=True)
    out = Dropout(0.4).train()(x)
    (gradient,) = torch.autograd.grad((out * 2).sum(), x)
    torch.testing.assert_close(gradient * x.detach(), 2 * out.detach())


def test_the_default_generator_decides() -> None:
    draws = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        draws.append(Dropout(0.5).train()(torch.ones(1000)))
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


def test_nothing_happens_outside_training_or_without_a_rate() -> None:
    x = torch.randn(5)
    assert Dropout(0.5).eval()(x) is x
    assert Dropout(0.0).train()(x) is x
