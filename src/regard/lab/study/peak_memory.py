"""Peak memory of a computation: the most bytes that its tensors have at one time, on any device."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class _StorageTracker(TorchDispatchMode):
    """Adds up the storages that operations make, and subtracts them when they are freed.

    Work space inside a kernel is not seen.
    """

    def __init__(self) -> None:
        super().__init__()
        self.current = 0
        self.peak = 0
        self.tracked: dict[int, Any] = {}  # weak references by the storage's identity

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        inputs = {_key(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            # What is an input too was there before, as weights are.
            if isinstance(leaf, Tensor) and _key(leaf) not in inputs:
                self._add(leaf)
        return out

    def _add(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key = _key(tensor)
        if key in self.tracked:
            return
        size = storage.nbytes()

        def free(_: object) -> None:
            self.current -= size
            del self.tracked[key]

        # PyTorch keeps one Python object for a storage as long as the storage lives, so that the
        # callback comes when the memory is freed.
        self.tracked[key] = weakref.ref(storage, free)
        self.current += size
        self.peak = max(self.peak, self.current)


def _key(tensor: Tensor) -> int:
    # The address of the C++ object: views share it, and data_ptr() is 0 for empty tensors.
    return tensor.untyped_storage()._cdata


def peak_bytes(step: Callable[[], object]) -> int:
    """The peak of all tensors that a step makes, in bytes; what was there before does not count."""
    tracker = _StorageTracker()
    with tracker:
        step()
    return tracker.peak
