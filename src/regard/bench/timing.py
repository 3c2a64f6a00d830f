"""Clocks: turns taken by all, medians, spreads, and the limits of the machine measured in the same run."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

_PAUSE = 0.3  # seconds: threads of some libraries spin for a while after their work


@dataclass(frozen=True)
class Timing:
    """What some rounds took; `amount` is what one round does (tokens)."""

    seconds: tuple[float, ...]
    amount: float

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def rate(self) -> float:
        return self.amount / self.median

    @property
    def spread(self) -> float | None:
        """Half of the distance between the fastest and the slowest round, as a share of the median; one round has none."""
        return (
            (max(self.seconds) - min(self.seconds)) / 2 / self.median
            if len(self.seconds) > 1
            else None
        )


def turns(
    cases: Mapping[str, Callable[[], float]],
    rounds: int,
    device: torch.device,
    *,
    slow: float = math.inf,
) -> dict[str, Timing]:
    """Every case to warm up, then `rounds` times each, one after the other; a case returns how much it did. On a GPU things
    are compiled the first time, and may be recorded the second. What takes more than `slow` seconds to warm up is not asked
    again: that is its time."""
    warm = 3 if device.type == "cuda" else 1
    threads = torch.get_num_threads()
    amounts: dict[str, float] = {}
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    done: set[str] = set()
    for turn in range(warm + rounds):
        for name, case in cases.items():
            if name in done:
                continue
            torch.set_num_threads(threads)  # some libraries change it for the whole process
            _finished(device)
            if turn >= warm:
                time.sleep(_PAUSE)
            began = time.perf_counter()
            amounts[name] = case()
            _finished(device)
            took = time.perf_counter() - began
            if took > slow and turn == warm - 1:
                done.add(name)
            if turn >= warm or name in done:
                seconds[name].append(took)
    torch.set_num_threads(threads)
    return {name: Timing(tuple(seconds[name]), amounts[name]) for name in cases}


def matrix_rate(device: torch.device, dtype: torch.dtype = torch.float32) -> float:
    """The most multiplications and additions a second, of large square matrices."""
    size = 8192 if device.type == "cuda" else 1536
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))

    # A GPU is told so much at once that it is never waiting, and has come up to its speed.
    times = 30 if device.type == "cuda" else 1

    def multiply() -> float:
        for _ in range(times):
            torch.mm(a, b)
        return 2.0 * times * size**3

    timing = turns({"mm": multiply}, 8, device)["mm"]
    return timing.amount / min(timing.seconds)


def bandwidth(device: torch.device) -> float:
    """The most bytes a second that can be read and written."""
    source = torch.empty((2**30 if device.type == "cuda" else 2**26) // 4, device=device)
    target = torch.empty_like(source)

    times = 20 if device.type == "cuda" else 1

    def copy() -> float:
        for _ in range(times):
            target.copy_(source)
        return 2.0 * times * source.numel() * 4

    timing = turns({"copy": copy}, 8, device)["copy"]
    return timing.amount / min(timing.seconds)


def _finished(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
