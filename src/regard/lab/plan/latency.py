"""The latency of inference at batch 1: the time to the first token, and of each token after it.

A step of one row reads all weights for few operations, so that the memory bandwidth decides, then
how many kernels are launched, and only in long inputs the arithmetic. Traced like a training step:
fake weights, and the same modules that decoding calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from regard.builder import make_fake
from regard.decode.batch_decoding import DecodingSettings, SpecialTokens, decode
from regard.decode.strategy import Greedy, Limit
from regard.lab.measure.tracer import Operation, Tracer
from regard.lab.plan.accelerators import operations_seconds
from regard.lab.plan.measurement import step_clock
from regard.lab.plan.operator_timing import operations_seconds_here
from regard.lab.plan.planner import Device
from regard.lab.plan.step_trace import STAND_INS
from regard.lab.plan.subject import Subject, with_batch
from regard.lab.plan.workload import modules
from regard.system.errors import ModelError, SettingError

NEW_TOKENS = (8, 40)  # decoded in two runs, whose difference is the time of single tokens
ROUNDS = 5
_HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}
# No token ends a measured output, so that each has the full length.
_NO_TOKEN = -1


@dataclass(frozen=True)
class Cost:
    """What a call computes and moves, and the seconds that are predicted, or were measured."""

    flops: int
    bytes: int  # read and written; the weights are most of it
    seconds: float
    measured: float | None = None


@dataclass(frozen=True)
class Latency:
    """The latency of one input of `length` positions.

    A model that writes reads them before its first token (`first`), and then writes token by token
    (`each`); any other answers at once.
    """

    name: str
    device: str
    precision: str
    length: int
    parameters: int
    first: Cost
    each: Cost | None

    def data(self) -> dict[str, Any]:
        """As one object for JSON."""
        return asdict(self)


def plan_latency(subject: Subject, device: Device, *, measure: bool = False) -> Latency:
    """The predicted latency of a model on a device; `measure`: also what it is here."""
    subject = with_batch(subject, 1, 1)
    core = modules(subject.description, None, real=False)
    core.to(_HALF.get(subject.settings.precision, torch.float32))
    make_fake(core, FakeTensorMode(allow_non_fake_inputs=True))
    tensors = subject.workload.create(torch.device("cpu"))
    try:
        traces = [_traced(call) for call in _calls(core.eval(), subject, tensors)]
    except DataDependentOutputException:
        raise ModelError(
            f"the latency of {subject.name} cannot be traced: what a step computes depends on "
            "values (experts)",
            "measure it instead: regard bench decode",
        ) from None
    costs = [_cost(operations, subject, device) for operations in traces]
    if measure:
        times = _measured(subject, device.torch_device)
        costs = [replace(one, measured=time) for one, time in zip(costs, times, strict=True)]
    return Latency(
        subject.name,
        device.name,
        subject.settings.precision,
        subject.sizes.length,
        sum(parameter.numel() for parameter in core.parameters()),
        costs[0],
        costs[1] if len(costs) > 1 else None,
    )


def _calls(
    core: Any, subject: Subject, tensors: Mapping[str, Tensor]
) -> Iterator[Callable[[], object]]:
    """What runs before the first answer, and for a model that writes the step of a token."""
    if not core.writes:
        yield lambda: subject.workload.loss(core, tensors)
        return
    source = tensors["source"] if "source" in tensors else tensors["tokens"]
    states = []

    def start() -> None:
        states.append(core.start(core.encode(source), capacity=NEW_TOKENS[0]))
        step()  # the last token of a prompt, or the start token, gives the first one

    def step() -> None:
        core.step(torch.zeros(1, 1, dtype=torch.long, device=source.device), states[-1])

    yield start
    yield step


def _traced(call: Callable[[], object]) -> list[Operation]:
    with torch.no_grad(), Tracer(STAND_INS) as tracer:
        call()
    return list(tracer.operations.values())


def _cost(operations: list[Operation], subject: Subject, device: Device) -> Cost:
    if device.accelerator is not None:
        precision = subject.settings.precision
        seconds = operations_seconds(operations, device.accelerator, precision)
    else:
        seconds = operations_seconds_here(operations, device.torch_device)
    return Cost(
        sum(one.count * one.flops for one in operations),
        sum(one.count * one.bytes for one in operations),
        seconds,
    )


# ------------------------------------------------------------------ reality


def _measured(subject: Subject, device: torch.device) -> list[float]:
    """The seconds of the same calls here; tokens are decoded as `generate` and `translate` do."""
    core: Any = modules(subject.description, None, real=True)
    core.to(device, _HALF.get(subject.settings.precision, torch.float32)).eval()
    tensors = subject.workload.create(device)
    if not core.writes:
        answer = next(_calls(core, subject, tensors))
        return [_fastest(torch.inference_mode()(answer), device)]
    source = tensors["source"] if "source" in tensors else tensors["tokens"]
    if source.is_floating_point():
        raise SettingError(
            "the latency of a model that reads sound is not measured", "leave --measure out"
        )
    rows = source.tolist()
    special_tokens = SpecialTokens(0, _start(core), _NO_TOKEN)

    def write(count: int) -> Callable[[], object]:
        settings = DecodingSettings(Greedy(), Limit.fixed(count))
        return lambda: decode(core, rows, special_tokens, settings)

    first, short, long = (_fastest(write(count), device) for count in (1, *NEW_TOKENS))
    return [first, (long - short) / (NEW_TOKENS[1] - NEW_TOKENS[0])]


def _fastest(call: Callable[[], object], device: torch.device) -> float:
    """The least time of several, after one that warms up."""
    clock = step_clock(device)
    times = []
    for _ in range(1 + ROUNDS):
        start = clock()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(clock() - start)
    return min(times[1:])


def _start(core: nn.Module) -> int | None:
    """The first token that a decoder behind an encoder reads; any will do."""
    return 0 if getattr(core, "reads_target", False) else None
