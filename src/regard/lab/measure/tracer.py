"""A tracer of what a computation does: every operation with its FLOPs, every allocation."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only
from torch.utils.flop_counter import flop_registry

# --- operations -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class TensorLayout:
    """Shape, strides and dtype of a tensor."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        """The bytes that are read: an expanded dimension has stride 0, and one element."""
        sizes = (
            n if stride else min(n, 1) for n, stride in zip(self.shape, self.stride, strict=True)
        )
        return math.prod(sizes) * self.dtype.itemsize


@dataclass
class Operation:
    """An operation on tensors of given layouts, and how often the step executes it."""

    function: Any  # an OpOverload
    arguments: tuple[Any, ...]  # TensorLayout in place of tensors
    options: Mapping[str, Any]
    flops: int
    bytes: int  # read and written
    count: int = 0

    @property
    def name(self) -> str:
        return str(self.function)

    @property
    def dtype(self) -> torch.dtype:
        """That of the first floating-point tensor, in which products are computed."""
        layouts = (
            x for x in tree_leaves((self.arguments, self.options)) if type(x) is TensorLayout
        )
        return next((x.dtype for x in layouts if x.dtype.is_floating_point), torch.float32)


def _flops(function: Any, arguments: Any, options: Any, output: Any) -> int:
    formula = _FORMULAS.get(function.overloadpacket)
    return int(formula(*arguments, **options, out_val=output)) if formula else 0


def _rnn_layer(x: Tensor, w_input: Tensor, w_hidden: Tensor, *_: Any, **__: Any) -> int:
    """oneDNN's layer: both products of every time step, x [T, B, I]."""
    return 2 * x.shape[0] * x.shape[1] * (w_input.numel() + w_hidden.numel())


def _rnn_layer_backward(*arguments: Any, **options: Any) -> int:
    return 2 * _rnn_layer(*arguments, **options)


_ATEN = torch.ops.aten
_FLASH_ATTENTION = _ATEN._scaled_dot_product_flash_attention
_FLASH_ATTENTION_BACKWARD = _ATEN._scaled_dot_product_flash_attention_backward
# PyTorch's counter has no formulas for the kernels of CPUs; in the backward pass they recompute the
# scores too.
_FORMULAS: dict[Any, Callable[..., int]] = {
    **flop_registry,
    _ATEN._scaled_dot_product_flash_attention_for_cpu: flop_registry[_FLASH_ATTENTION],
    _ATEN._scaled_dot_product_flash_attention_for_cpu_backward: flop_registry[
        _FLASH_ATTENTION_BACKWARD
    ],
    _ATEN.mkldnn_rnn_layer: _rnn_layer,
    _ATEN.mkldnn_rnn_layer_backward: _rnn_layer_backward,
}


# --- memory ---------------------------------------------------------------------------------------


@dataclass
class Allocation:
    """A storage: its bytes, and what it turned out to be."""

    bytes: int
    phase: str  # in which it was allocated: "weights", "batch", "forward" or "backward"
    is_gradient: bool = False
    is_weight_copy: bool = False  # mixed precision: a weight in 16 bits


class Tracer(TorchDispatchMode):
    """Sees every operation below autograd, and every storage that it allocates.

    `stand_ins` replace operations whose shapes PyTorch cannot infer, where nothing is computed.
    Work space inside a kernel is not seen.
    """

    def __init__(self, stand_ins: Mapping[Any, Callable[..., Any]] | None = None) -> None:
        super().__init__()
        self.stand_ins = stand_ins or {}
        self.phase = "forward"
        self.operations: dict[Any, Operation] = {}
        self.flops = {"forward": 0, "backward": 0}
        # (storage id, bytes) in the order of time; negative bytes where one is freed.
        self.events: list[tuple[int, int]] = []
        self.allocations: dict[int, Allocation] = {}
        self._live: dict[int, int] = {}  # address → storage id
        self._watchers: list[weakref.ref[Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        output = self.stand_ins.get(func.overloadpacket, func)(*args, **kwargs)
        leaves, structure = tree_flatten((args, kwargs))
        outputs = [x for x in tree_leaves(output) if isinstance(x, Tensor)]
        inputs = [x for x in leaves if isinstance(x, Tensor)]
        before = {x.untyped_storage()._cdata for x in inputs} - self._live.keys()
        for tensor in outputs:
            if tensor.untyped_storage()._cdata in before:
                continue  # a view of what was there before the step
            number = self.watch(tensor)
            if func.overloadpacket is _ATEN._to_copy:
                source = self.allocations[self.watch(inputs[0])]
                self.allocations[number].is_weight_copy = source.phase == "weights"
        if not _is_view(func, inputs, outputs):
            key = (func, structure, *map(_hashable, leaves))
            self._record(key, args, kwargs, output)
        return output

    @contextmanager
    def in_backward(self) -> Iterator[None]:
        """Work of the backward pass that is done during the forward pass."""
        phase = self.phase
        self.phase = "backward"
        yield
        self.phase = phase

    # --- storages -------------------------------------------------------------------------------

    def watch(self, tensor: Tensor, phase: str | None = None) -> int:
        """Follows the storage of a tensor from now on; returns its id."""
        storage = tensor.untyped_storage()
        address = storage._cdata
        number = self._live.get(address)
        if number is not None:
            return number
        number = len(self.allocations)  # addresses are used again, numbers are not
        size = storage.nbytes()
        self.allocations[number] = Allocation(size, phase or self.phase)
        self.events.append((number, size))
        self._live[address] = number

        def freed(_: Any) -> None:
            self.events.append((number, -size))
            del self._live[address]

        # The storage's Python object lives as long as the storage itself.
        self._watchers.append(weakref.ref(storage, freed))
        return number

    # --- operations -----------------------------------------------------------------------------

    def _record(self, key: Any, args: Any, kwargs: Any, output: Any) -> None:
        operation = self.operations.get(key)
        if operation is None:
            function = key[0]
            tensors = [x for x in tree_leaves((args, kwargs, output)) if isinstance(x, Tensor)]
            operation = self.operations[key] = Operation(
                function,
                tree_map_only(Tensor, _layout, args),
                tree_map_only(Tensor, _layout, kwargs),
                flops=_flops(function, args, kwargs, output),
                bytes=sum(_layout(tensor).bytes for tensor in tensors[_looked_up(function) :]),
            )
        operation.count += 1
        self.flops[self.phase] += operation.flops


def _looked_up(function: Any) -> int:
    """How many of the first tensors are tables, of which a few rows are read."""
    return int(function.overloadpacket is _ATEN.embedding)


def _layout(tensor: Tensor) -> TensorLayout:
    return TensorLayout(tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype)


def _hashable(argument: Any) -> Any:
    if isinstance(argument, Tensor):
        return argument.shape, argument.stride(), argument.dtype
    # Generators and the like: one is as good as another.
    return argument if isinstance(argument, int | float | bool | str) else repr(argument)


def _is_view(function: Any, inputs: list[Tensor], outputs: list[Tensor]) -> bool:
    """Whether nothing is computed: the outputs are other shapes of the inputs' memory."""
    # In-place operations return their input, but compute.
    if function._schema.is_mutable:
        return False
    if function.overloadpacket in (_ATEN.empty, _ATEN.empty_strided, _ATEN.empty_like):
        return True
    storages = {tensor.untyped_storage()._cdata for tensor in inputs}
    return bool(inputs) and all(x.untyped_storage()._cdata in storages for x in outputs)
