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
from regard.errors import SettingError

# What each argument is, by transformers' name for it, with its dimensions.
_IDS = {
    "input_ids": "[texts, tokens]",
    "decoder_input_ids": "[texts, tokens]",
    "labels": "[texts, tokens]",
    "token_type_ids": "[texts, tokens]",
    "story": "[stories, sentences, tokens]",
    "question": "[stories, tokens]",
}
_NUMBERS = {
    "pixel_values": "[images, channels, height, width]",
    "input_values": "[recordings, samples]",
    "input_features": "[recordings, mels, frames]",
    "past_values": "[series, steps, channels]",
    "node_features": "[graphs, nodes, features]",
}
# What has the shape of another argument: masks, segments, and labels.
_SHAPED_AS = {
    "token_type_ids": "input_ids",
    "global_attention_mask": "input_ids",
    "decoder_attention_mask": "decoder_input_ids",
    "labels": "decoder_input_ids",
    "story_mask": "story",
    "question_mask": "question",
    "past_observed_mask": "past_values",
}
_EMBEDDED = ("input_ids", "decoder_input_ids")
# Whisper hears its whole window: the mask is taken, as in transformers, and not read.
_MASKED = ("input_ids", "input_values", "node_features")
# Arguments of a graph, whose nodes and edges have dimensions of their own.
_GRAPH = ("edges", "eigenvectors", "distances")


def check_inputs(
    spec: kinds.Model, tensors: Mapping[str, Tensor], dtype: torch.dtype, device: torch.device
) -> None:
    """Refuses tensors that do not fit the model, or each other, and required ones that are missing.

    What is there comes first: of a tensor of the wrong shape, it matters less what else is missing.
    """
    if spec.main_input_name not in tensors:
        raise _missing(spec.main_input_name)
    main_input = tensors[spec.main_input_name]
    for name, value in tensors.items():
        if value.device != device:
            raise SettingError(
                f"{name} is on device {value.device}, but the model is on {device}",
                f"move it: {name}.to({str(device)!r})",
            )
        if name in _IDS:
            _check_ids(name, value)
        elif name in _NUMBERS:
            _check_numbers(name, value, dtype, is_flat=_takes_flat_series(spec))
        _check_companion(name, value, tensors)
        has_own_batch = name in _GRAPH or isinstance(spec, kinds.DualEncoder)
        if not has_own_batch and value.shape[:1] != main_input.shape[:1]:
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


def _check_ids(name: str, value: Tensor) -> None:
    dimensions = _IDS[name].count(",") + 1
    is_whole = value.dtype in (torch.int64, torch.int32)
    if value.ndim != dimensions or value.numel() == 0 or not is_whole:
        raise SettingError(
            f"{name} has shape {list(value.shape)} and dtype {value.dtype}",
            f"pass a torch.int64 tensor {_IDS[name]} with at least one token",
        )


def _check_numbers(name: str, value: Tensor, dtype: torch.dtype, *, is_flat: bool) -> None:
    dimensions = [_NUMBERS[name].count(",") + 1]
    if is_flat:
        dimensions.append(2)  # [series, steps]
    if value.ndim not in dimensions or value.numel() == 0:
        raise SettingError(
            f"{name} has shape {list(value.shape)}", f"pass {_NUMBERS[name]}, not empty"
        )
    # Autocast casts what is a fraction by itself.
    casts = torch.is_autocast_enabled(value.device.type) and value.is_floating_point()
    if value.dtype != dtype and not casts:
        raise SettingError(
            f"{name} has dtype {value.dtype}, but the model has {dtype}",
            f"cast it: {name}.to({dtype})",
        )


def _takes_flat_series(spec: kinds.Model) -> bool:
    """Whether windows of one channel may come as [series, steps], as transformers has them."""
    return isinstance(spec, kinds.SeriesEncoderDecoder)


def _check_companion(name: str, value: Tensor, tensors: Mapping[str, Tensor]) -> None:
    """Refuses a mask, segments or labels of another shape than what they belong to."""
    owner = _SHAPED_AS.get(name)
    if name == "attention_mask":
        owner = next((one for one in _MASKED if one in tensors), None)
    if owner is None or owner not in tensors:
        return
    expected = tensors[owner].shape
    if owner == "node_features":
        expected = expected[:2]  # a node is padding or not, with all of its features
    if value.shape != expected:
        words = "as the ids" if owner in _IDS else f"as {owner}"
        raise SettingError(
            f"{name} has shape {list(value.shape)}", f"pass {list(expected)}, {words}"
        )


def _check_mels(spec: kinds.Model, tensors: Mapping[str, Tensor]) -> None:
    """Refuses a spectrogram of another number of mels than the model reads."""
    front_end: kinds.FrontEnd | None = None
    if isinstance(spec, kinds.EncoderDecoder):
        front_end = spec.source
    elif isinstance(spec, kinds.Encoder):
        front_end = spec.input
    if not isinstance(front_end, kinds.Spectrogram):
        return
    shape = tensors["input_features"].shape
    if shape[1] != front_end.mels:
        raise SettingError(
            f"input_features has {shape[1]} mel bins",
            f"pass {front_end.mels} mel bins: [B, mels, N]",
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
    if isinstance(spec, kinds.MemoryNetwork):
        return {"story": spec.vocabulary, "question": spec.vocabulary}
    if isinstance(spec, kinds.DualEncoder):
        return _id_counts(spec.text)
    # An encoder–decoder has two embeddings, in the order of its two inputs; Whisper one.
    inputs = [one.name for one in spec.inputs]
    names = [name for name in inputs if name in _EMBEDDED]
    sizes = [tokens.vocabulary for tokens in spec.embeddings.values()]
    counts: dict[str, int] = dict(zip(names, sizes, strict=False))
    if "labels" in inputs and spec.vocab_size is not None:
        counts["labels"] = spec.vocab_size
    if "token_type_ids" in inputs:
        segments = [tokens.segments for tokens in spec.embeddings.values()]
        counts["token_type_ids"] = max(1, *segments)
    return counts
