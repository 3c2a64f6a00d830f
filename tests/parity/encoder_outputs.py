"""What the tests of text encoders share: our outputs, their comparison, a folder written again."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.families import folder as folders
from regard.system import disk
from regard.wirings.encoder import Encoder


def encoder_outputs(
    model: Encoder, tokens: Tensor, padding_mask: Tensor, names: Iterable[str], **options: Any
) -> dict[str, Tensor]:
    """The outputs of these names: hidden states, pooled vector, logits of the vocabulary, labels."""
    with torch.inference_mode():
        hidden, _ = model(tokens, padding_mask, **options)  # [B, T, D]
        outputs: dict[str, Any] = {
            "hidden": lambda: hidden,
            "pool": lambda: model.pool(hidden, padding_mask),  # type: ignore[misc]
            "head": lambda: model.head(hidden),  # type: ignore[misc]
            "labels": lambda: model.classes(hidden, padding_mask, tokens),
        }
        return {name: outputs[name]() for name in names}


def assert_close(
    outputs: dict[str, Tensor], expected: dict[str, Tensor], padding_mask: Tensor
) -> None:
    """Equal up to 1e-5 of the mean size; what stands at padding does not count."""
    assert outputs.keys() == expected.keys()
    for name, theirs in expected.items():
        ours = outputs[name]
        assert ours.shape == theirs.shape
        if theirs.ndim == 3:  # [B, T, ...]: one output for each token
            ours = ours[padding_mask]
            theirs = theirs[padding_mask]
        tolerance = 1e-5 * max(1.0, theirs.abs().mean().item())
        assert (ours - theirs).abs().max().item() <= tolerance, name


def write_back(model: Any, opened: folders.ModelFolder, folder: Path) -> Path:
    """Writes an opened model to a new folder, as the family that it came from."""
    folder.mkdir()
    config = folders.describe(opened.spec, positions=opened.positions, model_type=opened.model_type)
    disk.write_json(folder / "config.json", config)
    folders.write_weights(
        folder / "model.safetensors", model, opened.spec, opened.positions, opened.model_type
    )
    return folder
