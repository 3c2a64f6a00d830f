"""The update against PyTorch's own parts, and what it does with numbers that are not finite."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from regard.evaluation.metrics.perplexity import corpus_nll, perplexity
from regard.training.engine.optimizer import AdamConfig, ConstantRate, Optimizer


def _optimizer(
    parameter: nn.Parameter, config: AdamConfig | None = None, **options: float
) -> Optimizer:
    return Optimizer([("w", parameter)], ConstantRate(0.1, 1), config, **options)  # type: ignore[arg-type]


def _applied(
    optimizer: Optimizer, step: int, loss: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    optimizer.set_learning_rate(step)
    return optimizer.update(loss)


@pytest.mark.parametrize("kind", ["adam", "adamw"])
def test_clipped_updates_equal_torchs(kind: str) -> None:
    ours, theirs = (nn.Parameter(torch.linspace(-1, 1, 12).view(4, 3)) for _ in range(2))
    optimizer = _optimizer(ours, AdamConfig(kind, weight_decay=0.01), max_grad_norm=0.5)
    make = torch.optim.AdamW if kind == "adamw" else torch.optim.Adam
    reference = make([theirs], lr=0.1, betas=(0.9, 0.98), eps=1e-9, weight_decay=0.01)
    for step in range(1, 5):
        for parameter in (ours, theirs):
            (parameter.sin() * torch.arange(12).view(4, 3)).sum().backward()
        norm, skipped = _applied(optimizer, step, torch.tensor(1.0))
        assert norm.item() == pytest.approx(
            nn.utils.clip_grad_norm_([theirs], 0.5).item(), rel=1e-5
        )
        assert skipped.item() == 0
        reference.step()
        reference.zero_grad()
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("gradient", "loss"), [(float("nan"), 1.0), (float("inf"), 1.0), (1.0, float("nan"))]
)
def test_what_is_not_finite_changes_nothing(gradient: float, loss: float) -> None:
    weight = nn.Parameter(torch.ones(3, 2))
    optimizer = _optimizer(weight, max_grad_norm=1.0)
    (weight.sum() * 2).backward()
    _applied(optimizer, 1, torch.tensor(1.0))
    before, state = weight.detach().clone(), {k: v.clone() for k, v in optimizer.state().items()}
    weight.grad = torch.full_like(weight, gradient)
    _, skipped = _applied(optimizer, 2, torch.tensor(loss))
    assert skipped.item() == 1
    assert torch.equal(weight, before)
    for key, value in optimizer.state().items():
        assert torch.equal(value, state[key]), key


def test_loss_scaling_halves_and_grows_and_cancels() -> None:
    plain, scaled = (nn.Parameter(torch.ones(3, 2)) for _ in range(2))
    one, other = (
        _optimizer(plain, max_grad_norm=0.5),
        _optimizer(scaled, max_grad_norm=0.5, loss_scaling=True),
    )
    for step in range(1, 4):
        (plain.sin().sum()).backward()
        (scaled.sin().sum() * other.scaler.scale).backward()
        first, second = (
            _applied(one, step, torch.tensor(1.0))[0],
            _applied(other, step, torch.tensor(1.0))[0],
        )
        assert first.item() == pytest.approx(second.item(), rel=1e-5)
        torch.testing.assert_close(plain, scaled)
    scaled.grad = torch.full_like(scaled, float("inf"))
    _applied(other, 4, torch.tensor(1.0))
    assert other.scaler.scale.item() == 32768
    other.scaler.streak.fill_(1999)
    scaled.grad = torch.ones_like(scaled)
    _applied(other, 5, torch.tensor(1.0))
    assert other.scaler.scale.item() == 65536


def test_state_round_trip() -> None:
    first = nn.Parameter(torch.randn(3, 2))
    optimizer = _optimizer(first)
    (first**3).sum().backward()
    _applied(optimizer, 1, torch.tensor(1.0))
    second = nn.Parameter(first.detach().clone())
    copy = _optimizer(second)
    copy.load({name: tensor.clone() for name, tensor in optimizer.state().items()})
    for parameter, owner in ((first, optimizer), (second, copy)):
        (parameter**2).sum().backward()
        _applied(owner, 2, torch.tensor(1.0))
    assert torch.equal(first, second)


def test_corpus_nll_sums_what_the_device_and_the_host_hold() -> None:
    batches: list[tuple[torch.Tensor | float, int]] = [
        (torch.tensor(0.1), 2),
        (0.25, 3),
        (torch.tensor(1e-9), 1),
    ]
    total, tokens = corpus_nll(batches)
    assert tokens == 6
    assert total == pytest.approx(0.350000001, abs=1e-8)
    assert corpus_nll([]) == (0.0, 0)


def test_perplexity() -> None:
    assert perplexity(0.0, 5) == 1.0
    assert perplexity(1e9, 1) == float("inf")
