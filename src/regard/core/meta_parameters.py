"""Parameters on the meta device: shapes without memory, while buffers keep their values."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import nn

_active: ContextVar[bool] = ContextVar("parameters_on_meta", default=False)


@contextmanager
def parameters_on_meta() -> Iterator[None]:
    """Modules built in this block hold no parameter longer than it takes to register the next.

    `torch.device("meta")` would take the values of buffers too, which follow from the spec.
    """
    register = nn.Module.register_parameter

    def on_meta(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        register(module, name, None if parameter is None else meta_parameter(parameter))

    token = _active.set(True)
    # PyTorch has no hook for one module at a time: constructors register by this method.
    nn.Module.register_parameter = on_meta  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]
        _active.reset(token)


def are_parameters_on_meta() -> bool:
    """Whether modules that are built now need no memory for their parameters."""
    return _active.get()


def meta_parameter(parameter: nn.Parameter) -> nn.Parameter:
    """The same shape and strides, without values; itself where it has none."""
    if parameter.is_meta:
        return parameter
    return nn.Parameter(torch.empty_like(parameter, device="meta"), parameter.requires_grad)
