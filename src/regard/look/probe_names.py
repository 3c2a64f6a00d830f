"""The names of probes, attentions and heads in a model, and the edits that ablate heads."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from regard.core.feedforward import FeedForward, GatedFeedForward
from regard.core.probe import PARTS, Edit, HasHeads
from regard.core.side import Side
from regard.core.stack import Stack
from regard.look.arguments import require_name
from regard.system.errors import SettingError
from regard.wirings.core_model import CoreModel

Head = tuple[str, int]  # the attention's name and the head's number: ("decoder.2.cross", 3)


def stack_name(model: CoreModel, name: str) -> str:
    """The name of a stack, after a check that the model has it."""
    return require_name("stack", name, model.stacks())


def attentions(model: CoreModel) -> dict[str, HasHeads]:
    """Every application of an attention by its name: `encoder.0.self`, `decoder.0.cross`.

    A module that several layers apply (ALBERT, Universal Transformers) has a name for each.
    """
    return {
        f"{prefix}.{name}": attention
        for prefix, stack in model.stacks().items()
        for name, attention in stack.attentions().items()
    }


def heads(model: CoreModel, names: Callable[[str], bool] = lambda name: True) -> list[Head]:
    """Every head of the attentions whose name passes the filter."""
    return [
        (name, head)
        for name, attention in attentions(model).items()
        if names(name)
        for head in range(attention.heads)
    ]


def residual_probes(model: CoreModel, stack: str) -> list[str]:
    """The probes of a stack's residual stream: its embeddings, then what leaves each layer."""
    layers = range(model.stacks()[stack].layers)
    return [f"{stack}.embedded", *(f"{stack}.{i}.residual" for i in layers)]


def probes(model: CoreModel) -> list[str]:
    """The names of everything that can be recorded, in forward order."""
    names = []
    attention_names = attentions(model)
    for prefix, stack in model.stacks().items():
        names.append(f"{prefix}.embedded")
        for i in range(stack.layers):
            for kind in ("self", "cross"):
                attention = f"{prefix}.{i}.{kind}"
                if attention in attention_names:
                    names += [f"{attention}.{part}" for part in _attention_probes(stack)]
            if isinstance(stack, Stack):
                feedforward = f"{prefix}.{i}.feedforward"
                names += [f"{feedforward}.{part}" for part in _feedforward_probes(stack, i)]
            names.append(f"{prefix}.{i}.residual")
        names.append(f"{prefix}.output")
    return [*names, "logits"]


def _feedforward_probes(stack: Stack, layer: int) -> tuple[str, ...]:
    """The probes of a feed-forward network, in forward order."""
    # The activations inside are those of one network: experts and convolutions have none to show.
    if isinstance(stack.block(layer).feedforward, FeedForward | GatedFeedForward):
        return ("input", "hidden", "output")
    return ("input", "output")


def _attention_probes(stack: Side) -> tuple[str, ...]:
    """The probes of one attention, in forward order."""
    if not isinstance(stack, Stack):
        return (*PARTS, "mixed")
    # The input has passed the norm where that comes first; the output is what W_O gives, which
    # the residual connection adds.
    return ("input", *PARTS, "mixed", "output")


def switched_off(model: CoreModel, off: Sequence[Head]) -> dict[str, Edit]:
    """Edits that ablate heads: they zero what a head hands to the output projection.

    The result is that of a projection whose columns for these heads are zero.
    """
    known_attentions = attentions(model)
    heads_of: dict[str, list[int]] = {}
    for name, head in off:
        require_name("attention", name, known_attentions)
        count = known_attentions[name].heads
        if not 0 <= head < count:
            raise SettingError(f"{name} has no head {head}", f"use a head from 0 to {count - 1}")
        heads_of.setdefault(name, []).append(head)
    return {f"{name}.mixed": _zero_heads(numbers) for name, numbers in heads_of.items()}


def _zero_heads(numbers: list[int]) -> Edit:
    def edit(mixed: Tensor) -> Tensor:  # [B, H, T, E]
        return mixed.index_fill(1, torch.tensor(numbers, device=mixed.device), 0.0)

    return edit
