"""Several devices: data parallelism, sharded states, and the communication they cost.

Collectives are rings. Inside a machine they run over the links of the devices; across machines,
all network cards of a machine carry a part of the ring, so that a device has the share of the
slower of both. Each device of a ring adds a hop to the latency of a collective.
"""

from __future__ import annotations

from dataclasses import dataclass

from regard.lab.plan.accelerators import Accelerator
from regard.lab.plan.step_trace import Memory

MACHINE_DEVICES = 8  # of one machine
NETWORK_RATE = 50e9  # bytes a second of a device's network card: 400 Gb/s
HOP_SECONDS = 3e-6  # latency that each device of a ring adds to a collective
HALF = 0.5  # of float32's bytes: weights are gathered in 16 bits where these are computed with


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

    @property
    def overlapped_seconds(self) -> float:
        """Of a step whose communication is hidden behind computation as far as it goes."""
        return max(self.seconds, self.step_seconds - self.seconds)


def ring_rate(accelerator: Accelerator, devices: int) -> float:
    """Bytes a second that each device of a ring sends."""
    if devices <= MACHINE_DEVICES:
        return accelerator.link
    # One ring passes through all cards of a machine at once.
    return min(accelerator.link, MACHINE_DEVICES * NETWORK_RATE)


def parallel_plans(
    memory: Memory,
    seconds: float,
    accelerator: Accelerator,
    devices: int,
    *,
    layers: int = 1,
    gathered: float = 1.0,
) -> list[Parallel]:
    """Replicas with all-reduced gradients, ZeRO stages 1 and 2, and fully sharded states.

    Each device computes a batch of its own; rings send (N − 1) / N of a tensor in each pass
    (Rajbhandari et al. 2020, Section 7). Weights are gathered layer by layer, in `gathered` times
    their own bytes. On several machines also hybrid sharding (HSDP): states sharded inside each
    machine, replicas across machines. Weights travel over the links of a machine only; the network
    carries a gradient shard of each device, all-reduced over the machines (Zhao et al. 2023,
    Section 3.2.2).
    """
    share = (devices - 1) / devices
    gathers = 2 * gathered * memory.weights
    # At the end of backward every weight has a gradient, whether or not it has at the peak.
    gradients = memory.weights
    plans = (
        ("replicas (DDP)", memory.total, 2 * share * gradients, 2),
        (
            "optimizer and gradients sharded (ZeRO 2)",
            memory.weights + (memory.optimizer + gradients) / devices + memory.working,
            2 * share * gradients,
            2,
        ),
        (
            "all sharded (FSDP, ZeRO 3)",
            sharded_states(memory) / devices + memory.working,
            # Weights are gathered for forward and for backward, gradients are reduced once.
            share * (gathers + gradients),
            3 * layers,
        ),
    )
    rate = ring_rate(accelerator, devices)
    result = []
    for name, needed, traffic, collectives in plans:
        sending = traffic / rate + collectives * devices * HOP_SECONDS
        result.append(Parallel(name, needed, traffic, sending, seconds + sending))
    if devices <= MACHINE_DEVICES:
        return result
    machines = devices / MACHINE_DEVICES
    local = (MACHINE_DEVICES - 1) / MACHINE_DEVICES * (gathers + gradients)
    across = 2 * (machines - 1) / machines * memory.weights / MACHINE_DEVICES
    hops = 3 * layers * MACHINE_DEVICES + 2 * machines
    sending = local / accelerator.link + across / NETWORK_RATE + hops * HOP_SECONDS
    hybrid = Parallel(
        "sharded in each machine, replicas across (HSDP)",
        sharded_states(memory) / MACHINE_DEVICES + memory.working,
        local + across,
        sending,
        seconds + sending,
    )
    return [*result, hybrid]


def sharded_states(memory: Memory) -> int:
    """Bytes of weights, gradients and moments, which may be distributed over devices."""
    return 2 * memory.weights + memory.optimizer
