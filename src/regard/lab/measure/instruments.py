"""The cost of any computation, on any device: floating-point operations, bytes and seconds."""

from __future__ import annotations

import time
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

Step = Callable[[], object]


def growth_exponent(lengths: Sequence[float], values: Sequence[float]) -> float:
    """The exponent b of values ~ lengths^b: the least-squares slope of the logarithms."""
    return float(np.polyfit(np.log(lengths), np.log(values), 1)[0])


# ------------------------------------------------------------------ seconds


def seconds(step: Step) -> float:
    """The time of a step, with the work that it leaves to a GPU."""
    start = time.perf_counter()
    step()
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()  # kernels run after their launch
    return time.perf_counter() - start


def fastest(step: Step, repeats: int) -> float:
    """The least time of several: whatever else the machine does only ever adds to it."""
    return min(seconds(step) for _ in range(repeats))


# ------------------------------------------------------------------ floating-point operations


class _NoModules:
    """Stands in for the tracker that says which module an operation belongs to.

    Only the total is asked for, and the tracker fails in reversible blocks, whose inputs have no
    gradient function while they run.
    """

    parents = frozenset({"Global"})

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        pass


def _fused_attention_flops(q: Any, k: Any, v: Any, *options: Any, **more: Any) -> int:
    """Two products for each pair of a query and a key that share a block."""
    rows, heads, queries, width = q
    return int(2 * rows * heads * queries * k[2] * (width + v[3]))


# Blocks of restricted attention are computed by a kernel that the counter does not know.
_FUSED = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _fused_attention_flops}


def count_flops(step: Step) -> float:
    """The floating-point operations of a step.

    It runs without fused attention and oneDNN, so that every matrix product is seen; what is
    computed is the same.
    """
    counter = FlopCounterMode(display=False, custom_mapping=_FUSED)
    counter.mod_tracker = _NoModules()  # type: ignore[assignment]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns of a setting that is put back as it was
        no_onednn = torch.backends.mkldnn.flags(enabled=False)
        with sdpa_kernel(SDPBackend.MATH), no_onednn, counter:
            step()
    return float(counter.get_total_flops())


# ------------------------------------------------------------------ bytes


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


def peak_bytes(step: Step) -> int:
    """The peak of all tensors that a step makes, in bytes; what was there before does not count."""
    tracker = _StorageTracker()
    with tracker:
        step()
    return tracker.peak
