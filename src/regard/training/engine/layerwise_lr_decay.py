"""How far a parameter is from the top of its stack: what is lower is more general, and changes less or not at all."""

from __future__ import annotations

import re

from torch import nn

from regard.errors import SettingError

_BLOCK = re.compile(r"^(?P<stack>.*?)blocks\.(?P<number>\d+)\.")
_INPUTS = ("input.", "source.", "target.", "tokens.")


def places(model: nn.Module) -> dict[str, int]:
    """By name: 0 for what a model reads with (embeddings, and positions that all blocks share), i + 1 for block i of its
    stack, one more than the longest stack has for what stands on top."""
    names = [name for name, _ in model.named_parameters()]
    top = 1 + max((int(m["number"]) + 1 for name in names if (m := _BLOCK.match(name))), default=0)
    return {name: _place(name, top) for name in names}


def _place(name: str, top: int) -> int:
    block = _BLOCK.match(name)
    if block is not None:
        return int(block["number"]) + 1
    return 0 if name.startswith(_INPUTS) or ".position." in name else top


def rates(model: nn.Module, decay: float) -> dict[str, float]:
    """The share of the learning rate of each parameter: decay^(distance from the top)."""
    found = places(model)
    top = max(found.values())
    return {name: decay ** (top - place) for name, place in found.items()}


def freeze(model: nn.Module, blocks: int) -> None:
    """Fixes the embeddings and the lowest blocks, of each stack."""
    found = places(model)
    most = max(found.values()) - 1
    if blocks > most:
        raise SettingError(
            f"{blocks} blocks cannot be frozen: there are {most}", f"give a number up to {most}"
        )
    for name, parameter in model.named_parameters():
        if found[name] <= blocks:
            parameter.requires_grad_(False)
