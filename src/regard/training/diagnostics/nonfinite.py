"""Where a value that is not finite first appears: in a weight, or which module computes it.

The step is repeated under a dispatch mode of PyTorch, which sees every operation of the forward and
the backward pass; no module is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.module_tracker import ModuleTracker

Loss = Callable[[Mapping[str, Tensor]], tuple[Tensor, Tensor]]


class ModelTracker(ModuleTracker):
    """Names the modules that run by their place in a model, `Encoder.encoder.blocks.3`.

    PyTorch's tracker alone begins at the first module that is called: where an objective has
    several models, their parts would have the same names.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._get_mod_name(model)  # registers the names of all its parts


def nonfinite_weights(model: nn.Module) -> list[str]:
    """The parameters that hold a NaN or an infinity."""
    return [name for name, parameter in model.named_parameters() if not parameter.isfinite().all()]


def first_nonfinite(model: nn.Module, loss: Loss, tensors: Mapping[str, Tensor]) -> str | None:
    """The place where a loss on these tensors, or its gradient, first is not finite.

    Gradients of the model are overwritten. None if all is finite.
    """
    weights = nonfinite_weights(model)
    if weights:
        return f"the weights {', '.join(weights[:3])}"
    tracker = ModelTracker(model)
    operations = _FirstNonFinite(tracker)
    # A backward pass on a CPU runs in this thread, so that the mode sees it too.
    with torch.enable_grad(), tracker, operations:
        value, _ = loss(tensors)
        if operations.origin is None:
            value.backward()  # type: ignore[no-untyped-call]
    model.zero_grad(set_to_none=True)
    return operations.origin


class _FirstNonFinite(TorchDispatchMode):
    """Notes the first operation that makes a NaN or +∞ of finite values.

    −∞ is how scores are masked, and not counted.
    """

    def __init__(self, tracker: ModuleTracker) -> None:
        super().__init__()
        self.tracker = tracker
        self.origin: str | None = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        # What is allocated and not yet written may hold anything.
        is_allocation = "empty" in func.overloadpacket.__name__
        if is_allocation or self.origin is not None:
            return result
        if _is_bad(result) and not _is_bad((args, kwargs)):
            self.origin = self._place(func)
        return result

    def _place(self, func: Any) -> str:
        # The innermost module; its name begins with that of the model's class.
        names = [name for name in self.tracker.parents if name != "Global"]
        module = max(names, key=len, default="the loss")
        direction = "the backward pass of " if self.tracker.is_bw else ""
        return f"{direction}{module.partition('.')[2] or module} ({func.overloadpacket.__name__})"


def _is_bad(values: Any) -> bool:
    return any(
        bool((value.isnan() | (value == torch.inf)).any())
        for value in tree_leaves(values)
        # Weights that oneDNN has packed have no values to look at.
        if isinstance(value, Tensor) and value.is_floating_point() and not value.is_mkldnn
    )
