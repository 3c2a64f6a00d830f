"""Calibration: the operations of a traced step, each timed alone on the device that is here.

A step of a model with many equal layers consists of few different operations, so that timing each
of them once takes less than the step itself, and a model that does not fit can be timed too.
"""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from regard.core.cuda_graph import capture
from regard.lab.measure.instruments import bandwidth, matrix_rate
from regard.lab.measure.tracer import Operation, TensorLayout
from regard.lab.plan.measurement import LEARNING_RATE, step_clock
from regard.lab.plan.step_trace import StepTrace
from regard.training.engine.optimizer import ConstantRate, Optimizer

ROUNDS = 3
COPIES = 2  # of the arguments, in turn: in a step an operation's inputs are rarely in the cache
GRAPH_CALLS = 20  # of an operation in one CUDA graph
SAMPLE_PARAMETERS = 1 << 22  # that the optimizer is timed on
# Larger operations are not run but estimated, from the rate of a smaller product or copy.
MAX_BYTES = 2 << 30
MAX_FLOPS = {"cpu": 2e10, "cuda": 1e14}

Call = Callable[[], Any]


def step_seconds(trace: StepTrace, device: torch.device) -> float:
    """The predicted time of an update: all operations of its micro-batches, and the optimizer."""
    seconds = operations_seconds_here(trace.operations, device)
    return trace.settings.accumulate * seconds + optimizer_seconds(trace.trainable, device)


def operations_seconds_here(operations: Iterable[Operation], device: torch.device) -> float:
    """The time of traced operations, each timed on the device that is here."""
    seconds = 0.0
    rates: dict[torch.dtype | None, float] = {None: bandwidth(device)}
    for operation in operations:
        one = operation_seconds(operation, device)
        if one is None:
            one = _estimate(operation, rates, device)
        seconds += operation.count * one
    return seconds


def operation_seconds(operation: Operation, device: torch.device) -> float | None:
    """The median time of one operation; None where it cannot be repeated by itself."""
    if operation.bytes > MAX_BYTES or operation.flops > MAX_FLOPS[device.type]:
        return None
    try:
        calls = [_call(operation, device) for _ in range(COPIES)]
        with torch.no_grad():
            calls[0]()  # warms up: kernels are chosen, threads and buffers made
            return _time(calls, device)
    # Arguments that random numbers cannot stand for (lengths, plans): estimated by bytes instead.
    except (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError):
        return None


def _estimate(
    operation: Operation, rates: dict[torch.dtype | None, float], device: torch.device
) -> float:
    """As long as its arithmetic or its memory traffic, at the rates that are reached here."""
    dtype = operation.dtype
    if operation.flops and dtype not in rates:
        rates[dtype] = matrix_rate(device, dtype)
    arithmetic = operation.flops / rates[dtype] if operation.flops else 0.0
    return max(arithmetic, operation.bytes / rates[None])


def _call(operation: Operation, device: torch.device) -> Call:
    limit = _index_limit(operation)

    def create(layout: TensorLayout) -> Tensor:
        return _tensor(layout, limit, device)

    arguments = tree_map_only(TensorLayout, create, _without_dropout(operation))
    options = tree_map_only(TensorLayout, create, dict(operation.options))
    if "device" in options:
        options["device"] = device
    return lambda: operation.function(*arguments, **options)


def _without_dropout(operation: Operation) -> tuple[Any, ...]:
    """The arguments of an operation; the backward pass of attention draws no dropout.

    Its kernel reads the seed of the forward pass from the host, or from the device while a graph is
    captured: no one tensor serves both calls.
    """
    names = [argument.name for argument in operation.function._schema.arguments]
    if "philox_seed" not in names:
        return operation.arguments
    arguments = list(operation.arguments)
    position = names.index("dropout_p")
    if position < len(arguments):
        arguments[position] = 0.0
    return tuple(arguments)


def _index_limit(operation: Operation) -> int:
    """Integers below it are valid as indices, whichever dimension they are indices of."""
    leaves = tree_leaves((operation.arguments, operation.options))
    layouts = [x for x in leaves if isinstance(x, TensorLayout)]
    sizes = [size for x in layouts if x.dtype.is_floating_point for size in x.shape]
    return max(1, min(sizes, default=1))


def _tensor(layout: TensorLayout, limit: int, device: torch.device) -> Tensor:
    tensor = torch.empty_strided(layout.shape, layout.stride, dtype=layout.dtype, device=device)
    # Of an expanded tensor, the part that has memory.
    base = tensor[tuple(slice(None if stride else 1) for stride in layout.stride)]
    # No zeros: denormals and early exits would make an operation slower or faster.
    if layout.dtype.is_floating_point:
        base.normal_()
    elif layout.dtype == torch.bool:
        base.fill_(True)
    else:
        base.random_(0, limit)
    return tensor


# --- clocks ---------------------------------------------------------------------------------------


def _time(calls: Sequence[Call], device: torch.device) -> float:
    if device.type == "cuda":
        return _time_on_gpu(calls)
    clock = step_clock(device)
    times = []
    for _ in range(ROUNDS):
        for call in calls:
            start = clock()
            call()
            times.append(clock() - start)
    return statistics.median(times)


def _time_on_gpu(calls: Sequence[Call]) -> float:
    """As a training step replays it: in a CUDA graph, without the time of launching."""
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    torch.cuda.current_stream().wait_stream(stream)
    with warnings.catch_warnings(), capture(graph):
        # Views launch no kernel, and leave the graph empty.
        warnings.filterwarnings("ignore", "The CUDA Graph is empty")
        for index in range(GRAPH_CALLS):
            calls[index % len(calls)]()
    times = []
    for _ in range(ROUNDS):
        start = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1000 / GRAPH_CALLS)
    return statistics.median(times)


def optimizer_seconds(parameters: int, device: torch.device) -> float:
    """The time of one update by Adam, from that of a sample of parameters."""
    count = max(1, min(parameters, SAMPLE_PARAMETERS))
    sample = nn.Parameter(torch.randn(count, device=device))
    optimizer = Optimizer([("sample", sample)], ConstantRate(LEARNING_RATE, 1))
    loss = torch.ones((), device=device)
    gradient = torch.randn(count, device=device)

    def update() -> None:
        sample.grad = gradient  # `update` takes it away
        optimizer.update(loss)

    update()  # creates the state
    return _time([update], device) * parameters / count
