"""Every test draws the same numbers, whichever tests ran before it."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch


def draw() -> tuple[float, float, float]:
    return torch.rand(()).item(), float(np.random.rand()), random.random()


@pytest.fixture(scope="module")
def shared_draw() -> tuple[float, float, float]:
    return draw()


def test_a_test_is_seeded_from_its_name(request: pytest.FixtureRequest) -> None:
    from conftest import seed_generators

    first = draw()
    seed_generators(request.node.nodeid)
    assert draw() == first
    seed_generators("another test")
    assert draw() != first


def test_a_shared_fixture_leaves_the_test_where_it_was(request: pytest.FixtureRequest) -> None:
    from conftest import seed_generators

    expected = [draw(), draw()]
    seed_generators(request.node.nodeid)
    first = draw()
    shared = request.getfixturevalue("shared_draw")
    assert [first, draw()] == expected
    assert shared not in expected
