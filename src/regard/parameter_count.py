"""The number of parameters of a model, counted on an outline of it on PyTorch's meta device."""

from __future__ import annotations

from regard import spec
from regard.builder import outline, trainable


def parameter_count(model: spec.Model) -> int:
    """The number of trainable parameters of the model that `build` would make.

    Shared matrices count once. Modules on the meta device have shapes but no memory, so that
    a model of 540 billion parameters is counted in less than a tenth of a second.
    """
    return trainable(outline(model))
