"""The trace of a training step: every operation and every allocation, without computing anything.

Parameters and floating-point inputs are fake tensors (shapes, dtypes and devices, no memory), so
that a step of a model of any size is traced in seconds; token ids and masks are real, so that code
that asks for their values gets an answer. What is traced is the training step itself: the same
modules, the same loss and PyTorch's own backward.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from regard.builder import make_fake
from regard.lab.measure.tracer import Allocation, Operation, Tracer
from regard.lab.plan.accelerator_kernels import (
    FusedLinearCrossEntropy,
    accelerator_kernels,
    use_accelerator_dropout,
)
from regard.lab.plan.subject import Subject
from regard.lab.plan.workload import (
    StepSettings,
    Workload,
    modules,
    set_activation_checkpointing,
)
from regard.training.objectives.losses import (
    TokenLoss,
    linear_cross_entropy,
)

_CPU = torch.device("cpu")
_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


def _ctc_loss(
    log_probs: Tensor, labels: Tensor, frames: Any, lengths: Any, *_: Any
) -> tuple[Tensor, Tensor]:
    """−log p [B] and log α [B, T, 2 L + 1]; PyTorch cannot infer these shapes."""
    rows = log_probs.shape[1]
    states = 2 * labels.shape[1] + 1
    return log_probs.new_empty(rows), log_probs.new_empty(rows, log_probs.shape[0], states)


def _ctc_loss_backward(gradient: Tensor, log_probs: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(log_probs)


def _index(x: Tensor, indices: list[Tensor | None]) -> Any:
    """What a real mask selects of a fake tensor: how much it is can be counted."""
    numbers: list[Tensor | None] = []
    for one in indices:
        if one is not None and one.dtype == torch.bool:
            numbers += one.nonzero().unbind(1)
        else:
            numbers.append(one)
    return torch.ops.aten.index.Tensor(x, numbers)


def _assumed_true(checked: Tensor) -> Tensor:
    """Of the checks of distributions, whose parameters have no values here."""
    return torch.tensor(True)


STAND_INS: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.index: _index,
    torch.ops.aten._is_all_true: _assumed_true,
    torch.ops.aten._ctc_loss: _ctc_loss,
    torch.ops.aten._ctc_loss_backward: _ctc_loss_backward,
}


# --- memory ---------------------------------------------------------------------------------------


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


def trace_step(subject: Subject) -> StepTrace:
    """Traces one training step of a model that need not fit into any memory."""
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    workload = subject.workload
    settings = subject.settings
    core = modules(subject.description, subject.generator, real=False)
    make_fake(core, fake)
    core.train()
    set_activation_checkpointing(core, settings.recompute)
    if settings.accelerator:
        use_accelerator_dropout(core)
    generator = torch.Generator().manual_seed(0)
    tensors = {}
    for name, one in workload.inputs.items():
        with nullcontext() if one.is_real else fake:
            tensors[name] = one.create(_CPU, generator)
    tracer = Tracer(STAND_INS)
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


def _forward_and_backward(
    core: nn.Module,
    tensors: dict[str, Tensor],
    workload: Workload,
    settings: StepSettings,
    tracer: Tracer,
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


def _finish(core: nn.Module, tracer: Tracer, saved: int, settings: StepSettings) -> StepTrace:
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


def _peak(tracer: Tracer, optimizer: int) -> Memory:
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
