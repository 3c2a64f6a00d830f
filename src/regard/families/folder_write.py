"""What was opened goes out again: config.json and weights, in the precision that they have, in one file or in shards."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from regard import disk
from regard.families import folder as folders
from regard.families.tensor_table import HARMLESS, to_theirs

SHARD = 5 * 10**9  # bytes of a file at most, if no single tensor is larger
_OF_OTHERS = {
    "_name_or_path",
    "_commit_hash",
    "transformers_version",
    "torch_dtype",
    "dtype",
}  # true of the old files only


def write_model(
    folder: Path, opened: folders.ModelFolder, *, kind: str | None = None, shard: int = SHARD
) -> None:
    """Everything that makes the model; `kind` is the family to write it as, its own unless said."""
    kind = kind or opened.kind
    disk.write_json(folder / "config.json", config(opened, kind))
    rules = folders.family_of(opened.spec, kind).table(opened.spec, opened.positions)
    write_weights(folder, to_theirs(rules, opened.weights), shard)


def config(opened: folders.ModelFolder, kind: str) -> dict[str, Any]:
    """What the family says of the spec, with the notes of the config it came with: names of labels, ids of tokens."""
    notes = {k: v for k, v in opened.config.items() if k in HARMLESS - _OF_OTHERS and v is not None}
    precisions = {str(tensor.dtype).removeprefix("torch.") for tensor in opened.weights.values()}
    stored = {"dtype": precisions.pop()} if len(precisions) == 1 else {}
    named: dict[str, Any] = {key: notes[key] for key in ("id2label", "label2id") if key in notes}
    return {
        **notes,
        **folders.describe(opened.spec, opened.ids, opened.positions, kind),
        **named,
        **stored,
    }


def write_weights(folder: Path, tensors: Mapping[str, Tensor], shard: int = SHARD) -> None:
    """model.safetensors; or, above `shard` bytes, several files and the index that says what is where."""
    parts = _parts(tensors, shard)
    if len(parts) == 1:
        disk.write_tensors(folder / folders.WEIGHTS, tensors)
        return
    names = [f"model-{i + 1:05}-of-{len(parts):05}.safetensors" for i in range(len(parts))]
    for name, part in zip(names, parts, strict=True):
        disk.write_tensors(folder / name, {key: tensors[key] for key in part})
    where = {key: name for name, part in zip(names, parts, strict=True) for key in part}
    total = sum(tensor.nbytes for tensor in tensors.values())
    disk.write_json(
        folder / f"{folders.WEIGHTS}.index.json",
        {"metadata": {"total_size": total}, "weight_map": where},
    )


def _parts(tensors: Mapping[str, Tensor], shard: int) -> list[list[str]]:
    """Names in their order, as many together as fit."""
    parts: list[list[str]] = [[]]
    held = 0
    for name, tensor in tensors.items():
        if parts[-1] and held + tensor.nbytes > shard:
            parts.append([])
            held = 0
        parts[-1].append(name)
        held += tensor.nbytes
    return parts
