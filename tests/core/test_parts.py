"""Parts against their formulas."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from conftest import small_model
from regard.builder import build
from regard.core.linear import Linear
from regard.core.positions.positional_encoding import LearnedPosition, Sinusoidal, sinusoids
from regard.families.encoder_decoders.transformer import transformer
from regard.system.errors import DataError


def test_the_papers_positional_table() -> None:
    """PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i+1) = cos of the same; PE(0) = 0, 1, 0, 1, …"""
    table = sinusoids(torch.arange(50), 512, "interleaved", 10_000.0)
    for pos, i in ((0, 0), (1, 0), (3, 7), (49, 255)):
        angle = pos / 10_000 ** (2 * i / 512)
        assert table[pos, 2 * i].item() == pytest.approx(math.sin(angle))
        assert table[pos, 2 * i + 1].item() == pytest.approx(math.cos(angle))
    assert table[0, :4].tolist() == [0.0, 1.0, 0.0, 1.0]
    assert table[1, :2].tolist() == pytest.approx([0.8415, 0.5403], abs=1e-4)


def test_halves_are_the_same_table_with_dimensions_renamed() -> None:
    halves, interleaved = (
        sinusoids(torch.arange(20), 16, order, 10_000.0) for order in ("halves", "interleaved")
    )
    torch.testing.assert_close(torch.cat([interleaved[:, 0::2], interleaved[:, 1::2]], 1), halves)


def test_a_shift_is_a_rotation() -> None:
    """Section 3.5: PE(pos + k) is a linear function of PE(pos), so dot products depend on the distance only."""
    table = sinusoids(torch.arange(40), 32, "halves", 10_000.0)
    products = table @ table.T
    for distance in (1, 5, 17):
        diagonal = products.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal))


def test_sinusoids_grow_with_the_input_and_learned_ones_say_no() -> None:
    grown = Sinusoidal(8, "halves", 10_000.0).rows(630)[600:630]
    torch.testing.assert_close(
        grown, sinusoids(torch.arange(600, 630), 8, "halves", 10_000.0).float()
    )
    learned = LearnedPosition(8, 16, offset=2)
    assert torch.equal(learned.rows(16), learned.table[2:])
    with pytest.raises(DataError, match="but this model has 16"):
        learned.rows(17)


def test_embeddings_are_scaled_by_the_root_of_d_model() -> None:
    model = small_model(position=None)
    tokens = torch.tensor([[4, 7]])
    torch.testing.assert_close(
        model.source(tokens), model.source.table.weight[tokens] * math.sqrt(24)
    )


def test_a_joint_projection_starts_as_one() -> None:
    """Xavier over the whole matrix, as torch's MultiheadAttention starts."""
    joint = Linear(64, 64 * 3, parts=(64, 64, 64)).weight
    theirs = nn.MultiheadAttention(64, 4).in_proj_weight
    assert joint.abs().max().item() == pytest.approx(theirs.abs().max().item(), rel=0.02)
    assert joint.std().item() == pytest.approx(theirs.std().item(), rel=0.05)


def test_dropout_is_where_it_was_asked_for() -> None:
    """Each of the three kinds alone makes training random; none leaves it exact; evaluation never is."""
    source, target = torch.randint(4, 20, (2, 6)), torch.randint(4, 20, (2, 5))
    quiet: dict[str, Any] = {"dropout": 0.0, "attention_dropout": 0.0, "feedforward_dropout": 0.0}
    for key in [None, *quiet]:
        changes = quiet | ({key: 0.4} if key else {})
        model = build(
            transformer(20, 20, d_model=12, d_ff=20, heads=2, layers=1, **changes)
        ).train()
        one, other = model(source, target)[0], model(source, target)[0]
        assert torch.equal(one, other) == (key is None)
        model.eval()
        assert torch.equal(model(source, target)[0], model(source, target)[0])
