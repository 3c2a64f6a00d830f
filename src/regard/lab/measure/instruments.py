"""The cost of any computation, on any device: floating-point operations, bytes and seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import itemgetter

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from regard.lab.measure.tracer import Tracer

Step = Callable[[], object]
ROUNDS = 9  # in which the limits of the machine are looked for; the first of them warms up


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


def matrix_rate(device: torch.device, dtype: torch.dtype = torch.float32) -> float:
    """The peak FLOP/s of this machine: products of large square matrices, the fastest round."""
    on_gpu = device.type == "cuda"
    size = 8192 if on_gpu else 1536
    a = torch.randn(size, size, device=device).to(dtype)
    # So many at once that a GPU never waits for work and reaches its full clock.
    repeats = 30 if on_gpu else 1

    def multiply() -> None:
        for _ in range(repeats):
            torch.mm(a, a)

    # A product and a sum for each of size³ terms.
    return 2.0 * repeats * size**3 / fastest(multiply, ROUNDS)


def bandwidth(device: torch.device) -> float:
    """The memory bandwidth in bytes a second, read and written: a large copy, the fastest round."""
    on_gpu = device.type == "cuda"
    source = torch.empty(2**28 if on_gpu else 2**24, device=device)
    target = torch.empty_like(source)
    repeats = 20 if on_gpu else 1

    def copy() -> None:
        for _ in range(repeats):
            target.copy_(source)

    return 2.0 * repeats * source.nbytes / fastest(copy, ROUNDS)


# ------------------------------------------------------------------ operations and bytes


def count_flops(step: Step) -> float:
    """The floating-point operations of a step."""
    with Tracer() as tracer:
        step()
    return float(sum(tracer.flops.values()))


def peak_bytes(step: Step) -> int:
    """The peak of all tensors that a step makes, in bytes; what was there before does not count."""
    with Tracer() as tracer:
        step()
    return max(accumulate(size for _, size in tracer.events), default=0)


def allocated_peak(step: Step) -> int:
    """The peak of what PyTorch's allocator for CPUs gives to a step, in bytes."""
    # That allocator keeps no statistics; the profiler records each allocation and release.
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    events = [
        (event.start_ns(), event.nbytes())
        for event in profiler.profiler.kineto_results.events()  # type: ignore[union-attr]
        if event.name() == "[memory]"
    ]
    return max(0, *accumulate(size for _, size in sorted(events, key=itemgetter(0))))
