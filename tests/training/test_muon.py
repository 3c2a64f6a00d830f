"""Muon against PyTorch's own, for matrices of several maps, and where an update is skipped."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from regard.core.linear import Linear
from regard.system.errors import SettingError
from regard.training.engine.muon import maps_of, orthogonalized
from regard.training.engine.optimizer import AdamConfig, ConstantRate, Optimizer
from regard.training.recipe import loading


def muon(weight: nn.Parameter, *parts: int) -> Optimizer:
    """An optimizer of one matrix, and of a vector that is Adam's."""
    named = [("w", weight), ("b", nn.Parameter(torch.ones(2)))]
    config = AdamConfig("muon", weight_decay=0.1)
    return Optimizer(named, ConstantRate(0.1, 1), config, matrices={"w": parts})


def step(optimizer: Optimizer, number: int, gradient: torch.Tensor) -> None:
    optimizer.named[0][1].grad = gradient
    optimizer.named[1][1].grad = torch.ones(2)
    optimizer.set_learning_rate(number)
    optimizer.update(torch.tensor(1.0))


@pytest.mark.parametrize("shape", [(6, 4), (4, 6)])
def test_updates_equal_torchs(shape: tuple[int, int]) -> None:
    ours, theirs = (nn.Parameter(torch.linspace(-1, 1, 24).view(shape)) for _ in range(2))
    optimizer = muon(ours, shape[0])
    reference = torch.optim.Muon([theirs], lr=0.1, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    for number in range(1, 6):
        gradient = torch.randn(shape)
        theirs.grad = gradient.clone()
        step(optimizer, number, gradient)
        reference.step()
        # Theirs iterates in bfloat16.
        torch.testing.assert_close(ours, theirs, rtol=0.02, atol=0.02)


def test_singular_values_come_near_one() -> None:
    values = torch.linalg.svdvals(orthogonalized(torch.randn(3, 20, 8)))
    assert values.min() > 0.6
    assert values.max() < 1.3


def test_each_map_of_a_matrix_is_updated_as_by_itself() -> None:
    together = nn.Parameter(torch.randn(12, 4))
    apart = [nn.Parameter(part.clone()) for part in together.detach().split((4, 8))]
    whole, first, second = muon(together, 4, 8), muon(apart[0], 4), muon(apart[1], 8)
    for number in (1, 2):
        gradient = torch.randn(12, 4)
        step(whole, number, gradient.clone())
        for optimizer, part in zip((first, second), gradient.split((4, 8)), strict=True):
            step(optimizer, number, part.clone())
    torch.testing.assert_close(together, torch.cat(apart))  # type: ignore[arg-type]


def test_what_is_not_finite_changes_nothing() -> None:
    weight = nn.Parameter(torch.randn(4, 3))
    optimizer = muon(weight, 4)
    step(optimizer, 1, torch.randn(4, 3))
    before, state = weight.detach().clone(), {k: v.clone() for k, v in optimizer.state().items()}
    step(optimizer, 2, torch.full((4, 3), torch.nan))
    assert torch.equal(weight, before)
    assert all(torch.equal(value, state[key]) for key, value in optimizer.state().items())


def test_it_goes_on_from_its_state() -> None:
    whole, stopped = (nn.Parameter(torch.arange(12.0).view(4, 3)) for _ in range(2))
    one, other = muon(whole, 4), muon(stopped, 4)
    gradients = [torch.randn(4, 3) for _ in range(4)]
    for number, gradient in enumerate(gradients, 1):
        if number == 3:
            resumed = muon(stopped, 4)
            resumed.named[1][1].data.copy_(other.named[1][1])
            resumed.load({key: value.clone() for key, value in other.state().items()})
            other = resumed
        step(one, number, gradient.clone())
        step(other, number, gradient.clone())
    assert torch.equal(whole, stopped)


def test_only_maps_of_blocks_are_its_matrices() -> None:
    model = nn.ModuleDict({"blocks": nn.ModuleList([Linear(4, 6, parts=(2, 4))])})
    model["head"] = Linear(4, 9)
    model["tokens"] = nn.Embedding(9, 4)
    assert maps_of(model) == {"blocks.0.weight": (2, 4)}


def test_sharded_matrices_are_refused() -> None:
    with pytest.raises(SettingError, match="fsdp"):
        loading.load("copying", {"optimizer": "muon", "strategy": "fsdp"})
