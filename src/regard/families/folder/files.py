"""The files of a model folder: config.json and safetensors, whole or in shards. No pickle."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from regard.families.config_schema import Config
from regard.system import disk
from regard.system.errors import CheckpointError, ModelError

WEIGHTS = "model.safetensors"
_INDEX = f"{WEIGHTS}.index.json"
# Suffixes of files that torch.load would unpickle.
_PICKLES = ("bin", "pt", "pth", "ckpt")
# Files of the formats that other programs read, and their programs.
_EXPORTS = {"*.onnx": "ONNX Runtime", "*vocabulary.json": "CTranslate2"}
_FETCH_AGAIN = "download it again, or use an earlier checkpoint"

# ------------------------------------------------------------------ JSON


def read_config(folder: Path) -> Config:
    """The content of config.json."""
    path = folder / "config.json"
    if not path.is_file():
        raise ModelError(
            f"{folder} is not a model or run folder", "pass the folder that contains config.json"
        )
    return disk.read_json_object(path, ModelError)


# ------------------------------------------------------------------ weights


def has_weights(folder: Path) -> bool:
    """Whether the folder holds safetensors."""
    return (folder / WEIGHTS).is_file() or (folder / _INDEX).is_file()


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of the folder: one, or the shards that its index lists."""
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if (folder / _INDEX).is_file():
        return _shards(folder, disk.read_json(folder / _INDEX, ModelError))
    require_no_export(folder)
    pickles = sorted(path.name for suffix in _PICKLES for path in folder.glob(f"*.{suffix}"))
    if pickles:
        raise ModelError(
            f"{folder} holds its weights as a pickle ({pickles[0]}), "
            "which can run any code when it is loaded",
            "if you trust it, convert it with transformers: "
            "AutoModelForSeq2SeqLM.from_pretrained(folder)"
            ".save_pretrained(other, safe_serialization=True)",
        )
    raise ModelError(
        f"{folder} holds no {WEIGHTS}",
        "train until the first checkpoint, or download the folder again",
    )


def require_no_export(folder: Path) -> None:
    """Refuses a folder whose model was written for another program (`regard convert --to`)."""
    for pattern, program in _EXPORTS.items():
        if any(folder.glob(pattern)):
            raise ModelError(
                f"{folder} is an export for {program}", "pass the folder that it was exported from"
            )


def _shards(folder: Path, index: Any) -> list[Path]:
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict) or not all(map(_is_plain_name, weight_map.values())):
        raise CheckpointError(f"{folder}/{_INDEX} is damaged", "download the folder again")
    paths = [folder / file for file in sorted(set(weight_map.values()))]
    different = sorted(set(tensor_names(paths)) ^ weight_map.keys())
    if different:
        raise CheckpointError(
            f"the index of {folder} and its files do not list the same tensors: {different[0]}",
            "download the folder again",
        )
    return paths


def _is_plain_name(file: Any) -> bool:
    """Whether it is a name without a path: an index must not lead out of its folder."""
    return isinstance(file, str) and Path(file).name == file


def tensor_names(files: Iterable[Path]) -> list[str]:
    """The names of all tensors, from the headers of the files alone."""
    names: list[str] = []
    for path in files:
        with _checking(path), safe_open(path, "pt") as file:
            names += file.keys()
    return names


def load_tensors(files: Iterable[Path]) -> dict[str, Tensor]:
    """The tensors of the files, memory-mapped: none is read before it is used."""
    tensors: dict[str, Tensor] = {}
    for path in files:
        with _checking(path):
            content = disk.mmap_tensors(path)
            is_altered = disk.is_altered(path)  # by the hash that our own files carry
        if is_altered:
            raise CheckpointError(
                f"{path} is damaged: its content is not what was written", _FETCH_AGAIN
            )
        tensors.update(content)
    return tensors


@contextmanager
def _checking(path: Path) -> Iterator[None]:
    try:
        # Opening a pipe would wait for a writer, who may never come.
        if path.exists() and not path.is_file():
            raise CheckpointError(f"{path} is not a regular file", _FETCH_AGAIN)
        yield
    except (SafetensorError, OSError, MemoryError) as error:
        raise CheckpointError(f"{path} is damaged or incomplete: {error}", _FETCH_AGAIN) from None
