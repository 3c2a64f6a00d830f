"""Named accelerators: memory, peak rates, bandwidths and approximate prices, as a literal table.

Rates are the vendors' for dense matrices, without sparsity. Prices are what clouds asked for one
device an hour, on demand, in 2025, rounded; they differ by a factor of two between providers, and
`--price` replaces them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from regard.lab.measure.tracer import Operation
from regard.lab.plan.step_trace import StepTrace
from regard.system.errors import SettingError, did_you_mean

PRICES_OF = 2025
# What is assumed where nothing is measured: the share of the peak rates that kernels reach, and the
# time that even the smallest kernel takes.
MATRIX_EFFICIENCY = 0.6
BANDWIDTH_EFFICIENCY = 0.8
KERNEL_SECONDS = 3e-6
# Bytes that each of the libraries for matrix products takes for itself: cuBLAS has a workspace for
# the stream of the first step and one for that of the recorded one.
WORKSPACE = 2 * 32 * 2**20


@dataclass(frozen=True)
class Accelerator:
    """One device. Rates are in FLOP/s, memory in bytes, bandwidths in bytes a second."""

    name: str
    memory: float
    half: float  # bf16, or fp16 where there is no bf16
    tf32: float  # that of float32 where there is no TF32
    float32: float
    bandwidth: float  # of its memory
    link: float  # to other devices, in one direction
    price: float  # dollars an hour
    has_bf16: bool = True

    def rate(self, dtype: torch.dtype, precision: str) -> float:
        """The peak rate of matrix products."""
        if dtype.itemsize == 2:
            return self.half
        return self.tf32 if precision == "tf32" else self.float32


_GB = 1e9
_T = 1e12
# fmt: off
ACCELERATORS = {
    one.name.lower(): one
    for one in (
        Accelerator("V100", 32 * _GB, 125 * _T, 15.7 * _T, 15.7 * _T, 900 * _GB, 150 * _GB, 2.5,
                    has_bf16=False),
        Accelerator("T4", 16 * _GB, 65 * _T, 8.1 * _T, 8.1 * _T, 320 * _GB, 16 * _GB, 0.4,
                    has_bf16=False),
        Accelerator("A100", 80 * _GB, 312 * _T, 156 * _T, 19.5 * _T, 2039 * _GB, 300 * _GB, 1.8),
        Accelerator("L4", 24 * _GB, 121 * _T, 60 * _T, 30.3 * _T, 300 * _GB, 32 * _GB, 0.7),
        Accelerator("RTX4090", 24 * _GB, 165 * _T, 82.6 * _T, 82.6 * _T, 1008 * _GB, 32 * _GB, 0.4),
        Accelerator("H100", 80 * _GB, 989 * _T, 494 * _T, 67 * _T, 3350 * _GB, 450 * _GB, 3.0),
        Accelerator("H200", 141 * _GB, 989 * _T, 494 * _T, 67 * _T, 4800 * _GB, 450 * _GB, 3.8),
        Accelerator("B200", 180 * _GB, 2250 * _T, 1100 * _T, 75 * _T, 8000 * _GB, 900 * _GB, 5.5),
        # TPUs compute float32 products by several of bf16.
        Accelerator("TPUv4", 32 * _GB, 275 * _T, 92 * _T, 46 * _T, 1228 * _GB, 150 * _GB, 3.2),
        Accelerator("TPUv5e", 16 * _GB, 197 * _T, 66 * _T, 33 * _T, 819 * _GB, 100 * _GB, 1.2),
        Accelerator("TPUv5p", 95 * _GB, 459 * _T, 153 * _T, 76 * _T, 2765 * _GB, 300 * _GB, 4.2),
    )
}
# fmt: on


def find_accelerator(name: str) -> Accelerator:
    """An accelerator by its name; the error for an unknown name suggests the closest one."""
    accelerator = ACCELERATORS.get(name.lower())
    if accelerator is None:
        names = [one.name for one in ACCELERATORS.values()]
        raise SettingError(
            f"unknown device {name!r}",
            f"{did_you_mean(name, ['cpu', 'cuda', *names])}",
        )
    return accelerator


def roofline_seconds(
    trace: StepTrace, accelerator: Accelerator, utilization: float | None = None
) -> float:
    """The time of an update by the roofline model (Williams et al. 2009).

    An operation takes as long as its arithmetic or its memory traffic, whichever is longer. With a
    `utilization` (MFU), the whole step runs at that share of the peak rate instead.
    """
    settings = trace.settings
    if utilization is not None:
        dtype = torch.float32 if settings.precision in ("float32", "tf32") else torch.bfloat16
        peak = accelerator.rate(dtype, settings.precision)
        return settings.accumulate * trace.flops / (utilization * peak)
    seconds = operations_seconds(trace.operations, accelerator, settings.precision)
    # Adam reads weights, gradients and both moments, and writes all but the gradients, in float32.
    adam = 7 * 4 * trace.trainable / (BANDWIDTH_EFFICIENCY * accelerator.bandwidth)
    return settings.accumulate * seconds + adam


def operations_seconds(
    operations: Iterable[Operation], accelerator: Accelerator, precision: str
) -> float:
    """The time of traced operations by the roofline model."""
    bandwidth = BANDWIDTH_EFFICIENCY * accelerator.bandwidth
    seconds = 0.0
    # Views are no operations of the trace: what is left is about one kernel each.
    for operation in operations:
        rate = MATRIX_EFFICIENCY * accelerator.rate(operation.dtype, precision)
        longest = max(operation.flops / rate, operation.bytes / bandwidth, KERNEL_SECONDS)
        seconds += operation.count * longest
    return seconds
