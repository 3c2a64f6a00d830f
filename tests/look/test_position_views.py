"""Every kind of position is named by `look --what positions`, and what it shows follows from its parameters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from regard import spec
from regard.builder import build
from regard.core.positions.positional_encoding import sinusoids
from regard.families.presets import preset
from regard.look.position_encodings import PositionEncodings, positions
from regard.models.base import Model
from regard.system.errors import SettingError


def look(name: str, **changes: Any) -> tuple[Any, PositionEncodings]:
    """A preset with random weights everywhere, and the view of its first eight positions."""
    model = preset(name, 50, 32, **changes)
    module: Any = build(model)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter)
    return module, positions(Model(module, model), 8)


def test_shaws_vectors_by_distance() -> None:
    module, view = look("bert:tiny", position="relative:3", layers=1)
    assert "Shaw" in view.title
    sizes = module.stack.blocks[0].attention.position.table.detach().norm(dim=-1).numpy()
    for query in range(8):
        for key in range(8):
            row = max(-3, min(3, query - key)) + 3
            assert view.products[query, key] == pytest.approx(sizes[row], rel=1e-5)


def test_transformer_xls_distances() -> None:
    module, view = look("transformer-xl:tiny", layers=1)
    assert "Transformer-XL" in view.title
    relative = module.stack.blocks[0].attention.position
    heads, _, width = relative.position.shape
    # Term (d) by hand, for a distance of 5: v · W r.
    wave = sinusoids(torch.tensor([5]), 128, "halves", 10_000.0).float()
    keys = relative.project(wave).view(heads, width)
    term = (relative.position[:, 0] * keys).sum(-1).mean() / width**0.5
    assert view.products[6, 1] == pytest.approx(term.item(), rel=1e-4)
    # Only the distance counts.
    np.testing.assert_allclose(np.diagonal(view.products, -2), view.products[2, 0], rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "changes", "word"),
    [
        ("gpt2:tiny", {"position": "concatenated:24"}, "concatenated with the embeddings"),
        ("universal:tiny", {}, "each step"),
    ],
)
def test_sinusoids_in_other_places(name: str, changes: dict[str, Any], word: str) -> None:
    _, view = look(name, **changes)
    assert word in view.title
    assert view.encodings is not None
    width = view.encodings.shape[1]
    expected = sinusoids(torch.arange(8), width, "halves", 10_000.0).float().numpy()
    np.testing.assert_allclose(view.encodings, expected, atol=1e-6)


def test_what_there_are_no_vectors_of() -> None:
    # A table that is shorter than what was asked is shown as it is.
    model = preset("gpt2:tiny", 50, 5)
    assert positions(Model(build(model), model), 8).products.shape == (5, 5)
    sound = preset("wav2vec2:tiny")
    with pytest.raises(SettingError, match="convolution"):
        positions(Model(build(sound), sound), 8)


def test_rows_and_columns_of_patches() -> None:
    model = preset("vit:tiny", 7, 64, layers=1, position="sinusoidal")
    view = positions(Model(build(model), model), 17)
    assert "2D sinusoidal" in view.title
    assert view.encodings is not None
    assert not view.encodings[0].any()  # the class token has no place
    # 4 × 4 patches: the first of two rows share their column's half, not their row's.
    half = view.encodings.shape[1] // 2
    np.testing.assert_allclose(view.encodings[1, half:], view.encodings[5, half:])
    assert not np.allclose(view.encodings[1, :half], view.encodings[5, :half])
    assert isinstance(model, spec.Encoder)
