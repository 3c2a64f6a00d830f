"""Model.save: a model written as a folder in Hugging Face's layout, completely or not at all."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard import spec as kinds
from regard.core.amx import require_bfloat16_products
from regard.core.positions.rotary import Rope
from regard.data import patch_codebook, training_coverage
from regard.data.text import chat_template
from regard.data.text.sentencepiece_layouts import FILES, SIDES
from regard.families import folder as folders
from regard.system import disk
from regard.system.errors import DiskError, SettingError, did_you_mean
from regard.wirings.core_model import CoreModel

Files = Mapping[str, str | dict[str, Any]]  # name → content; dicts become JSON

# Files of a model's folder that concern text: tokenizers, and how text is generated.
TEXT_FILES = (
    "generation_config.json",
    "tokenizer.json",
    "target_tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "target_vocab.json",
    "merges.txt",
    chat_template.FILE,
)
# Those that say how images and sound become inputs.
PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json", patch_codebook.FILE)
# All files next to config.json and the weights: of sentence vectors as well.
COMPANION_FILES = (
    *TEXT_FILES,
    *PROCESSOR_FILES,
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "1_Pooling/config.json",
    training_coverage.FILE,
)
SENTENCEPIECE_FILES = (*FILES, *SIDES)  # by the names that the families give them


def save(
    target: Path,
    model: CoreModel,
    spec: kinds.Model,
    config: Mapping[str, Any],
    origin: Path | None,
    files: Files,
) -> Path:
    """Writes config.json, weights and companion files into the folder `target`.

    `origin` is the folder that the model was opened from, whose other files are copied; `files`
    are their contents, by name, where there is none.
    """
    # Before anything is written: the folder is replaced as a whole.
    _check_replaceable(target)
    additions: Any = files.get("config.json")
    with disk.atomic_folder(target.absolute()) as folder:
        disk.write_json(folder / "config.json", config_json(spec, config, additions))
        tensors = weight_tensors(model, spec, config)
        if origin is not None:
            opened = folders.ModelFolder(spec, {}, None, dict(config))
            tensors |= folders.unused_tensors(opened, origin)
        disk.replace_tensors(folder / folders.WEIGHTS, tensors)
        # Strings are files as they are, dicts become JSON.
        for name, content in files.items():
            if isinstance(content, str):
                disk.write_file(folder / name, content)
            elif name != "config.json":
                disk.write_json(folder / name, content)
        if origin is not None:
            unchanged = [name for name in COMPANION_FILES if name not in files]
            copy_companion_files(origin, folder, unchanged)
    return target


def config_json(
    spec: kinds.Model, config: Mapping[str, Any], additions: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """config.json of a model that was opened with `config`, in the same family's keys."""
    # The family and the number of positions are those of the folder that it came from.
    opened = folders.ModelFolder(spec, {}, None, dict(config))
    description = folders.describe(spec, None, opened.positions, opened.model_type)
    return folders.carry_over(description | dict(additions or {}), config)


def write_weights(
    path: Path, model: CoreModel, spec: kinds.Model, config: Mapping[str, Any]
) -> None:
    """Writes the weights under the names of the family that `config_json` names."""
    disk.replace_tensors(path, weight_tensors(model, spec, config))


def weight_tensors(
    model: CoreModel, spec: kinds.Model, config: Mapping[str, Any]
) -> dict[str, Tensor]:
    """What `write_weights` writes."""
    opened = folders.ModelFolder(spec, {}, None, dict(config))
    return folders.weight_tensors(model, spec, opened.positions, opened.model_type)


def copy_companion_files(origin: Path, folder: Path, names: Sequence[str]) -> None:
    """Copies the files of these names, and SentencePiece models, from one folder to another."""
    paths = [origin / name for name in names]
    for path in [*paths, *origin.glob("*.model"), *origin.glob("*.spm")]:
        if path.is_file():
            copy = folder / path.relative_to(origin)
            copy.parent.mkdir(exist_ok=True)
            # Contents only: files of a read-only cache must not stay read-only.
            shutil.copyfile(path, copy)


def _check_replaceable(target: Path) -> None:
    """Refuses to replace a folder that holds anything but a model, such as a training run."""
    if not target.exists():
        return
    if not target.is_dir():
        raise DiskError(f"{target} is a file", "choose the name of a new folder")
    names = {path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file()}
    weights = (".safetensors", ".safetensors.index.json", ".model", ".spm")
    others = names.difference(("config.json", "README.md"), COMPANION_FILES)
    problems = sorted(name for name in others if not name.endswith(weights))
    if any(target.iterdir()) and "config.json" not in names:
        problems.append("no config.json")
    if problems:
        raise DiskError(
            f"{target} contains other files than a model: {problems[0]}",
            "choose the name of a new folder",
        )


DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def choose_dtype(dtype: str | torch.dtype | None) -> torch.dtype | None:
    """The data type of this name, such as `bfloat16`."""
    if dtype is None:
        return None
    if isinstance(dtype, torch.dtype):
        if not dtype.is_floating_point:
            raise SettingError(
                f"weights cannot have dtype {dtype}", f"use one of: {', '.join(DTYPES)}"
            )
        return dtype
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise SettingError(f"unknown dtype {dtype!r}", did_you_mean(str(dtype), DTYPES))
    return DTYPES[dtype]


def place(model: nn.Module, device: torch.device) -> None:
    """Moves parameters to a device. On a GPU none is a transposed view: its kernels read a weight
    row by row. On a CPU, views of a file stay where they are mapped."""
    model.to(device)
    if device.type != "cpu":
        for parameter in model.parameters():
            parameter.data = parameter.data.contiguous()


def cast(model: nn.Module, dtype: torch.dtype) -> None:
    """Casts parameters and position tables, all but the frequencies of rotary positions.

    An angle is frequency × position: with 8 bits of a bfloat16, distant positions would become
    indistinguishable.
    """
    if dtype == torch.bfloat16 and next(model.parameters()).device.type == "cpu":
        require_bfloat16_products()
    rotary = [part for part in model.modules() if isinstance(part, Rope)]
    frequencies = [part.frequencies for part in rotary]
    model.to(dtype)
    for part, tensor in zip(rotary, frequencies, strict=True):
        part.frequencies = tensor.to(part.frequencies.device)
