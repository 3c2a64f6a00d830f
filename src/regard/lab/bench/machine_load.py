"""Machine load: how many cores other processes take, before anything is timed.

On a busy machine contenders wait for a core, the more so the more threads they have.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

# Linux only; elsewhere the load average of the last minute stands in.
_STAT = Path("/proc/stat")
_SAMPLE_SECONDS = 0.5
BUSY_SHARE = 0.15  # of the cores, from which on figures are not to be trusted


def busy_cores(seconds: float = _SAMPLE_SECONDS) -> float:
    """Cores that others keep busy, while this process sleeps for some seconds."""
    before = _cpu_times()
    if before is None:
        return os.getloadavg()[0]
    time.sleep(seconds)
    after = _cpu_times()
    assert after is not None
    total = sum(after) - sum(before)
    # Idle, and waiting for the disk.
    idle = after[3] + after[4] - before[3] - before[4]
    if total <= 0:
        return 0.0
    return (os.cpu_count() or 1) * (1 - idle / total)


def load_note() -> str | None:
    """The note about a busy machine; None for an idle one."""
    cores = os.cpu_count() or 1
    busy = busy_cores()
    if busy < BUSY_SHARE * cores:
        return None
    return f"other processes used {busy:.1f} of {cores} cores"


def _cpu_times() -> list[int] | None:
    """user, nice, system, idle, iowait, irq, softirq and steal, of all cores together."""
    try:
        first = _STAT.read_text().splitlines()[0]
    except OSError:
        return None
    # Guest times, the last two, are part of user and nice.
    return [int(value) for value in first.split()[1:9]]
