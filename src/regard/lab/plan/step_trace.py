"""The trace of a training step: every operation and every allocation, without computing anything.

Parameters and floating-point inputs are fake tensors (shapes, dtypes and devices, no memory), so
that a step of a model of any size is traced in seconds; token ids and masks are real, so that code
that asks for their values gets an answer. What is traced is the training step itself: the same
modules, the same loss and PyTorch's own backward.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop, sdpa_flop

from regard.builder import make_fake
from regard.lab.plan.accelerator_kernels import (
    FusedLinearCrossEntropy,
    accelerator_kernels,
    use_accelerator_dropout,
)
from regard.lab.plan.workload import Workload, modules, set_activation_checkpointing
from regard.spec import Model
from regard.training.objectives.label_smoothed_cross_entropy import (
    TokenLoss,
    linear_cross_entropy,
)

_CPU = torch.device("cpu")
_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class StepSettings:
    """How a step is run: what changes its memory and its operations besides the batch."""

    precision: str = "float32"
    accumulate: int = 1  # micro-batches of an update
    recompute: bool = False  # activation checkpointing
    accelerator: bool = False  # whether its kernels are those of a GPU


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
        count = 1
        for size, stride in zip(self.shape, self.stride, strict=True):
            count *= size if stride else min(size, 1)
        return count * self.dtype.itemsize


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
        for argument in tree_flatten((self.arguments, self.options))[0]:
            if isinstance(argument, TensorLayout) and argument.dtype.is_floating_point:
                return argument.dtype
        return torch.float32


def _flops(function: Any, arguments: Any, options: Any, output: Any) -> int:
    formula = _OWN_FORMULAS.get(function.overloadpacket) or flop_registry.get(
        function.overloadpacket
    )
    if formula is None:
        return 0
    return int(formula(*arguments, **options, out_val=output))


def _cpu_attention(q: Tensor, k: Tensor, v: Tensor, *_: Any, **__: Any) -> int:
    return int(sdpa_flop(q.shape, k.shape, v.shape))


def _cpu_attention_backward(
    gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: Any, **__: Any
) -> int:
    # The registry's formula recomputes the scores, as these kernels do.
    return int(sdpa_backward_flop(gradient.shape, q.shape, k.shape, v.shape))


def _rnn_layer(x: Tensor, w_input: Tensor, w_hidden: Tensor, *_: Any, **__: Any) -> int:
    """oneDNN's layer: both products of every time step, x [T, B, I]."""
    return 2 * x.shape[0] * x.shape[1] * (w_input.numel() + w_hidden.numel())


def _rnn_layer_backward(*arguments: Any, **options: Any) -> int:
    return 2 * _rnn_layer(*arguments, **options)


_ATEN = torch.ops.aten
# PyTorch's counter has no formulas for the kernels of CPUs.
_OWN_FORMULAS: dict[Any, Callable[..., int]] = {
    _ATEN._scaled_dot_product_flash_attention_for_cpu: _cpu_attention,
    _ATEN._scaled_dot_product_flash_attention_for_cpu_backward: _cpu_attention_backward,
    _ATEN.mkldnn_rnn_layer: _rnn_layer,
    _ATEN.mkldnn_rnn_layer_backward: _rnn_layer_backward,
}


def _ctc_loss(
    log_probs: Tensor, labels: Tensor, frames: Any, lengths: Any, *_: Any
) -> tuple[Tensor, Tensor]:
    """−log p [B] and log α [B, T, 2 L + 1]; PyTorch cannot infer these shapes."""
    rows = log_probs.shape[1]
    states = 2 * labels.shape[1] + 1
    return log_probs.new_empty(rows), log_probs.new_empty(rows, log_probs.shape[0], states)


def _ctc_loss_backward(gradient: Tensor, log_probs: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(log_probs)


_WITHOUT_SHAPES: dict[Any, Callable[..., Any]] = {
    _ATEN._ctc_loss: _ctc_loss,
    _ATEN._ctc_loss_backward: _ctc_loss_backward,
}


# --- memory ---------------------------------------------------------------------------------------


@dataclass
class Allocation:
    """A storage: its bytes, and what it turned out to be."""

    bytes: int
    phase: str  # in which it was allocated: "weights", "batch", "forward" or "backward"
    is_gradient: bool = False
    is_weight_copy: bool = False  # mixed precision: a weight in 16 bits


@dataclass(frozen=True)
class Memory:
    """Bytes at the peak of a step, by what they are for."""

    weights: int
    gradients: int
    optimizer: int
    activations: int  # allocated in forward: what backward needs, and the batch
    temporary: int  # allocated in backward, besides gradients
    # The most that anything but weights, their copies, gradients and moments takes, at its own
    # peak: what remains on a device whose states are sharded.
    working: int

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer + self.activations + self.temporary


class _Tracer(TorchDispatchMode):
    """Sees every operation below autograd, and every storage that it allocates."""

    def __init__(self) -> None:
        super().__init__()
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
        stand_in = _WITHOUT_SHAPES.get(func.overloadpacket)
        output = (stand_in or func)(*args, **kwargs)
        leaves, structure = tree_flatten((args, kwargs))
        outputs = [x for x in tree_leaves(output) if isinstance(x, Tensor)]
        inputs = [x for x in leaves if isinstance(x, Tensor)]
        for tensor in outputs:
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
            operation = Operation(
                function,
                tree_map_only(Tensor, _layout, args),
                tree_map_only(Tensor, _layout, kwargs),
                flops=_flops(function, args, kwargs, output),
                bytes=sum(_layout(tensor).bytes for tensor in tensors),
            )
            self.operations[key] = operation
        operation.count += 1
        self.flops[self.phase] += operation.flops


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


# --- the trace ------------------------------------------------------------------------------------


@dataclass
class StepTrace:
    """What a training step does: FLOPs, operations, and memory at its peak.

    FLOPs and operations are those of one micro-batch, without the optimizer's.
    """

    parameters: int
    trainable: int
    forward_flops: int
    backward_flops: int
    operations: list[Operation]
    memory: Memory
    # The bytes that forward leaves for backward to read, without weights and batch.
    saved: int
    settings: StepSettings = field(default_factory=StepSettings)

    @property
    def flops(self) -> int:
        """Of one micro-batch, forward and backward."""
        return self.forward_flops + self.backward_flops


def trace_step(
    description: Model,
    workload: Workload,
    settings: StepSettings,
    generator: Model | None = None,
) -> StepTrace:
    """Traces one training step of a model that need not fit into any memory."""
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    core = modules(description, generator, real=False)
    make_fake(core, fake)
    core.train()
    set_activation_checkpointing(core, settings.recompute)
    if settings.accelerator:
        use_accelerator_dropout(core)
    tensors = _batch(workload, fake)
    tracer = _Tracer()
    for tensor in (*core.parameters(), *core.buffers()):
        tracer.watch(tensor, "weights")
    for tensor in tensors.values():
        tracer.watch(tensor, "batch")
    with ExitStack() as stack:
        stack.enter_context(tracer)
        if settings.accelerator:
            stack.enter_context(accelerator_kernels())
        # With accumulation, gradients are there while the next micro-batch is computed.
        for _ in range(min(2, settings.accumulate)):
            saved = _forward_and_backward(core, tensors, workload, settings, tracer)
    for parameter in core.parameters():
        if parameter.grad is not None:
            tracer.allocations[tracer.watch(parameter.grad)].is_gradient = True
    return _finish(core, tracer, saved, settings)


def _batch(workload: Workload, fake: FakeTensorMode) -> dict[str, Tensor]:
    """Real token ids, labels and masks; fake pixels and sound, which are larger."""
    tensors = {}
    for name, one in workload.inputs.items():
        if one.limit is None and not one.is_mask:
            with fake:
                tensors[name] = torch.empty(one.shape)
        else:
            tensors[name] = one.create(_CPU, torch.Generator().manual_seed(0))
    return tensors


def _forward_and_backward(
    core: nn.Module,
    tensors: dict[str, Tensor],
    workload: Workload,
    settings: StepSettings,
    tracer: _Tracer,
) -> int:
    """Runs a micro-batch; returns the bytes that forward leaves for backward."""
    # What is live is the sum of all that was allocated and freed.
    before = sum(size for _, size in tracer.events)
    dtype = _AUTOCAST.get(settings.precision)
    autocast = nullcontext() if dtype is None else torch.autocast("cpu", dtype=dtype)
    tracer.phase = "forward"
    token_loss: TokenLoss = linear_cross_entropy
    if settings.accelerator:
        token_loss = FusedLinearCrossEntropy(tracer.in_backward)
    with autocast:
        loss = workload.loss(core, tensors, token_loss)
    saved = sum(size for _, size in tracer.events) - before
    tracer.phase = "backward"
    (loss * (1.0 / workload.labels)).backward()
    return saved


def _finish(core: nn.Module, tracer: _Tracer, saved: int, settings: StepSettings) -> StepTrace:
    parameters = list(core.parameters())
    trainable = [parameter for parameter in parameters if parameter.requires_grad]
    optimizer = 2 * sum(p.numel() * p.element_size() for p in trainable)  # Adam's two moments
    passes = min(2, settings.accumulate)
    # Both passes of accumulation have the same operations, but for adding up gradients.
    operations = list(tracer.operations.values())
    for operation in operations:
        operation.count = -(-operation.count // passes)
    return StepTrace(
        parameters=sum(p.numel() for p in parameters),
        trainable=sum(p.numel() for p in trainable),
        forward_flops=tracer.flops["forward"] // passes,
        backward_flops=tracer.flops["backward"] // passes,
        operations=operations,
        memory=_peak(tracer, optimizer),
        saved=saved,
        settings=settings,
    )


def _peak(tracer: _Tracer, optimizer: int) -> Memory:
    """The composition of memory at the moment when it is fullest."""
    total = 0
    highest = 0
    moment = 0
    working = 0
    most_working = 0
    for index, (number, size) in enumerate(tracer.events):
        total += size
        if total > highest:
            highest = total
            moment = index
        if _purpose(tracer.allocations[number]) in ("activations", "temporary"):
            working += 0 if tracer.allocations[number].is_weight_copy else size
            most_working = max(most_working, working)
    # Played back up to that moment: only now is known what became a gradient.
    amounts = dict.fromkeys(("weights", "gradients", "activations", "temporary"), 0)
    for number, size in tracer.events[: moment + 1]:
        amounts[_purpose(tracer.allocations[number])] += size
    return Memory(optimizer=optimizer, working=most_working, **amounts)


def _purpose(allocation: Allocation) -> str:
    if allocation.phase == "weights":
        return "weights"
    if allocation.is_gradient:
        return "gradients"
    return "temporary" if allocation.phase == "backward" else "activations"
