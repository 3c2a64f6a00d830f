"""The number of parameters of a model, counted on an outline of it on PyTorch's meta device."""

from __future__ import annotations

from collections import Counter

from regard import spec
from regard.builder import outline, trainable


def parameter_count(model: spec.Model) -> int:
    """The number of trainable parameters of the model that `build` would make.

    Shared matrices count once. Modules on the meta device have shapes but no memory, so that
    a model of 540 billion parameters is counted in less than a tenth of a second.
    """
    return trainable(outline(model))


def parameters_by_module(model: spec.Model) -> dict[str, int]:
    """The number of parameters of each submodule, such as `encoder`, in forward order.

    A shared matrix counts for the first of its modules.
    """
    counts: Counter[str] = Counter()
    for name, parameter in outline(model).named_parameters():
        counts[name.partition(".")[0]] += parameter.numel()
    return dict(counts)
