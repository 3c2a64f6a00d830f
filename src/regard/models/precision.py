"""The data type of a model's parameters: its name, and casting."""

from __future__ import annotations

import torch
from torch import nn

from regard.core.amx import require_bfloat16_products
from regard.core.positions.rotary import Rope
from regard.system.errors import SettingError, did_you_mean

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
