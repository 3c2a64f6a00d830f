"""From a held model to a folder in Hugging Face's layout: all of it, or nothing."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from regard import disk
from regard import spec as kinds
from regard.build import CoreModel
from regard.errors import DiskError
from regard.families import folder as folders
from regard.text.sentencepiece_layouts import FILES, SIDES

# What a model's folder holds beside config.json and weights: how text, images and sound are prepared, how text is generated.
TEXTS = (
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
    "chat_template.jinja",
)
BESIDE = (
    *TEXTS, "preprocessor_config.json", "processor_config.json", "modules.json", "sentence_bert_config.json",
    "config_sentence_transformers.json", "1_Pooling/config.json",
)  # fmt: skip
_SENTENCEPIECE = ("*.model", "*.spm")
PIECES = (*FILES, *SIDES)  # as they are called
# Notes in config.json that no spec knows, and which belong to the model all the same.
_KEPT = (
    "id2label", "label2id", "problem_type", "pad_token_id", "bos_token_id", "eos_token_id", "sep_token_id", "unk_token_id",
    "cls_token_id", "mask_token_id", "decoder_start_token_id", "forced_bos_token_id", "forced_eos_token_id",
    "forced_decoder_ids", "suppress_tokens", "begin_suppress_tokens", "task_specific_params", "prefix", "tokenizer_class",
    "sentence_transformers", "sbert_ce_default_activation_function",
)  # fmt: skip
_LABELS = ("id2label", "label2id")
_TOWERS = ("text_config", "vision_config")


def save(
    target: Path,
    model: CoreModel,
    description: kinds.Model,
    config: Mapping[str, Any],
    home: Path | None,
    files: Mapping[str, str | dict[str, Any]],
) -> Path:
    """`home`: the folder it came from, whose other files are copied; `files`: what stands in for them without one."""
    _vacant(target)
    more = files.get("config.json")
    with disk.atomic_folder(target.absolute()) as folder:
        disk.write_json(
            folder / "config.json",
            described(description, config, more if isinstance(more, dict) else None),
        )
        write_weights(folder / folders.WEIGHTS, model, description, config)
        for name, content in files.items():
            if isinstance(content, str):
                disk.write_file(folder / name, content)
            elif name != "config.json":
                disk.write_json(folder / name, content)
        if home is not None:
            copy_beside(home, folder, BESIDE)
    return target


def described(
    description: kinds.Model, config: Mapping[str, Any], more: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """config.json of a model that was opened with `config`, in the words of the same family; `more` is added."""
    opened = folders.ModelFolder(description, {}, None, dict(config))
    return _carried(
        folders.describe(description, None, opened.positions, opened.kind) | dict(more or {}),
        config,
    )


def write_weights(
    path: Path, model: CoreModel, description: kinds.Model, config: Mapping[str, Any]
) -> None:
    """The weights as `described` announces them."""
    opened = folders.ModelFolder(description, {}, None, dict(config))
    folders.write_weights(path, model, description, opened.positions, opened.kind)


def copy_beside(home: Path, folder: Path, names: Sequence[str]) -> None:
    """Copies the files of these names, and those of SentencePiece, from a model's folder to another."""
    named = [home / name for name in names if (home / name).is_file()]
    for path in [
        *named,
        *(path for pattern in _SENTENCEPIECE for path in home.glob(pattern) if path.is_file()),
    ]:
        place = folder / path.relative_to(home)
        place.parent.mkdir(exist_ok=True)
        shutil.copyfile(path, place)


def _carried(said: dict[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """What config.json says of tokens and labels, which the spec does not; names of labels only if there are as many."""
    kept = {key: config[key] for key in _KEPT if key in config}
    if "id2label" in said and len(kept.get("id2label") or ()) != len(said["id2label"]):
        kept = {key: value for key, value in kept.items() if key not in _LABELS}
    inside = {
        key: _carried(said[key], config[key])
        for key in _TOWERS
        if key in said and isinstance(config.get(key), dict)
    }
    return {**said, **kept, **inside}


def _vacant(target: Path) -> None:
    """A folder is replaced only if nothing but a model is in it: not a run with its training, nor anything else."""
    if not target.exists():
        return
    if not target.is_dir():
        raise DiskError(f"{target} is a file", "give the name of a new folder")
    known = {"config.json", "README.md", *BESIDE}
    strange = sorted(
        name
        for path in target.rglob("*")
        if path.is_file()
        for name in [path.relative_to(target).as_posix()]
        if name not in known
        and not name.endswith((".safetensors", ".safetensors.index.json", ".model", ".spm"))
    )
    if strange or (any(target.iterdir()) and not (target / "config.json").is_file()):
        held = strange[0] if strange else "no config.json"
        raise DiskError(
            f"{target} is not just a model: it holds {held}", "give the name of a new folder"
        )
