"""Checks of the tensors of a call: what torch would misunderstand, or fail on far inside.

Shapes, data types and devices are looked at before the call. Token ids are looked at after one that
failed: before, it would cost each call a pass over them.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from regard import spec as kinds
from regard.data.padding import IGNORED
from regard.system.errors import SettingError

# Arguments of a graph, whose nodes and edges have dimensions of their own.
_GRAPH = ("edges", "eigenvectors", "distances")
_IDS = ("tokens", "segments", "labels")


def check_inputs(
    spec: kinds.Model, tensors: Mapping[str, Tensor], dtype: torch.dtype, device: torch.device
) -> None:
    """Refuses tensors that do not fit the model, or each other, and required ones that are missing.

    What is there comes first: of a tensor of the wrong shape, it matters less what else is missing.
    """
    if spec.main_input_name not in tensors:
        raise _missing(spec.main_input_name)
    main_input = tensors[spec.main_input_name]
    # Windows of one channel may come as [series, steps], as transformers has them.
    is_flat = any(one.name == "future_values" for one in spec.inputs)
    has_towers = len(spec.widths) > 1
    for name, value in tensors.items():
        if value.device != device:
            raise SettingError(
                f"{name} is on device {value.device}, but the model is on {device}",
                f"move it: {name}.to({str(device)!r})",
            )
        one = kinds.Input(name)
        if one.kind in _IDS:
            _check_ids(one, value)
        elif one.dimensions:
            _check_numbers(one, value, dtype, is_flat=is_flat)
        _check_companion(one, value, tensors)
        if name not in _GRAPH and not has_towers and value.shape[:1] != main_input.shape[:1]:
            raise SettingError(
                f"{name} has shape {list(value.shape)}, but the batch has {len(main_input)} rows",
                "pass one row per input",
            )
    _check_mels(spec, tensors)
    for one in spec.inputs:
        if one.required and one.name not in tensors:
            raise _missing(one.name)


def _missing(name: str) -> SettingError:
    repair = f"pass {name}"
    if name.startswith("decoder"):
        repair = "pass the target tokens, start token first"
    return SettingError(f"this model needs {name}", repair)


def _check_ids(one: kinds.Input, value: Tensor) -> None:
    dimensions = one.dimensions.count(",") + 1
    is_whole = value.dtype in (torch.int64, torch.int32)
    if value.ndim != dimensions or value.numel() == 0 or not is_whole:
        raise SettingError(
            f"{one.name} has shape {list(value.shape)} and dtype {value.dtype}",
            f"pass a torch.int64 tensor {one.dimensions} with at least one token",
        )


def _check_numbers(one: kinds.Input, value: Tensor, dtype: torch.dtype, *, is_flat: bool) -> None:
    dimensions = [one.dimensions.count(",") + 1]
    if is_flat:
        dimensions.append(2)  # [series, steps]
    if value.ndim not in dimensions or value.numel() == 0:
        raise SettingError(
            f"{one.name} has shape {list(value.shape)}", f"pass {one.dimensions}, not empty"
        )
    # Autocast casts what is a fraction by itself.
    casts = torch.is_autocast_enabled(value.device.type) and value.is_floating_point()
    if value.dtype != dtype and not casts:
        raise SettingError(
            f"{one.name} has dtype {value.dtype}, but the model has {dtype}",
            f"cast it: {one.name}.to({dtype})",
        )


def _check_companion(one: kinds.Input, value: Tensor, tensors: Mapping[str, Tensor]) -> None:
    """Refuses a mask, segments or labels of another shape than what they belong to."""
    owner = next((name for name in one.shaped_as if name in tensors), None)
    if owner is None:
        return
    expected = tensors[owner].shape
    if owner == "node_features":
        expected = expected[:2]  # a node is padding or not, with all of its features
    if value.shape != expected:
        words = "as the ids" if kinds.Input(owner).kind in _IDS else f"as {owner}"
        raise SettingError(
            f"{one.name} has shape {list(value.shape)}", f"pass {list(expected)}, {words}"
        )


def _check_mels(spec: kinds.Model, tensors: Mapping[str, Tensor]) -> None:
    """Refuses a spectrogram of another number of mels than the model reads."""
    for front_end in spec.front_ends.values():
        if isinstance(front_end, kinds.Spectrogram):
            mels = tensors["input_features"].shape[1]
            if mels != front_end.mels:
                raise SettingError(
                    f"input_features has {mels} mel bins",
                    f"pass {front_end.mels} mel bins: [B, mels, N]",
                )


def check_separators(spec: kinds.Model, tensors: Mapping[str, Tensor]) -> None:
    """Refuses a row without the separator at which its question, the global tokens, ends."""
    if "global_attention_mask" in tensors:
        return
    for stack in spec.stacks.values():
        default = stack.block.attention.global_tokens
        if not isinstance(default, kinds.QuestionTokens):
            continue
        if not bool((tensors["input_ids"] == default.separator).any(dim=1).all()):
            raise SettingError(
                f"a row of input_ids has no separator ({default.separator}) after its question",
                "add the special tokens of question and context, or pass global_attention_mask",
            )


# ------------------------------------------------------------------ after a call that failed


def require_known_ids(spec: kinds.Model, tensors: Mapping[str, Tensor]) -> None:
    """Raises an error if there are ids outside of their vocabulary."""
    for name, size in _id_counts(spec).items():
        if name not in tensors:
            continue
        ids = tensors[name]
        if name == "labels":
            ids = ids[ids != IGNORED]
        wrong = ids[(ids < 0) | (ids >= size)]
        if wrong.numel():
            raise SettingError(
                f"{name} has the token id {int(wrong.flatten()[0])}, outside the vocabulary",
                f"use ids from 0 to {size - 1}",
            )


def _id_counts(spec: kinds.Model) -> dict[str, int]:
    """How many ids each argument of ids may have."""
    names = [one.name for one in spec.inputs if one.kind == "tokens"]
    # An encoder–decoder has two embeddings, in the order of its two inputs; Whisper one.
    embeddings = [part for part in spec.front_ends.values() if isinstance(part, kinds.Tokens)]
    counts = dict(zip(names, (tokens.vocabulary for tokens in embeddings), strict=False))
    if not embeddings and spec.vocab_size is not None:  # a memory network
        counts = dict.fromkeys(names, spec.vocab_size)
    inputs = [one.name for one in spec.inputs]
    if "labels" in inputs and spec.vocab_size is not None:
        counts["labels"] = spec.vocab_size
    if "token_type_ids" in inputs:
        counts["token_type_ids"] = max(
            1,
            *(one.vocabulary if one.segment_tokens else one.segments for one in embeddings),
        )
    return counts
