"""What earlier versions wrote still opens: names of specs, of tensors in folders, of carried states."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from regard import disk, spec
from regard.builder import build
from regard.checkpoint import Checkpoints
from regard.families import folder as folders
from regard.families import native
from regard.spec.serialization import _FORMER_FIELDS, _FORMER_NAMES, _KINDS
from regard.tensor_names import current_name, stored_name

ATTENTION = spec.Attention(2, 4, 4)


def encoder(**changes: Any) -> spec.Encoder:
    block = changes.pop("block", spec.Block(ATTENTION, spec.FeedForward(10), dropout=0.0))
    stack = spec.Stack(2, block, changes.pop("pattern", spec.FullMask()), **changes)
    tokens = spec.Tokens(19, spec.LearnedPosition(40), dropout=0.0)
    return spec.Encoder(8, tokens, stack, head=spec.LMHead())


GLOBAL = encoder(
    block=spec.Block(
        spec.Attention(2, 4, 4, projection="global"), spec.FeedForward(10), dropout=0.0
    ),
    pattern=spec.WindowMask(3),
)
CONVOLUTION = encoder(conv_layer=spec.ConvLayer(3))
COMPRESSED = encoder(pattern=spec.CausalMask(), memory=4, compressed=spec.CompressiveMemory(3, 2))
ALTERNATING = encoder(
    alternating_blocks=(spec.Block(ATTENTION, spec.FeedForward(10), dropout=0.0),)
)
RING = spec.ChunkRing(12, 4)


def with_former_names(data: Any) -> Any:
    """A spec as JSON with the names that earlier versions gave to its kinds and fields."""
    former = {new: old for old, new in _FORMER_NAMES.items()}
    former_fields = {(kind, new): old for (kind, old), new in _FORMER_FIELDS.items()}
    if isinstance(data, list):
        return [with_former_names(item) for item in data]
    if isinstance(data, dict):
        kind = str(data.get("kind"))
        renamed = {
            former_fields.get((kind, key), key): with_former_names(value)
            for key, value in data.items()
        }
        if "kind" in renamed:
            renamed["kind"] = former.get(renamed["kind"], renamed["kind"])
        return renamed
    return data


def test_every_former_name_leads_to_a_kind() -> None:
    assert set(_FORMER_NAMES.values()) <= set(_KINDS)
    assert not set(_FORMER_NAMES) & set(_KINDS)


def test_every_former_field_leads_to_a_field() -> None:
    for (kind, former), field in _FORMER_FIELDS.items():
        names = [option.name for option in dataclasses.fields(_KINDS[kind])]
        assert field in names
        assert former not in names


@pytest.mark.parametrize(
    "description",
    [GLOBAL, CONVOLUTION, COMPRESSED, ALTERNATING, RING],
    ids=["global", "convolution", "compressed", "alternating", "ring"],
)
def test_specs_with_their_former_names_are_read(description: Any) -> None:
    data = with_former_names(spec.to_dict(description))
    assert data != spec.to_dict(description)
    assert spec.from_dict(data) == description


@pytest.mark.parametrize(
    ("description", "name"),
    [(GLOBAL, "everywhere.project.qkv.weight"), (CONVOLUTION, "stack.beside.conv.weight")],
    ids=["global", "convolution"],
)
def test_our_folders_keep_the_names_of_their_tensors(
    description: spec.Encoder, name: str, tmp_path: Path
) -> None:
    model = build(description).eval()
    disk.write_json(tmp_path / "config.json", native.to_config(description, 1))
    folders.write_weights(tmp_path / "model.safetensors", model, description, model_type="regard")
    stored = load_file(tmp_path / "model.safetensors")
    assert any(tensor.endswith(name) for tensor in stored)
    reopened, _ = folders.open_model(tmp_path)
    tokens = torch.randint(0, 19, (2, 9))
    assert torch.equal(reopened(tokens)[0], model(tokens)[0])


def test_checkpoints_are_read_under_the_names_of_now(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    old = {"0.real": torch.ones(2, dtype=torch.bool), "stack.beside.conv.weight": torch.ones(3)}
    checkpoints.save(7, {"carry": old}, {})
    saved = checkpoints.newest(print)
    assert saved is not None
    assert set(saved.groups["carry"]) == {"0.padding_mask", "stack.conv_layer.conv.weight"}


@pytest.mark.parametrize("name", ["a.everywhere.b", "stack.beside.conv", "3.real", "x.y"])
def test_names_come_back(name: str) -> None:
    assert stored_name(current_name(name)) == name
