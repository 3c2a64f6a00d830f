"""Writing a model folder: config.json and safetensors, in one file or in shards."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from regard import spec
from regard.families.config_schema import IGNORED_KEYS, Config
from regard.families.folder.files import WEIGHTS
from regard.families.folder.reading import ModelFolder
from regard.families.folder.special_tokens import (
    POSITIONS,
    SpecialTokenIds,
    special_token_config,
)
from regard.families.registry import family_of
from regard.families.state_dict import to_hf
from regard.system import disk
from regard.wirings.core_model import CoreModel

SHARD_SIZE = 5 * 10**9  # bytes of a file, unless a single tensor is larger
# Keys that no spec holds, and about which the config that a model was opened with is right.
_CARRIED_KEYS = (
    "id2label", "label2id", "problem_type", "pad_token_id", "bos_token_id", "eos_token_id",
    "sep_token_id", "unk_token_id", "cls_token_id", "mask_token_id", "decoder_start_token_id",
    "forced_bos_token_id", "forced_eos_token_id", "forced_decoder_ids", "suppress_tokens",
    "begin_suppress_tokens", "task_specific_params", "prefix", "tokenizer_class",
    "sentence_transformers", "sbert_ce_default_activation_function", "num_parallel_samples",
)  # fmt: skip
_LABEL_KEYS = ("id2label", "label2id")
# Keys that are true of the files they came with only, or that others say anew.
_LEFT_OUT = {
    "_name_or_path", "_commit_hash", "transformers_version", "torch_dtype", "dtype",
    "num_labels", "_num_labels", "regard_pooler", "regard_head_bias",
}  # fmt: skip


# ------------------------------------------------------------------ config.json


def describe(
    model: spec.Model,
    ids: SpecialTokenIds | None = None,
    positions: int = POSITIONS,
    model_type: str | None = None,
) -> Config:
    """The content of config.json, in the format of the first family that can store the spec.

    `model_type` is tried before all others, because some families differ in names only.
    """
    family: Any = family_of(model, model_type)
    config: Config = family.to_config(model, positions)
    if ids is None:
        return config
    # BLIP has them in the config of its text, under other names.
    in_its_own_place = getattr(family, "with_token_ids", None)
    if in_its_own_place is not None:
        return in_its_own_place(config, ids)  # type: ignore[no-any-return]
    return {**config, **special_token_config(ids)}


def carry_over(new: Config, config: Mapping[str, Any]) -> Config:
    """A description of a model with the rest of the config that it was opened with.

    In the same family's keys that is everything that `new` does not say, used here or not; in those
    of another family, what all of them may have. A tower's config is nested.
    """
    same_family = new.get("model_type") == config.get("model_type")
    former = {
        key: value
        for key, value in config.items()
        if key not in _LEFT_OUT and (same_family or key in IGNORED_KEYS)
    }
    carried = {key: former[key] for key in _CARRIED_KEYS if key in former}
    old_labels = carried.get("id2label") or {}
    if "id2label" in new and len(old_labels) != len(new["id2label"]):
        # Another number of labels: the old names are those of another task.
        carried = {key: value for key, value in carried.items() if key not in _LABEL_KEYS}
    towers: Config = {
        key: carry_over(new[key], former[key])
        for key in ("text_config", "vision_config", "perceiver_config", "encoder", "decoder")
        if key in new and isinstance(former.get(key), dict)
    }
    return {**former, **new, **carried, **towers}


def _rewritten_config(content: ModelFolder, model_type: str) -> Config:
    """The config.json of a folder that is written again."""
    description = describe(content.spec, content.ids, content.positions, model_type)
    config = carry_over(description, content.config)
    # transformers opens a folder in the precision that config.json names.
    dtypes = {str(tensor.dtype).removeprefix("torch.") for tensor in content.weights.values()}
    if len(dtypes) == 1:
        config["dtype"] = dtypes.pop()
    return config


# ------------------------------------------------------------------ weights


def write_weights(
    path: Path,
    model: CoreModel,
    model_spec: spec.Model,
    positions: int = POSITIONS,
    model_type: str | None = None,
) -> None:
    """Writes model.safetensors as `describe` announces it, replaced as a whole or not at all."""
    disk.replace_tensors(path, weight_tensors(model, model_spec, positions, model_type))


def weight_tensors(
    model: CoreModel,
    model_spec: spec.Model,
    positions: int = POSITIONS,
    model_type: str | None = None,
) -> dict[str, Tensor]:
    """The tensors of model.safetensors, by the names in that file; views where they can be."""
    table = family_of(model_spec, model_type).tensor_table(model_spec, positions)
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
    return to_hf(table, parameters)


def write_model(
    folder: Path,
    content: ModelFolder,
    *,
    model_type: str | None = None,
    shard_size: int = SHARD_SIZE,
) -> None:
    """Writes config.json and weights of a folder that was read, in the precision that they have.

    `model_type` is the family to write it as, by default its own.
    """
    model_type = model_type or content.model_type
    disk.write_json(folder / "config.json", _rewritten_config(content, model_type))
    table = family_of(content.spec, model_type).tensor_table(content.spec, content.positions)
    _write_tensors(folder, to_hf(table, content.weights), shard_size)


def _write_tensors(folder: Path, tensors: Mapping[str, Tensor], shard_size: int) -> None:
    """Writes model.safetensors; or, above `shard_size`, several files and their index."""
    shards = _shards(tensors, shard_size)
    if len(shards) == 1:
        disk.write_tensors(folder / WEIGHTS, tensors)
        return
    weight_map: dict[str, str] = {}  # tensor name → file
    for number, names in enumerate(shards, 1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        disk.write_tensors(folder / file, {name: tensors[name] for name in names})
        weight_map.update(dict.fromkeys(names, file))
    total_size = sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": total_size}, "weight_map": weight_map}
    disk.write_json(folder / f"{WEIGHTS}.index.json", index)


def _shards(tensors: Mapping[str, Tensor], shard_size: int) -> list[list[str]]:
    """The tensor names in their order, as many in a shard as fit."""
    shards: list[list[str]] = [[]]
    filled = 0
    for name, tensor in tensors.items():
        if shards[-1] and filled + tensor.nbytes > shard_size:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += tensor.nbytes
    return shards
