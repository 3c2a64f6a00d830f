"""Reading a model folder: a spec and its weights, or the model built from them."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from regard import spec as specs
from regard.builder import outline, trainable
from regard.core.positions.positional_encoding import Sinusoidal, Sinusoidal2D
from regard.families import native
from regard.families.config_schema import Config
from regard.families.folder.files import (
    has_weights,
    load_tensors,
    read_config,
    require_no_export,
    tensor_names,
    weight_files,
)
from regard.families.folder.special_tokens import (
    POSITIONS,
    SpecialTokenIds,
    check_token_ids,
    composite_token_ids,
    read_generation_config,
    special_token_ids,
)
from regard.families.registry import FAMILIES, family_of
from regard.families.state_dict import from_hf, match_prefix
from regard.families.tensor_table import Constant, Unused, UnusedPart
from regard.system import memory
from regard.system.arguments import is_whole
from regard.system.errors import (
    CheckpointError,
    ModelError,
    UnknownKeyError,
    UnknownKeyWarning,
    did_you_mean,
)
from regard.wirings.core_model import CoreModel

_VERSION = re.compile(r"v?\d+")


@dataclass(frozen=True)
class ModelFolder:
    """The content of a model folder: weights under our names, in the precision of the file."""

    spec: specs.Model
    weights: dict[str, Tensor]
    ids: SpecialTokenIds | None  # None for models without framed targets
    config: Config
    unknown_keys: tuple[str, ...] = ()  # of config.json, ignored here as in transformers

    @property
    def model_type(self) -> str:
        """The family, to hand to `describe` and `write_weights` to get the same files again."""
        return str(self.config.get("model_type"))

    @property
    def positions(self) -> int:
        """What to hand to `describe` and `write_weights` to get the same files again."""
        positions = self.config.get("max_position_embeddings")
        # Families that read this key have checked it; of the others it may be anything.
        return int(positions) if is_whole(positions, 1) else POSITIONS


# ------------------------------------------------------------------ folders


def peek(folder: str | Path, kinds: Sequence[type] = ()) -> ModelFolder:
    """What a folder describes, without reading weights: config.json and the names of tensors.

    `kinds` are the dataclasses of parts from outside the package.
    """
    folder = Path(folder)
    config = _read_config(folder)
    stored = tensor_names(weight_files(folder)) if has_weights(folder) else []
    return _from_config(folder, config, stored, kinds)


def read(
    folder: str | Path, weights: Mapping[str, Tensor] | None = None, kinds: Sequence[type] = ()
) -> ModelFolder:
    """A model folder, checked completely: every key is supported, every tensor is used.

    `weights`, under our names, stand in for the folder's own; `kinds` are as in `peek`.
    """
    content, _ = _read(Path(folder), weights, kinds)
    return content


def open_model(
    folder: str | Path,
    weights: Mapping[str, Tensor] | None = None,
    dtype: torch.dtype | Literal["auto"] | None = None,
    kinds: Sequence[type] = (),
    writes: bool = False,
) -> tuple[CoreModel, ModelFolder]:
    """The model of a folder in evaluation mode, without initializing what is overwritten.

    `dtype` is that of its parameters: float32 for None, that of the file for "auto". `kinds` are
    the dataclasses of parts from outside the package, if its spec has any. `writes`: an
    encoder–decoder without a head is opened as the language model of its family.
    """
    content, model = _read(Path(folder), weights, kinds, writes)
    if dtype == "auto":
        dtype = _stored_dtype(content.weights)
    dtype = dtype or torch.float32
    parameters = {
        name: tensor.to(dtype) if tensor.is_floating_point() else tensor
        for name, tensor in content.weights.items()
    }
    # Not strict: a shared parameter is stored under its first name, and assigning it there assigns
    # it everywhere.
    model.load_state_dict(parameters, strict=False, assign=True)
    for module in model.modules():
        # Computed tables are added to embeddings. RoPE's frequencies stay float32: rounded, they
        # would turn far positions by another angle.
        if isinstance(module, Sinusoidal | Sinusoidal2D):
            module.to(dtype)
    everything = [*model.named_parameters(), *model.named_buffers()]
    unset = [name for name, tensor in everything if tensor.is_meta]
    assert not unset, f"never filled: {unset}"
    return model.eval(), content


def _read(
    folder: Path,
    weights: Mapping[str, Tensor] | None,
    kinds: Sequence[type] = (),
    writes: bool = False,
) -> tuple[ModelFolder, CoreModel]:
    """The content of a folder, and its model on the meta device."""
    # config.json first: its errors say more than missing weights.
    config = _read_config(folder)
    if weights is not None:
        content = _from_config(folder, config, [], kinds, writes)
        return replace(content, weights=dict(weights)), outline(content.spec)
    files = weight_files(folder)
    content = _from_config(folder, config, tensor_names(files), kinds, writes)
    # One outline serves all: the size, the shapes to expect, and the model itself.
    model = outline(content.spec)
    memory.require(trainable(model), f"the model of {folder}")
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    family = FAMILIES[content.model_type]
    table = family.tensor_table(content.spec, content.positions)
    state_dict = match_prefix(table, load_tensors(files), family.PREFIX)
    try:
        parameters = from_hf(table, state_dict, shapes)
    except ModelError as error:
        _check_same_architecture(content, error)
        raise
    return replace(content, weights=parameters), model


def unused_tensors(content: ModelFolder, folder: Path) -> dict[str, Tensor]:
    """The tensors of a folder that the family of a model knows, and that nothing computes with or
    that follow from its config."""
    family = family_of(content.spec, content.model_type)
    table = family.tensor_table(content.spec, content.positions)
    names = [rule.hf for rule in table if isinstance(rule, Constant | Unused)]
    parts = tuple(rule.hf for rule in table if isinstance(rule, UnusedPart))
    if not (names or parts) or not has_weights(folder):
        return {}
    try:
        tensors = match_prefix(table, load_tensors(weight_files(folder)), family.PREFIX)
    except CheckpointError:  # damaged since then; what the model computes with is in memory
        return {}
    return {
        name: tensor for name, tensor in tensors.items() if name in names or name.startswith(parts)
    }


def _check_same_architecture(content: ModelFolder, error: ModelError) -> None:
    """Names the architecture of a folder, if it is another one than its tensors were read as."""
    architectures = content.config.get("architectures")
    if content.model_type == "regard" or not architectures:
        return
    other = str(FAMILIES[content.model_type].to_config(content.spec, 1)["architectures"][0])
    if architectures[0] != other:
        raise ModelError(
            f"the architecture {architectures[0]!r} is not supported, "
            f"and its weights are not those of {other}: {error.problem}",
            f"known: {other}; save it as that, or download the folder again",
        ) from None


def _stored_dtype(weights: Mapping[str, Tensor]) -> torch.dtype | None:
    dtypes = {tensor.dtype for tensor in weights.values() if tensor.is_floating_point()}
    return reduce(torch.promote_types, dtypes) if dtypes else None


def _read_config(folder: Path) -> Config:
    """config.json, whose model_type must be that of a family."""
    config = read_config(folder)
    check_token_ids(config, "config.json")
    architectures = config.get("architectures") or []
    if not isinstance(architectures, list) or not all(isinstance(n, str) for n in architectures):
        raise ModelError(
            f"{folder}/config.json: architectures cannot be {architectures!r}",
            'set it to a list of names, such as ["BertModel"]',
        )
    if config.get("model_type") is None:  # the first files have none
        require_no_export(folder)
        raise ModelError(f"{folder}/config.json has no model_type", "add it, such as bert or gpt2")
    model_type = str(config.get("model_type"))
    if model_type not in FAMILIES:
        raise ModelError(
            f"{folder} has a model of the unknown type {model_type!r}",
            _known_families(model_type),
        )
    return config


def _known_families(model_type: str) -> str:
    """The repair for an unknown family."""
    # A name that is only alike (mamba, mbart) is another family, and no mistake of typing; so is
    # another version (qwen3, swinv2), which computes something else.
    stems = {_VERSION.sub("", name) for name in FAMILIES}
    if _VERSION.search(model_type) and _VERSION.sub("", model_type) in stems:
        return f"known: {', '.join(sorted(FAMILIES))}"
    return did_you_mean(model_type, FAMILIES, likeness=0.8)


def _from_config(
    folder: Path,
    config: Config,
    stored: Sequence[str],
    kinds: Sequence[type] = (),
    writes: bool = False,
) -> ModelFolder:
    """The spec and the special tokens of a folder; `stored` are the names of its tensors."""
    if config["model_type"] == "regard":
        # Only our own format has room for parts from outside the package.
        model = native.to_spec(config, stored, kinds)
        unknown: list[str] = []
    else:
        model, unknown = _to_spec(config, stored)
        if writes and isinstance(model, specs.EncoderDecoder) and not model.heads:
            config = _without_key(config, "architectures")
            model, unknown = _to_spec(config, stored)
    if unknown:
        keys = ", ".join(unknown)
        # Seen from the caller of `open_model`, `read` or `peek`.
        message = f"{folder}/config.json has unknown keys, which are ignored: {keys}"
        warnings.warn(message, UnknownKeyWarning, stacklevel=4)
    ids = None
    tokens = config
    generation = read_generation_config(folder)
    is_composite = isinstance(config.get("decoder"), dict)
    if is_composite:
        tokens = composite_token_ids(config, generation)
    of_family = getattr(FAMILIES[config["model_type"]], "token_ids", None)
    if of_family is not None:
        tokens = of_family(config)
    if isinstance(model, specs.EncoderDecoder | specs.SequenceToSequence) and (
        (model.head is not None and not is_composite) or tokens.get("eos_token_id") is not None
    ):
        ids = special_token_ids(tokens, generation)
    return ModelFolder(model, {}, ids, config, tuple(unknown))


def _to_spec(config: Config, stored: Sequence[str]) -> tuple[specs.Model, list[str]]:
    """The spec of a config, and the keys that neither its family nor transformers knows.

    Such a key cannot change what the model computes. One that transformers knows is an error.
    """
    model_type = str(config["model_type"])
    unknown: list[str] = []
    while True:
        try:
            return FAMILIES[model_type].to_spec(config, stored), unknown
        except UnknownKeyError as error:
            # A key that was removed already and is still an error cannot be removed again.
            if error.key in unknown:
                raise
            unknown.append(error.key)
            config = _without_key(config, error.key)


def _without_key(config: Mapping[str, Any], key: str) -> Config:
    """A config without this key, and without it in the configs that are nested in it (CLIP)."""
    return {
        name: _without_key(value, key) if isinstance(value, dict) else value
        for name, value in config.items()
        if name != key
    }


# ------------------------------------------------------------------ another head


def with_classifier(
    config: Mapping[str, Any], task: specs.HeadTask, labels: Sequence[str]
) -> tuple[specs.Model, Config]:
    """The spec and config.json of a model with a classifier for `task` instead of its head.

    In all families the name of the architecture is the family's followed by that of the head.
    """
    suffixes = {
        "classify": "ForSequenceClassification",
        "tag": "ForTokenClassification",
        "answer": "ForQuestionAnswering",
    }
    model_type = str(config.get("model_type"))
    class_prefix = _class_prefix(config.get("architectures"))
    if class_prefix is None or model_type not in FAMILIES or task not in suffixes:
        raise ModelError(
            f"a model of the type {model_type!r} has no head for the task {task!r}",
            "use an encoder, such as BERT",
        )
    # What belongs to the old head.
    dropped = ("num_labels", "regard_pooler", "problem_type", "id2label", "label2id")
    changed = {key: value for key, value in config.items() if key not in dropped}
    changed["architectures"] = [class_prefix + suffixes[task]]
    if task != "answer":  # a span has no label
        changed["id2label"] = {str(i): label for i, label in enumerate(labels)}
        changed["label2id"] = {label: i for i, label in enumerate(labels)}
    model, _ = _to_spec(changed, [])
    return model, changed


def _class_prefix(architectures: Any) -> str | None:
    """The family's part of an architecture's name: "Bert" of BertForMaskedLM."""
    if not isinstance(architectures, list) or not architectures:
        return None
    match = re.fullmatch(r"(\w+?)((LMHead)?Model|For[A-Z]\w+)", str(architectures[0]))
    return match[1] if match else None
