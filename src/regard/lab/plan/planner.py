"""The plan of a training: FLOPs, memory, time, money, and what to change if it does not fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from regard.lab.plan.accelerators import WORKSPACE, Accelerator, find_accelerator, roofline_seconds
from regard.lab.plan.compute_optimal import FLOPS_PER_PARAMETER_AND_TOKEN
from regard.lab.plan.failures import CheckpointPlan, checkpoint_plan, sharded_write_rate
from regard.lab.plan.operator_timing import step_seconds
from regard.lab.plan.sharding import (
    HALF,
    MACHINE_DEVICES,
    Parallel,
    parallel_plans,
    sharded_states,
)
from regard.lab.plan.step_trace import Memory, StepTrace, trace_step
from regard.lab.plan.subject import Request, Subject, resolve, with_batch
from regard.system import memory as system_memory
from regard.system.errors import SettingError

HEADROOM = 0.92  # of a device's memory: fragments and the driver take the rest
CHECKPOINT_BYTES_PER_PARAMETER = 12  # weights and two moments, in float32


@dataclass(frozen=True)
class Device:
    """Where a step runs: an accelerator of the table, or the device that is here."""

    name: str
    memory: float | None  # bytes; None where the system does not say
    accelerator: Accelerator | None  # None: this machine
    torch_device: torch.device

    @property
    def is_accelerator(self) -> bool:
        return self.accelerator is not None or self.torch_device.type == "cuda"


@dataclass(frozen=True)
class Remedy:
    """A change that lowers the memory of a step, and what it needs then."""

    change: str
    memory: int
    fits: bool
    flops: float  # of the update, as a multiple of what it was


@dataclass(frozen=True)
class Plan:
    """Everything that is predicted of a training."""

    subject: Subject
    trace: StepTrace
    device: Device
    devices: int
    seconds: float | None  # of an update
    price: float | None  # dollars an hour and device
    remedies: tuple[Remedy, ...]
    parallel: tuple[Parallel, ...]
    checkpoints: CheckpointPlan
    assumed_utilization: float | None = None  # of the whole step, where it was given

    # --- memory -----------------------------------------------------------------------------------

    @property
    def memory(self) -> Memory:
        return self.trace.memory

    @property
    def needed(self) -> int:
        """Bytes at the peak, with the workspaces of a GPU's libraries."""
        return _needed(self.trace, self.device)

    @property
    def fits(self) -> bool | None:
        return _fits(self.needed, self.device)

    # --- the whole training -----------------------------------------------------------------------

    @property
    def flops_per_step(self) -> int:
        return self.trace.flops * self.subject.settings.accumulate

    @property
    def steps(self) -> float | None:
        if self.subject.tokens is None:
            return None
        return self.subject.tokens / (self.subject.positions_per_step * self.devices)

    @property
    def total_flops(self) -> float | None:
        """Counted: with attention, and without what embeddings only look up."""
        if self.steps is None:
            return None
        # Every device computes a batch of its own in each step.
        return self.steps * self.devices * self.flops_per_step

    @property
    def six_n_d(self) -> float | None:
        """The usual estimate: 6 FLOPs for each parameter and token."""
        if self.subject.tokens is None:
            return None
        return FLOPS_PER_PARAMETER_AND_TOKEN * self.trace.parameters * self.subject.tokens

    @property
    def hours(self) -> float | None:
        if self.steps is None or self.seconds is None:
            return None
        seconds = self.seconds
        if self.devices > 1:
            seconds = self._parallel_seconds()
        return self.steps * seconds / 3600

    def _parallel_seconds(self) -> float:
        """Of the first way to use all devices that fits, otherwise of the last."""
        for parallel in self.parallel:
            if _fits(parallel.memory, self.device) is not False:
                return parallel.step_seconds
        return self.parallel[-1].step_seconds

    def parallel_fits(self, parallel: Parallel) -> bool:
        return _fits(parallel.memory, self.device) is not False

    def utilization(self, seconds: float) -> float | None:
        """Model FLOPs utilization (MFU) of a step that takes so long on one device."""
        accelerator = self.device.accelerator
        if accelerator is None:
            return None
        precision = self.subject.settings.precision
        dtype = torch.float32 if precision in ("float32", "tf32") else torch.bfloat16
        # Recomputed activations are operations, but none of the model's.
        flops = 3 * self.trace.forward_flops * self.subject.settings.accumulate
        return flops / (accelerator.rate(dtype, precision) * seconds)

    @property
    def cost(self) -> float | None:
        if self.hours is None or self.price is None:
            return None
        return self.hours * self.price * self.devices

    # --- attention and decoding -------------------------------------------------------------------

    @property
    def attention_bytes_per_layer(self) -> int:
        """The weights of one layer, rows × heads × n² in float32, where a kernel would store
        them; fused kernels do not."""
        sizes = self.subject.sizes
        # The widest of both stacks; baselines have none.
        heads = [stack.block.attention.heads for stack in self.subject.description.stacks.values()]
        return 4 * sizes.rows * max(heads, default=0) * sizes.length**2

    @property
    def kv_cache_bytes(self) -> int | None:
        """Of all rows at the full length, in float32, or in 16 bits in mixed precision."""
        per_token = self.subject.description.kv_cache_size
        if per_token is None:
            return None
        width = 4 if self.subject.settings.precision in ("float32", "tf32") else 2
        return per_token * self.subject.sizes.positions * width


def find_device(name: str) -> Device:
    """A device by the name of the table, or `cpu` or `cuda` for what is here; `auto` chooses."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cpu":
        free = system_memory.available()
        return Device("this CPU", free, None, torch.device("cpu"))
    if name.partition(":")[0] == "cuda":
        if not torch.cuda.is_available():
            raise SettingError(
                "this machine has no CUDA device", "plan for a known device: --device H100"
            )
        device = torch.device(name)
        properties = torch.cuda.get_device_properties(device)
        return Device(f"this {properties.name}", properties.total_memory, None, device)
    accelerator = find_accelerator(name)
    return Device(accelerator.name, accelerator.memory, accelerator, torch.device("cpu"))


def plan(
    model: str,
    *,
    device: str = "auto",
    devices: int = 1,
    price: float | None = None,
    utilization: float | None = None,
    **request: Any,
) -> Plan:
    """What it costs to train a model: parameters, FLOPs, memory, time and money.

    Example:
        `regard.plan("gpt2:small", device="A100", precision="bf16").needed`.

    `model` is a recipe, a preset, a config.json, a spec file or a model folder, `device` cpu, cuda
    or an accelerator such as H100. `request` are the fields of `Request`: `batch`, `length`,
    `precision`, `accumulate`, `recompute`, `vocabulary`, `tokens`.
    """
    return make_plan(
        resolve(model, Request(**request)),
        find_device(device),
        devices=devices,
        price=price,
        utilization=utilization,
    )


def make_plan(
    subject: Subject,
    device: Device,
    *,
    devices: int = 1,
    price: float | None = None,
    utilization: float | None = None,
    calibrate: bool = True,
) -> Plan:
    """Predicts the cost of a training; `calibrate` times operations on the device that is here."""
    if devices < 1:
        raise SettingError(f"--devices {devices} is less than 1", "use --devices 1 or more")
    if devices > 1 and device.accelerator is None:
        raise SettingError(
            "--devices needs a known interconnect bandwidth, which the local device does not have",
            "plan for a known device: --device H100 --devices N",
        )
    if utilization is not None and device.accelerator is None:
        raise SettingError(
            "--utilization has no effect on the local device, where steps are timed",
            "remove --utilization, or plan for a known device: --device H100",
        )
    if device.accelerator is not None:
        _check_precision(subject, device.accelerator)
    subject = _on(subject, device)
    trace = trace_step(subject)
    seconds: float | None = None
    if device.accelerator is not None:
        seconds = roofline_seconds(trace, device.accelerator, utilization)
        price = device.accelerator.price if price is None else price
    elif calibrate:
        seconds = step_seconds(trace, device.torch_device)
    needed = _needed(trace, device)
    # Each remedy is traced as well, so they are looked for only where they are needed.
    remedies: tuple[Remedy, ...] = ()
    if _fits(needed, device) is False:
        remedies = tuple(_remedies(subject, device, trace))
    plan = Plan(
        subject,
        trace,
        device,
        devices=1,
        seconds=seconds,
        price=price,
        remedies=remedies,
        parallel=(),
        checkpoints=_checkpoint_plan(trace, 1),
        assumed_utilization=utilization,
    )
    return with_devices(plan, devices)


def with_devices(plan: Plan, devices: int) -> Plan:
    """The same training on another number of devices; nothing is traced again."""
    parallel: list[Parallel] = []
    accelerator = plan.device.accelerator
    if devices > 1 and accelerator is not None and plan.seconds is not None:
        layers = sum(stack.layers for stack in plan.subject.description.stacks.values())
        in_half = plan.subject.settings.precision in ("bf16", "fp16")
        parallel = parallel_plans(
            plan.memory,
            plan.seconds,
            accelerator,
            devices,
            layers=layers,
            gathered=HALF if in_half else 1.0,
        )
    checkpoints = _checkpoint_plan(plan.trace, devices)
    return replace(plan, devices=devices, parallel=tuple(parallel), checkpoints=checkpoints)


def _checkpoint_plan(trace: StepTrace, devices: int) -> CheckpointPlan:
    size = CHECKPOINT_BYTES_PER_PARAMETER * trace.parameters
    machines = -(-devices // MACHINE_DEVICES)
    return checkpoint_plan(devices, size, write_rate=sharded_write_rate(machines))


def _on(subject: Subject, device: Device) -> Subject:
    # A GPU has other kernels, and so other activations.
    settings = replace(subject.settings, accelerator=device.is_accelerator)
    return replace(subject, settings=settings)


def _check_precision(subject: Subject, accelerator: Accelerator) -> None:
    if subject.settings.precision == "bf16" and not accelerator.has_bf16:
        raise SettingError(f"{accelerator.name} does not support bf16", "use --precision fp16")


def _needed(trace: StepTrace, device: Device) -> int:
    return trace.memory.total + (WORKSPACE if device.is_accelerator else 0)


def _fits(needed: float, device: Device) -> bool | None:
    return None if device.memory is None else needed <= HEADROOM * device.memory


# --- what to change -------------------------------------------------------------------------------


def _remedies(subject: Subject, device: Device, trace: StepTrace) -> Iterator[Remedy]:
    """Changes in the order of what they cost, each on top of those before it, until one fits."""
    before = trace.flops * subject.settings.accumulate
    for change, changed in _changes(subject, device):
        subject = changed
        trace = trace_step(subject)
        needed = _needed(trace, device)
        fits = bool(_fits(needed, device))
        yield Remedy(change, needed, fits, trace.flops * subject.settings.accumulate / before)
        if fits:
            return
    # Nothing on one device: shards of all states.
    states = sharded_states(trace.memory)
    working = trace.memory.working
    room = HEADROOM * (device.memory or 0) - working
    if room > 0:
        count = -(-states // int(room))
        change = f"FSDP over {count} devices, in addition to the above"
        yield Remedy(change, int(states / count + working), True, 1.0)


def _changes(subject: Subject, device: Device) -> Iterator[tuple[str, Subject]]:
    settings = subject.settings
    if settings.precision in ("float32", "tf32") and device.is_accelerator:
        has_bf16 = device.accelerator is None or device.accelerator.has_bf16
        precision = "bf16" if has_bf16 else "fp16"
        subject = replace(subject, settings=replace(subject.settings, precision=precision))
        yield f"mixed precision (--precision {precision})", subject
    if not settings.recompute and subject.description.stacks:
        subject = replace(subject, settings=replace(subject.settings, recompute=True))
        yield "activation checkpointing (--gradient-checkpointing)", subject
    rows = subject.sizes.rows
    accumulate = settings.accumulate
    # A quarter of the rows at a time: every step of this loop is a trace.
    while rows > 1:
        rows = -(-rows // 4)
        accumulate *= 4
        subject = with_batch(subject, rows, accumulate)
        yield f"gradient accumulation (--batch {rows} --accumulate {accumulate})", subject
