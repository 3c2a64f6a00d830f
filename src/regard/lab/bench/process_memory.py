"""The memory of processes, as Linux counts it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def peak_memory() -> int:
    """The peak resident memory of this process in bytes.

    The kernel's other figure (ru_maxrss) begins with that of the parent process.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    # High-water mark of the resident set.
    return next(_bytes(line) for line in lines if line.startswith("VmHWM:"))


def family_memory(process: int) -> int:
    """The present memory of a process and its children in bytes."""
    # Proportional, so that pages that workers share with their parent count once.
    return sum(_proportional_memory(member) for member in (process, *_children(process)))


def _children(process: int) -> list[int]:
    """The children of a process, which Linux lists by the thread that made them."""
    children: list[int] = []
    for listing in Path(f"/proc/{process}/task").glob("*/children"):
        with suppress(OSError):  # the thread may have ended
            children += map(int, listing.read_text().split())
    return children


def _proportional_memory(process: int) -> int:
    """Bytes of a process, with its part of what several processes share; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((_bytes(line) for line in lines if line.startswith("Pss:")), 0)


def _bytes(line: str) -> int:
    """Of a line such as `VmHWM:   123 kB`."""
    return int(line.split()[1]) * 1024  # Linux writes kB and means KiB
