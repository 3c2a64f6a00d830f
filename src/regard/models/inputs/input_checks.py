"""Checks of the tensors of a call: what torch would misunderstand, or fail on far inside.

Shapes and data types are looked at before the call. Token ids are looked at after one that failed:
before, it would cost each call a pass over them.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from regard import spec as kinds
from regard.system.errors import SettingError

_IDS = ("tokens", "segments", "times", "labels")


def check_inputs(spec: kinds.Model, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> None:
    """Refuses tensors that do not fit the model, or each other, and required ones that are missing.

    What is there comes first: of a tensor of the wrong shape, it matters less what else is missing.
    """
    names = {one.name: one for one in spec.inputs}
    for name, value in tensors.items():
        one = names.get(name) or kinds.Input(name)
        dimensions = one.dimensions.count(",") + 1
        # Windows of one channel may come as [series, steps], as transformers has them.
        is_flat = one.kind == "values" and value.ndim == 2 and "future_values" in names
        fits = (value.ndim == dimensions or is_flat) and value.numel() > 0
        is_ids = one.kind in _IDS
        if is_ids:
            fits = fits and value.dtype in (torch.int64, torch.int32)
        if one.dimensions and not fits:
            kind = "torch.int64" if is_ids else "a tensor"
            raise SettingError(
                f"{name} has shape {list(value.shape)} and dtype {value.dtype}",
                f"pass {kind} {one.dimensions}, not empty",
            )
        # Autocast casts what is a fraction by itself.
        casts = torch.is_autocast_enabled(value.device.type) and value.is_floating_point()
        if one.dimensions and not is_ids and value.dtype != dtype and not casts:
            raise SettingError(
                f"{name} has dtype {value.dtype}, but the model has {dtype}",
                f"cast it: {name}.to({dtype})",
            )
        _check_companion(one, value, tensors)
    for one in spec.inputs:
        if one.required and one.name not in tensors:
            raise SettingError(f"this model needs {one.name}", f"pass {one.name}")


def _check_companion(one: kinds.Input, value: Tensor, tensors: Mapping[str, Tensor]) -> None:
    """Refuses a mask, segments or labels of another shape than what they belong to."""
    owner = next((name for name in one.shaped_as if name in tensors), None)
    if owner is None:
        return
    expected = tensors[owner].shape
    if owner in ("node_features", "states"):
        # A node or a step is padding or not, with all of its features.
        expected = expected[:2]
        if one.name in ("actions", "returns_to_go"):
            value = value[..., 0]
    if value.shape != expected:
        raise SettingError(
            f"{one.name} has shape {list(value.shape)}", f"pass {list(expected)}, as {owner}"
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


def require_known_ids(spec: kinds.Model, tensors: Mapping[str, Tensor]) -> None:
    """Raises an error if there are token ids outside of their vocabulary."""
    for name, size in spec.vocabularies.items():
        ids = tensors.get(name, torch.zeros(0))
        wrong = ids[(ids < 0) | (ids >= size)]
        if wrong.numel():
            raise SettingError(
                f"{name} has the token id {int(wrong.flatten()[0])}, outside the vocabulary",
                f"use ids from 0 to {size - 1}",
            )
