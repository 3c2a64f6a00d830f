"""Timing: contenders take turns; medians, spreads, and the limits of the machine."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

_PAUSE = 0.3  # seconds between rounds: threads of some libraries spin for a while after their work


@dataclass(frozen=True)
class Timing:
    """The seconds that each round took; `amount` is how much one round does (tokens)."""

    seconds: tuple[float, ...]
    amount: float

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def rate(self) -> float:
        """The amount a second, by the median."""
        return self.amount / self.median

    @property
    def spread(self) -> float | None:
        """Half of the distance from the fastest to the slowest round, as a share of the median.

        None for one round.
        """
        if len(self.seconds) == 1:
            return None
        return (max(self.seconds) - min(self.seconds)) / 2 / self.median


def time_in_turns(
    contenders: Mapping[str, Callable[[], float]],
    rounds: int,
    device: torch.device,
    *,
    slow: float = math.inf,
) -> dict[str, Timing]:
    """Times all contenders in turns, `rounds` times each after warming up.

    A contender returns how much it did. One that takes more than `slow` seconds to warm up is not
    called again: that is its time.
    """
    # On a GPU, kernels are compiled in the first round and CUDA graphs captured in the second.
    warm_up = 3 if device.type == "cuda" else 1
    threads = torch.get_num_threads()
    amounts: dict[str, float] = {}
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    too_slow: set[str] = set()
    for turn in range(warm_up + rounds):
        for name, contender in contenders.items():
            if name in too_slow:
                continue
            torch.set_num_threads(threads)  # some libraries change it for the whole process
            _synchronize(device)  # work of the last contender must not count here
            if turn >= warm_up:
                time.sleep(_PAUSE)
            start = time.perf_counter()
            amounts[name] = contender()
            _synchronize(device)
            elapsed = time.perf_counter() - start
            if elapsed > slow and turn == warm_up - 1:
                too_slow.add(name)
            if turn >= warm_up or name in too_slow:
                seconds[name].append(elapsed)
    torch.set_num_threads(threads)
    return {name: Timing(tuple(seconds[name]), amounts[name]) for name in contenders}


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
