"""The names of probes, attentions and heads, checked; and the edits that ablate heads."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from regard.core.feedforward import FeedForward, GatedFeedForward
from regard.core.probe import PARTS, Edit, HasHeads
from regard.core.stack import Stack
from regard.system.errors import DataError, SettingError, did_you_mean
from regard.wirings.core_model import CoreModel


def require_name(what: str, name: str, options: Iterable[str]) -> str:
    """The name, which must be one of the options; `what` is its kind in messages, as in "stack"."""
    names = list(options)
    if name not in names:
        raise SettingError(f"this model has no {what} {name!r}", did_you_mean(name, names))
    return name


def require_indices(what: str, numbers: Iterable[int], count: int) -> list[int]:
    """Numbers of rows, heads or layers, of which there are `count`."""
    return _indices(what, numbers, range(count))


def require_layer(layer: int | None, count: int) -> int:
    """The number of a layer, of which there are `count`; by default the last."""
    if layer is None:
        return count - 1
    return require_indices("layer", [layer], count)[0]


def require_positions(positions: Iterable[int], count: int) -> list[int]:
    """Positions of an output of `count`, counted from 0; negative ones count from the end."""
    return [number % count for number in _indices("position", positions, range(-count, count))]


def _indices(what: str, numbers: Iterable[int], allowed: range) -> list[int]:
    indices = [operator.index(number) for number in numbers]  # also of NumPy and PyTorch
    for index in indices:
        if index not in allowed:
            repair = f"use {allowed.start} to {allowed.stop - 1}"
            raise SettingError(f"{what} {index} does not exist", repair)
    return indices


def require_texts(texts: Sequence[str], targets: Sequence[str] | None) -> None:
    """A list of texts, and as many targets, if any."""
    if isinstance(texts, str):  # whose letters would be taken for texts
        raise DataError("texts must be a list of strings", f"pass a list: [{texts!r}]")
    if targets is not None and len(targets) != len(texts):
        raise DataError(
            f"{len(targets)} targets for {len(texts)} texts", "pass one target per text"
        )


Head = tuple[str, int]  # the attention's name and the head's number: ("decoder.2.cross", 3)


def attentions(model: CoreModel) -> dict[str, HasHeads]:
    """Every application of an attention by its name: `encoder.0.self`, `decoder.0.cross`.

    A module that several layers apply (ALBERT, Universal Transformers) has a name for each.
    """
    return {
        f"{prefix}.{name}": attention
        for prefix, stack in model.stacks().items()
        for name, attention in stack.attentions().items()
    }


def heads(model: CoreModel) -> list[Head]:
    """Every head of every attention."""
    return [
        (name, head)
        for name, attention in attentions(model).items()
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
        parts = [*PARTS, "mixed"]
        if isinstance(stack, Stack):
            # The input has passed the norm where that comes first; the output is what W_O gives,
            # which the residual connection adds.
            parts = ["input", *parts, "output"]
        for i in range(stack.layers):
            for attention in attention_names:
                if attention.startswith(f"{prefix}.{i}."):
                    names += [f"{attention}.{part}" for part in parts]
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


def switched_off(model: CoreModel, off: Sequence[Head]) -> dict[str, Edit]:
    """Edits that ablate heads: they zero what a head hands to the output projection.

    The result is that of a projection whose columns for these heads are zero.
    """
    known_attentions = attentions(model)
    heads_of: dict[str, list[int]] = {}
    for name, head in off:
        require_name("attention", name, known_attentions)
        require_indices(f"{name} head", [head], known_attentions[name].heads)
        heads_of.setdefault(name, []).append(head)
    return {f"{name}.mixed": _zero_heads(numbers) for name, numbers in heads_of.items()}


def _zero_heads(numbers: list[int]) -> Edit:
    def edit(mixed: Tensor) -> Tensor:  # [B, H, T, E]
        return mixed.index_fill(1, torch.tensor(numbers, device=mixed.device), 0.0)

    return edit
