"""Several devices: data parallelism, sharded states, and the communication they cost."""

from __future__ import annotations

from dataclasses import dataclass

from regard.plan.accelerators import Accelerator
from regard.plan.step_trace import Memory


@dataclass(frozen=True)
class Parallel:
    """A way to use N devices: memory of each, and what goes over its link in a step."""

    name: str
    memory: float  # bytes of one device
    traffic: float  # bytes that each device sends in a step
    seconds: float  # of communication, not overlapped with computation
    step_seconds: float  # computation and communication, one after the other

    @property
    def efficiency(self) -> float:
        """The share of the time that is computation, if nothing overlaps."""
        return 1 - self.seconds / self.step_seconds


def parallel_plans(
    memory: Memory, seconds: float, accelerator: Accelerator, devices: int
) -> list[Parallel]:
    """Replicas with all-reduced gradients, ZeRO stages 1 and 2, and fully sharded states.

    Each device computes a batch of its own; rings send (N − 1) / N of a tensor in each pass
    (Rajbhandari et al. 2020, Section 7).
    """
    share = (devices - 1) / devices
    # At the end of backward every weight has a gradient, whether or not it has at the peak.
    gradients = memory.weights
    plans = (
        ("replicas (DDP)", memory.total, 2 * share * gradients),
        (
            "optimizer and gradients sharded (ZeRO 2)",
            memory.weights + (memory.optimizer + gradients) / devices + memory.working,
            2 * share * gradients,
        ),
        (
            "all sharded (FSDP, ZeRO 3)",
            sharded_states(memory) / devices + memory.working,
            # Weights are gathered for forward and for backward, gradients are reduced once.
            share * (2 * memory.weights + gradients),
        ),
    )
    result = []
    for name, needed, traffic in plans:
        sending = traffic / accelerator.link
        result.append(Parallel(name, needed, traffic, sending, seconds + sending))
    return result


def sharded_states(memory: Memory) -> int:
    """Bytes of weights, gradients and moments, which may be distributed over devices."""
    return 2 * memory.weights + memory.optimizer
