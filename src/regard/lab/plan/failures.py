"""Failures of long runs: how often to save, and how much work is lost in a day."""

from __future__ import annotations

import math
from dataclasses import dataclass

SECONDS_PER_DAY = 86_400
# Llama 3 405B: 419 unexpected interruptions in 54 days on 16,384 GPUs (Grattafiori et al. 2024,
# Section 3.3.4), one in about 50,700 device hours.
DEVICE_HOURS_PER_FAILURE = 16_384 * 54 * 24 / 419
WRITE_RATE = 2e9  # bytes a second of a checkpoint, from one machine to a fast file system
STORAGE_RATE = 50e9  # that the file system takes from all machines together
RESTART_SECONDS = 300.0  # until a failed run computes again


@dataclass(frozen=True)
class CheckpointPlan:
    """The best interval between checkpoints, and what failures and saving cost each day."""

    failure_hours: float  # mean time between failures of all devices together
    write_seconds: float
    interval_seconds: float
    lost_hours_per_day: float


def checkpoint_plan(
    devices: int,
    checkpoint_bytes: float,
    *,
    device_hours: float = DEVICE_HOURS_PER_FAILURE,
    write_rate: float = WRITE_RATE,
) -> CheckpointPlan:
    """The optimum checkpoint interval of Young (1974), with Daly's (2006) higher-order terms."""
    failure = 3600 * device_hours / devices  # M, seconds
    write = checkpoint_bytes / write_rate  # δ
    interval = daly_interval(write, failure)
    # A day's share of saving, and for each failure half an interval of work and the restart.
    saving = write / (interval + write)
    failing = (interval / 2 + write + RESTART_SECONDS) / failure
    lost = min(1.0, saving + failing)
    return CheckpointPlan(failure / 3600, write, interval, 24 * lost)


def sharded_write_rate(machines: int) -> float:
    """Bytes a second of a checkpoint that every machine writes its part of."""
    return min(machines * WRITE_RATE, STORAGE_RATE)


def young_interval(write: float, failure: float) -> float:
    """√(2 δ M): time between checkpoints, for their cost δ and the mean time between failures M."""
    return math.sqrt(2 * write * failure)


def daly_interval(write: float, failure: float) -> float:
    """Daly's equation 37: Young's interval with corrections, less the time of writing itself."""
    # Daly's series holds for δ < 2 M; beyond that nothing is gained by saving more often.
    if write >= 2 * failure:
        return failure
    ratio = write / (2 * failure)
    return young_interval(write, failure) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - write
