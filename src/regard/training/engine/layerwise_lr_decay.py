"""Layer-wise learning-rate decay, and freezing of the lowest layers, for fine-tuning.

Lower layers are more general: they are to change less than higher ones (Howard and Ruder 2018), or
not at all.
"""

from __future__ import annotations

import re

from torch import nn

from regard.system.errors import SettingError

# `stack.blocks.3.attention.output.weight` is of block 3.
_BLOCK = re.compile(r"^(?P<stack>.*?)blocks\.(?P<number>\d+)\.")
# What the model calls its embeddings: an encoder, an encoder–decoder, a decoder.
_INPUTS = ("input.", "source.", "target.", "tokens.")


def depths(model: nn.Module) -> dict[str, int]:
    """The depth of each parameter, by name.

    0 for embeddings and for positions that all blocks share, i + 1 for block i of its stack, and
    one more than the deepest stack has for the heads on top.
    """
    names = [name for name, _ in model.named_parameters()]
    numbers = [int(match["number"]) for name in names if (match := _BLOCK.match(name))]
    top = 2 + max(numbers, default=-1)  # block n has depth n + 1, and heads are above it
    return {name: _depth(name, top) for name in names}


def _depth(name: str, top: int) -> int:
    block = _BLOCK.match(name)
    if block is not None:
        return int(block["number"]) + 1
    if name.startswith(_INPUTS) or ".position." in name:
        return 0
    return top


def lr_multipliers(model: nn.Module, decay: float) -> dict[str, float]:
    """The factor on the learning rate of each parameter: decay^(distance from the top)."""
    by_name = depths(model)
    top = max(by_name.values())
    return {name: decay ** (top - depth) for name, depth in by_name.items()}


def freeze(model: nn.Module, blocks: int) -> None:
    """Freezes the embeddings and this many of the lowest blocks of each stack."""
    by_name = depths(model)
    available = max(by_name.values()) - 1
    if blocks > available:
        raise SettingError(
            f"{blocks} blocks cannot be frozen: there are {available}",
            f"give a number up to {available}",
        )
    for name, parameter in model.named_parameters():
        if by_name[name] <= blocks:  # depth 0: the embeddings, in any case
            parameter.requires_grad_(False)
