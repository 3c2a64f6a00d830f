"""Head pruning (Michel et al. 2019): attention heads removed from a finished model.

The result is an ordinary model that has fewer heads. Heads are named as in `regard.look`:
`("decoder.0.cross", 3)` is head 3 of the cross-attention of decoder layer 0.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch

from regard import spec as kinds
from regard.builder import edit
from regard.core.attention import Attention
from regard.core.stack import Stack
from regard.look.head_importance import Importance
from regard.look.probe_names import Head, attentions, switched_off
from regard.models.base import Model
from regard.system.errors import SettingError

M = TypeVar("M", bound=Model)


def prunable_attentions(model: Model) -> dict[str, int]:
    """The attentions whose heads can be removed → their number of heads.

    Of a block that several layers share (ALBERT, Universal Transformer), only the first is listed.
    """
    stacks = model.spec.stacks
    heads: dict[str, int] = {}
    visited: set[int] = set()
    for name, part in attentions(model.model).items():  # type: ignore[arg-type]
        if id(part) in visited:
            continue
        visited.add(id(part))
        stack, layer, kind = name.rsplit(".", 2)  # encoder, 3, self
        if isinstance(part, Attention) and _is_prunable(stacks[stack].blocks[int(layer)], kind):
            heads[name] = part.heads
    return heads


def _is_prunable(block: kinds.Block, kind: str) -> bool:
    """Whether heads can be pruned from a single layer.

    They cannot if a bias for all layers has one entry per head, if groups of heads share their
    keys, or if the mixer has weights or random draws per head.
    """
    part = block.attention if kind == "self" else block.cross
    biased = isinstance(block.position, kinds.T5Bias | kinds.Alibi | kinds.BuildsPosition)
    if part is None or (kind == "self" and biased):
        return False
    ungrouped = part.key_heads in (1, part.heads)  # multi-query or plain multi-head attention
    mixers = kinds.SoftmaxAttention | kinds.LinearAttention
    return ungrouped and isinstance(part.mixer, mixers) and part.projection != "shared"


def choose_heads(model: Model, importance: Importance, amount: str) -> list[Head]:
    """The least important heads; `amount` is a number of them, or a share such as 25%."""
    return importance.least(count_heads(model, amount), prunable_attentions(model).__contains__)


def count_heads(model: Model, amount: str) -> int:
    """How many heads an `amount` such as 8 or 25% is; an error where it cannot be removed."""
    heads = prunable_attentions(model)
    if not heads:
        raise SettingError(
            "this model has no heads that can be removed", "use a model with standard attention"
        )
    total = sum(heads.values())
    removable = total - len(heads)  # each attention keeps at least one
    try:
        if amount.endswith("%"):
            # A share is of all heads, also of those that must stay.
            count = round(float(amount[:-1]) / 100 * total)
        else:
            count = int(amount)
    except (ValueError, OverflowError):  # the rounding of infinity
        raise SettingError(
            f"{amount!r} is not a number of heads", "use a number or a percentage, such as 8 or 25%"
        ) from None
    if not 0 < count <= removable:
        raise SettingError(
            f"{count} of {total} heads cannot be removed",
            f"remove 1 to {removable}: each attention keeps one head",
        )
    return count


def prune_heads(model: M, heads: Sequence[Head]) -> M:
    """A copy of the model without these heads.

    It computes what the original computes with these heads masked, in fewer operations. A block
    that several layers share loses them in all of them.
    """
    head_counts = prunable_attentions(model)
    switched_off(model.model, heads)  # type: ignore[arg-type]  # raises on an unknown name
    for name, _ in heads:
        if name not in head_counts:
            raise SettingError(
                f"heads cannot be removed from {name}",
                f"choose from: {', '.join(head_counts) or 'none'}",
            )
    # Tokenizer, config and folder are shared with the original; the weights are not.
    pruned = copy.copy(model)
    pruned.model = copy.deepcopy(model.model)
    parts: dict[str, Any] = attentions(pruned.model)  # type: ignore[arg-type,assignment]
    for name in dict(heads):
        remaining = [head for head in range(head_counts[name]) if (name, head) not in heads]
        if not remaining:
            raise SettingError(f"all heads of {name} would be removed", "keep at least one")
        edit.prune(parts[name], torch.tensor(remaining))
    # The spec follows the weights, so that config.json describes what was saved.
    pruned_stacks: dict[str, Any] = pruned.model.stacks()  # type: ignore[arg-type,assignment]
    pruned.spec = model.spec.with_stacks(
        {name: _with_heads(spec, pruned_stacks[name]) for name, spec in model.spec.stacks.items()}
    )
    return pruned


def _with_heads(spec: kinds.Stack, stack: Stack) -> kinds.Stack:
    """The spec of a stack with the number of heads in each of its layers."""
    blocks = []
    for layer, block in enumerate(spec.blocks):
        built = stack.block(layer)
        block = replace(block, attention=_fewer(block.attention, built.attention.heads))
        if block.cross is not None and built.cross is not None:
            block = replace(block, cross=_fewer(block.cross, built.cross.heads))
        blocks.append(block)
    return replace(spec, blocks=tuple(blocks))


def _fewer(part: kinds.Attention, heads: int) -> kinds.Attention:
    """Either each head has its own keys, then these become fewer too, or all heads share theirs."""
    return replace(part, heads=heads, groups=None if part.key_heads == part.heads else part.groups)
